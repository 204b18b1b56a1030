"""Exports encoders and re-rankers as SavedModels, and checks them in a fresh process."""

import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from dcse_tf.bert.blanks import BLANK, NO_CANDIDATE
from dcse_tf.bert.checkpoints import hash_files
from dcse_tf.bert.pairs import end_turns, find_rows, join_turns, place_segments, strip_ends
from dcse_tf.bert.token_rows import make_rule
from dcse_tf.encoder.exported_models import EMBED, MATCH, SCORE, SETTINGS_FILE
from dcse_tf.encoder.graph import EncoderGraph, GraphBackend
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import OutputError
from dcse_tf.exporting.export_options import ExportOptions
from dcse_tf.exporting.model_card import list_versions
from dcse_tf.exporting.probes import CANDIDATES, CONTEXTS, SENTENCES, no_warnings, refuse
from dcse_tf.files import hash_bytes, write_json
from dcse_tf.matching.equations import build_matching
from dcse_tf.reranker import scorers
from dcse_tf.reranker.reranker import Reranker

# Largest absolute differences of embeddings and similarities, and of scores. For values beyond 1
# they are scaled by the largest of them, because float32 has seven digits.
TOLERANCE, SCORE_TOLERANCE = 1e-5, 1e-4
_NO_LIMIT = 2**31 - 1
_PROGRAM = pathlib.Path(__file__).with_name("fresh_process.py")


class ServedEncoder(tf.Module):
    """The functions that a server calls: embeddings of strings, and the matching.

    In one call, all inputs and outputs have the same number of rows n, which may be 0. A server
    that batches several requests concatenates and splits them along that axis, and rejects a model
    of any other form.

    Args:
        encoder: the encoder.
        unit_norm: whether embeddings are scaled to length 1; a zero vector stays zero.

    Attributes:
        functions: name -> function from named tensors to named tensors:
            serving_default: sentences string `[n]` to embeddings float32 `[n, dim]`;
            match: context string `[n, turns]` and candidates string `[n, candidates]`, both padded
                with empty strings, to similarities float32 `[n, candidates]`, see
                `build_matching`. A blank text is no turn, and as a candidate has the similarity
                `NO_CANDIDATE`. A context without turns has similarity 0 with every other one.
                Absent if the encoder has postprocessing, which was fitted to sentence embeddings.
    """

    def __init__(self, encoder: EncoderGraph, unit_norm: bool) -> None:
        super().__init__()
        self._encoder = encoder
        self._unit_norm = unit_norm
        # Traced once, and shared by the signatures, which both call it.
        self._tokenize = tf.function(encoder.tokenize, input_signature=[_spec(1, "texts")])
        self.functions: dict[str, Any] = {
            EMBED: tf.function(self._embed, input_signature=[_spec(1, "sentences")])
        }
        if encoder.postprocessing is None:
            dim = encoder.encode_tokens(tf.zeros([1, 1], tf.int32))[0].shape[-1]
            self._matching = build_matching(dim, encoder.matching.attention)
            self.functions[MATCH] = tf.function(self._match, input_signature=_DIALOGUES)

    def _embed(self, sentences: tf.Tensor) -> dict[str, tf.Tensor]:
        embeddings = self._encoder.pool_tokens(self._tokenize(sentences).to_tensor())
        if self._unit_norm:
            embeddings = tf.math.l2_normalize(embeddings, axis=1, epsilon=1e-24)
        return {"embeddings": embeddings}

    def _match(self, context: tf.Tensor, candidates: tf.Tensor) -> dict[str, tf.Tensor]:
        _require_rows(context, candidates)
        texts, turns, responses = _list_texts(context, candidates)
        embeddings, padding_mask = self._encoder.encode_tokens(self._tokenize(texts).to_tensor())
        similarities = self._matching(
            {
                "token_embeddings": embeddings,
                "padding_mask": padding_mask,
                "context_index": turns,
                "turn_mask": ~_is_blank(context),
                "candidate_index": responses,
            }
        )
        return {"similarities": tf.where(_is_blank(candidates), NO_CANDIDATE, similarities)}


class ServedReranker(tf.Module):
    """The function that a server calls: from strings to scores, in the form of `ServedEncoder`.

    Args:
        folder: the re-ranker.

    Attributes:
        functions: "score" -> function from context string `[n, turns]`, the oldest turn first, and
            candidates string `[n, candidates]`, both padded with empty strings, to scores float32
            `[n, candidates]`: logits, and `NO_CANDIDATE` for blank texts. A model with speaker
            embeddings assumes that two speakers alternate and that the last turn and the response
            have different speakers.
    """

    def __init__(self, folder: scorers.RerankerFolder) -> None:
        super().__init__()
        settings, vocabulary = folder.settings, folder.vocabulary
        self._model = scorers.build_model(
            folder, hold=lambda v, dtype: tf.Variable(v, False, dtype=dtype)
        )
        self._rule = make_rule(vocabulary, settings.first_tokens, settings.second_tokens)
        self._tokenizer = vocabulary.make_tokenizer()
        score = tf.function(self._score, input_signature=_DIALOGUES, autograph=False)
        self.functions = {SCORE: score}

    def _score(self, context: tf.Tensor, candidates: tf.Tensor) -> dict[str, tf.Tensor]:
        _require_rows(context, candidates)
        strings, turns, responses = _list_texts(context, candidates)
        # Not truncated here, since a long context is truncated at its start as a whole.
        texts = strip_ends(self._tokenizer.tokenize(strings, _NO_LIMIT))

        # The id of every token of the contexts, and its speaker, 0 for that of the response and
        # else 1: int32 [n, (tokens), 2].
        is_turn = ~_is_blank(context)
        later = tf.cumsum(tf.cast(is_turn, tf.int32), 1, exclusive=True, reverse=True)
        ended = end_turns(texts, self._rule.end_of_turn_id)
        tokens = tf.gather(ended, tf.ragged.boolean_mask(turns, is_turn))
        who = tf.gather(tf.boolean_mask(1 - later % 2, is_turn), find_rows(tokens.values))
        said = join_turns(tokens.with_flat_values(tf.stack([tokens.flat_values, who], axis=1)))

        pairs = tf.where(~_is_blank(candidates))  # int64 [pairs, 2]
        first = tf.gather(said, pairs[:, 0])
        second = tf.gather(texts, tf.gather_nd(responses, pairs))
        some = tf.shape(pairs)[0] > 0
        scores = tf.cond(some, lambda: self._score_pairs(first, second), lambda: tf.zeros([0]))
        nothing = tf.fill(tf.shape(candidates), NO_CANDIDATE)
        return {"scores": tf.tensor_scatter_nd_update(nothing, pairs, scores)}

    def _score_pairs(self, first: tf.RaggedTensor, second: tf.RaggedTensor) -> tf.Tensor:
        """Logits, float32 `[pairs]`, of all pairs in one batch.

        Args:
            first: ids and speakers of contexts' tokens, int32 `[pairs, (tokens), 2]`.
            second: ids of responses' tokens, int32 `[pairs, (tokens)]`.
        """
        rule, ids = self._rule, first.with_values(first.values[:, 0])
        places = place_segments(ids, second, rule.first_tokens, rule.second_tokens)
        return self._model.score(
            {
                "token_ids": places.fill(ids.values, second.values, rule.marks),
                "segment_ids": places.segment_ids(),
                "padding_mask": tf.sequence_mask(places.lengths),
                # [CLS], [SEP] and the response always have speaker 0.
                "speaker_ids": places.fill(first.values[:, 1], tf.zeros_like(second.values)),
            }
        )


def _spec(rank: int, name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None] * rank, tf.string, name=name)


_DIALOGUES = [_spec(2, "context"), _spec(2, "candidates")]


def _is_blank(texts: tf.Tensor) -> tf.Tensor:
    return tf.strings.regex_full_match(texts, BLANK)


def _require_rows(context: tf.Tensor, candidates: tf.Tensor) -> None:
    message = "context and candidates: expected as many rows in both"
    tf.debugging.assert_equal(tf.shape(context)[0], tf.shape(candidates)[0], message)


def _list_texts(
    context: tf.Tensor, candidates: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The distinct strings of two tables, `[texts]`, and each table as rows of them, int32."""
    texts, rows = tf.unique(tf.concat([tf.reshape(x, [-1]) for x in (context, candidates)], 0))
    turns = tf.size(context)
    return (
        texts,
        tf.reshape(rows[:turns], tf.shape(context)),
        tf.reshape(rows[turns:], tf.shape(candidates)),
    )


class Request(NamedTuple):
    """A request to a signature: its inputs, arrays of texts by name; and of its one output the
    name, what the model itself computes, float32, and how far it may be.
    """

    signature: str
    inputs: dict[str, np.ndarray]
    output: str
    answer: np.ndarray
    tolerance: float


_DIALOGUE_INPUTS = {"context": np.array(CONTEXTS), "candidates": np.array(CANDIDATES)}


def make_encoder_requests(graph: EncoderGraph, unit_norm: bool) -> list[Request]:
    """A request to each signature of `ServedEncoder`.

    The answers come from the code that evaluation uses, not from the exported graphs.
    """
    encoder = SentenceEncoder(GraphBackend(graph))
    embeddings = encoder.encode(SENTENCES, show_progress=False, normalize_embeddings=unit_norm)
    # Postprocessing can magnify differences, as whitening does, which scales up directions that
    # hardly vary.
    tolerance = TOLERANCE * (100 if graph.postprocessing else 1)
    tolerance *= max(1.0, float(np.abs(embeddings).max()))
    texts = {"sentences": np.array(SENTENCES)}
    requests = [Request(EMBED, texts, "embeddings", embeddings, tolerance)]
    if encoder.match:
        answer = encoder.match(CONTEXTS, CANDIDATES)
        requests.append(Request(MATCH, _DIALOGUE_INPUTS, "similarities", answer, TOLERANCE))
    return requests


def write_encoder(
    folder: pathlib.Path, encoder: EncoderGraph, options: ExportOptions
) -> dict[str, str]:
    """Writes and checks an encoder, see `ServedEncoder`; for the rest see `ExportFormat`."""
    assert encoder.source
    settings = options.to_dict() | {
        "max_sequence_length": encoder.max_sequence_length,
        "pooling": encoder.pooling,
        "prefix": encoder.vocabulary.prefix,
        "sha256": hash_files(encoder.source),
        "fingerprint": export_fingerprint(encoder, options.unit_norm),
    }
    _save(folder, ServedEncoder(encoder, options.unit_norm), settings)
    # Both sides of the comparison run on the CPU: this process holds the GPU's memory, and a GPU
    # rounds differently.
    with tf.device("CPU:0"), no_warnings():
        return verify(folder, make_encoder_requests(encoder, options.unit_norm))


def export_fingerprint(encoder: EncoderGraph, unit_norm: bool) -> str:
    """An export's fingerprint: the encoder's, or another one if embeddings are normalised."""
    own = encoder.fingerprint()
    return hash_bytes(f"{own} unit_norm".encode()) if unit_norm else own


def write_reranker(
    folder: pathlib.Path, model: scorers.RerankerFolder, options: ExportOptions
) -> dict[str, str]:
    """Writes and checks a re-ranker as `write_encoder` does an encoder."""
    files = {"sha256": hash_files(model.path), "fingerprint": scorers.hash_reranker(model)}
    _save(folder, ServedReranker(model), options.to_dict() | vars(model.settings) | files)
    with tf.device("CPU:0"), no_warnings():
        reranker = Reranker(scorers.load_checkpoint_scorer(model), model.settings, model.vocabulary)
        scores = np.stack(reranker.score(CONTEXTS, CANDIDATES, show_progress=False))
        largest = float(np.abs(scores[scores != NO_CANDIDATE]).max())
        tolerance = SCORE_TOLERANCE * max(1.0, largest)
        return verify(folder, [Request(SCORE, _DIALOGUE_INPUTS, "scores", scores, tolerance)])


def _save(
    folder: pathlib.Path, served: ServedEncoder | ServedReranker, settings: dict[str, Any]
) -> None:
    try:
        with no_warnings():  # and none of a page of generated names for each signature
            tf.saved_model.save(served, str(folder), signatures=served.functions)
    except tf.errors.OpError as error:
        # The message names TensorFlow's temporary file, then, after a semicolon, the reason.
        reason = error.message.rpartition("; ")[2]
        raise OutputError(f"{folder}: cannot be written: {reason}") from error
    settings |= {"signatures": sorted(served.functions), "versions": list_versions()}
    write_json(folder / SETTINGS_FILE, settings, sort_keys=True)


def verify(folder: pathlib.Path, requests: list[Request]) -> dict[str, str]:
    """Runs none, one and all rows of requests in a fresh process that has only TensorFlow and
    tensorflow-text, and compares the answers.

    Returns:
        The largest difference with all rows of each signature, for the model card.

    Raises:
        OutputError: the process failed, or an answer differs by more than its tolerance.
    """
    parts = [
        request._replace(
            inputs={name: array[rows] for name, array in request.inputs.items()},
            answer=request.answer[rows],
        )
        for request in requests
        for rows in (slice(0, 0), slice(2, 3), slice(None))
    ]
    answers, measured = _answer(folder, parts), []
    for number, request in enumerate(parts):
        found, expected = answers[f"{number}/{request.output}"], request.answer
        where = f"{request.output} of the signature {request.signature}"
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            raise OutputError(
                f"the export is refused: {where} are {found.dtype} {list(found.shape)}, expected "
                f"{expected.dtype} {list(expected.shape)}"
            )
        difference = float(np.abs(found - expected).max(initial=0.0))
        measured.append((f"largest difference of {where}", difference, request.tolerance))
    return refuse(folder, measured)


def _answer(folder: pathlib.Path, requests: Sequence[Request]) -> dict[str, np.ndarray]:
    """The answers by "number/output", see `fresh_process`."""
    asked = {
        f"{number}/{request.signature}/{name}": array
        for number, request in enumerate(requests)
        for name, array in request.inputs.items()
    }
    with tempfile.TemporaryDirectory() as exchange:
        questions, answers = (pathlib.Path(exchange, name) for name in ("asked.npz", "found.npz"))
        np.savez(questions, **asked)  # type: ignore[arg-type]
        # -P keeps the modules in the program's folder from being imported.
        done = subprocess.run(
            [sys.executable, "-P", str(_PROGRAM), str(folder), str(questions), str(answers)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            reason = next(reversed(done.stderr.strip().splitlines()), "no message")
            raise OutputError(f"the export is refused: a fresh process cannot run it: {reason}")
        with np.load(answers) as arrays:
            return dict(arrays)
