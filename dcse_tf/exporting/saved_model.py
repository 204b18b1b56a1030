"""Exports encoders and re-rankers as SavedModels, and checks them in a fresh process."""

import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from dcse_tf.bert.pairs import end_turns, find_rows, place_segments, strip_ends
from dcse_tf.bert.token_rows import make_rule
from dcse_tf.bert.vocabulary import BLANK, NO_CANDIDATE
from dcse_tf.encoder.exported_models import EMBED, MATCH, SCORE, SETTINGS_FILE
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.errors import OutputError
from dcse_tf.exporting import probes
from dcse_tf.exporting.export_formats import ExportOptions, Facts
from dcse_tf.files import hash_bytes, write_json
from dcse_tf.matching.equations import build_matching
from dcse_tf.reranker import scorers

# Largest absolute differences of embeddings and of scores. For values beyond 1
# they are scaled by the largest of them, because float32 has seven digits.
TOLERANCE, SCORE_TOLERANCE = 1e-5, 1e-4
_PROGRAM = pathlib.Path(__file__).with_name("fresh_process.py")

# What is asked: strings, and dialogues with candidates for the next turn.
_SENTENCES = [tf.TensorSpec([None], tf.string, "sentences")]
_DIALOGUES = [tf.TensorSpec([None, None], tf.string, name) for name in ("context", "candidates")]


def serve_encoder(encoder: EncoderGraph, unit_norm: bool) -> tf.Module:
    """A module with the `functions` that a server calls. "serving_default": from sentences string
    `[n]` to embeddings float32 `[n, dim]`, with `unit_norm` of length 1; a zero vector stays zero.
    "match", where the encoder has it: from context string `[n, turns]`, in order, and candidates
    string `[n, candidates]`, both padded with empty strings, to similarities float32
    `[n, candidates]` (equation 7), and `NO_CANDIDATE` for blank texts.

    In one call, all inputs and outputs have the same number of rows n, which may be 0. A server
    that batches several requests concatenates and splits them along that axis, and rejects a model
    of any other form.
    """

    # Traced once, and shared by both functions.
    @tf.function(input_signature=_SENTENCES)
    def tokenize(sentences: tf.Tensor) -> tf.Tensor:
        return encoder.tokenize(sentences).to_tensor()

    @tf.function(input_signature=_SENTENCES)
    def embed(sentences: tf.Tensor) -> dict[str, tf.Tensor]:
        embeddings = encoder.pool_tokens(tokenize(sentences))
        if unit_norm:
            embeddings = tf.math.l2_normalize(embeddings, axis=1, epsilon=1e-24)
        return {"embeddings": embeddings}

    served = tf.Module()
    served.functions = {EMBED: embed}
    # What has variables or tables to save.
    served.parts = encoder.bert, encoder.tokenizer, encoder.postprocessing
    if encoder.match:
        dim = encoder.encode_tokens(tf.zeros([1, 1], tf.int32))[0].shape[-1]
        served.matching = matching = build_matching(dim, encoder.attention)

        @tf.function(input_signature=_DIALOGUES)
        def match(context: tf.Tensor, candidates: tf.Tensor) -> dict[str, tf.Tensor]:
            context, candidates, texts, turns, responses = _list_texts(context, candidates)
            embeddings, padding_mask = encoder.encode_tokens(tokenize(texts))
            tables = {"token_embeddings": embeddings, "padding_mask": padding_mask}
            rows = {"context_index": turns, "candidate_index": responses}
            similarities = matching({**tables, **rows, "turn_mask": ~_is_blank(context)})
            return {"similarities": tf.where(_is_blank(candidates), NO_CANDIDATE, similarities)}

        served.functions[MATCH] = match
    return served


def serve_reranker(folder: scorers.RerankerFolder) -> tf.Module:
    """A module with the function that a server calls, "score", in the form of `serve_encoder`: from
    context string `[n, turns]`, the oldest turn first, and candidates string `[n, candidates]`,
    both padded with empty strings, to scores float32 `[n, candidates]`: logits, and `NO_CANDIDATE`
    for blank texts. A model with speaker embeddings assumes that two speakers alternate and that
    the last turn and the response have different speakers.
    """
    settings, vocabulary = folder.settings, folder.vocabulary
    model = scorers.build_model(folder, hold=lambda v, dtype: tf.Variable(v, False, dtype=dtype))
    rule = make_rule(vocabulary, settings.first_tokens, settings.second_tokens)
    tokenizer = vocabulary.make_tokenizer()

    @tf.function(input_signature=_DIALOGUES, autograph=False)
    def score(context: tf.Tensor, candidates: tf.Tensor) -> dict[str, tf.Tensor]:
        context, candidates, strings, turns, responses = _list_texts(context, candidates)
        # Not truncated here, since a long context is truncated at its start as a whole.
        texts = strip_ends(tokenizer.tokenize(strings, 2**31 - 1)[0])
        is_turn, pairs = ~_is_blank(context), tf.where(~_is_blank(candidates))  # int64 [pairs, 2]
        # The speaker of each turn: 0 for that of the response, else 1.
        later = tf.cumsum(tf.cast(is_turn, tf.int32), 1, exclusive=True, reverse=True)
        said, said_by = (
            tf.gather(tf.ragged.boolean_mask(table, is_turn), pairs[:, 0])
            for table in (turns, 1 - later % 2)
        )
        ended = end_turns(texts, rule.end_of_turn_id)
        tokens = tf.gather(ended, said)  # int32 [pairs, (turns), (tokens)]
        speakers = tf.gather(said_by.values, find_rows(tokens.values))
        first, second = tokens.merge_dims(1, 2), tf.gather(texts, tf.gather_nd(responses, pairs))

        def score_pairs() -> tf.Tensor:
            places = place_segments(first, second, rule.first_tokens, rule.second_tokens)
            return model.score(
                {
                    "token_ids": places.fill(first.values, second.values, rule.marks),
                    "segment_ids": places.segment_ids(),
                    "padding_mask": tf.sequence_mask(places.lengths),
                    # [CLS], [SEP] and the response always have speaker 0.
                    "speaker_ids": places.fill(speakers, tf.zeros_like(second.values)),
                }
            )

        scores = tf.cond(tf.size(pairs) > 0, score_pairs, lambda: tf.zeros([0]))
        nothing = tf.fill(tf.shape(candidates), NO_CANDIDATE)
        return {"scores": tf.tensor_scatter_nd_update(nothing, pairs, scores)}

    served = tf.Module()
    served.functions, served.parts = {SCORE: score}, (model, tokenizer)
    return served


def _is_blank(texts: tf.Tensor) -> tf.Tensor:
    return tf.strings.regex_full_match(texts, BLANK)


def _list_texts(context: tf.Tensor, candidates: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Both tables, to compute with: an error of the given ones may come before that of their rows;
    their distinct strings, `[texts]`, and each table as rows of these, int32.
    """
    message = "context and candidates: expected as many rows in both"
    fits = tf.debugging.assert_equal(tf.shape(context)[0], tf.shape(candidates)[0], message)
    with tf.control_dependencies([fits]):
        context, candidates = tf.identity(context), tf.identity(candidates)
    both = tf.concat([context, candidates], axis=1)
    strings, rows = tf.unique(tf.reshape(both, [-1]))
    widths = [tf.shape(context)[1], tf.shape(candidates)[1]]
    numbers = tf.split(tf.reshape(rows, tf.shape(both)), widths, axis=1)
    return context, candidates, strings, *numbers


def write_encoder(folder: pathlib.Path, encoder: EncoderGraph, options: ExportOptions) -> Facts:
    """Writes and checks an encoder, see `serve_encoder`; for the rest see `register_export`."""
    # Postprocessing can magnify differences, as whitening does, which scales up directions that
    # hardly vary.
    tolerance = TOLERANCE * (100 if encoder.postprocessing else 1)
    checks: Checks = {EMBED: (lambda: probes.embed(encoder, options.unit_norm), tolerance)}
    if match := encoder.match:
        checks[MATCH] = (lambda: match(probes.CONTEXTS, probes.CANDIDATES), TOLERANCE)
    settings = {**encoder.settings, "fingerprint": export_fingerprint(encoder, options.unit_norm)}
    served = serve_encoder(encoder, options.unit_norm)
    return _write(folder, served, options.to_dict() | settings, checks)


def export_fingerprint(encoder: EncoderGraph, unit_norm: bool) -> str:
    """An export's fingerprint: the encoder's, or another one if embeddings are normalised."""
    own = encoder.fingerprint()
    return hash_bytes(f"{own} unit_norm".encode()) if unit_norm else own


def write_reranker(
    folder: pathlib.Path, model: scorers.RerankerFolder, options: ExportOptions
) -> Facts:
    """Writes and checks a re-ranker as `write_encoder` does an encoder."""
    settings = vars(model.settings) | {"fingerprint": scorers.hash_reranker(model)}
    checks: Checks = {SCORE: (lambda: probes.score(model), SCORE_TOLERANCE)}
    return _write(folder, serve_reranker(model), options.to_dict() | settings, checks)


# Of each signature a function that returns what the model itself answers, and the largest
# difference that is accepted.
Checks = dict[str, tuple[Callable[[], np.ndarray], float]]


@probes.no_warnings()
def _write(
    folder: pathlib.Path, served: tf.Module, settings: dict[str, Any], checks: Checks
) -> Facts:
    """Writes a SavedModel and its settings, and compares its answers with the model's own; raises
    OutputError if it cannot be written or run, or an answer differs by more.
    """
    try:
        tf.saved_model.save(served, str(folder), signatures=served.functions)
    except tf.errors.OpError as error:
        # The message names TensorFlow's temporary file, then, after a semicolon, the reason.
        reason = error.message.rpartition("; ")[2]
        raise OutputError(f"{folder}: cannot be written: {reason}") from error
    write_json(folder / SETTINGS_FILE, settings, sort_keys=True)

    answers, measured = _answer(folder), []
    for signature, (compute, tolerance) in checks.items():
        # Both sides of the comparison run on the CPU: this process holds the GPU's memory, and a
        # GPU rounds differently.
        with tf.device("CPU:0"):
            expected = compute()
        found = answers[signature]
        expected = np.concatenate([expected[2:3], expected])  # to one and to all rows
        what, difference = f"largest difference of {signature} from the model's", np.inf
        if (found.shape, found.dtype) == (expected.shape, expected.dtype):
            difference = float(np.abs(found - expected).max())
        largest = float(np.abs(expected[expected != NO_CANDIDATE]).max())
        measured.append((what, difference, tolerance * max(1.0, largest)))
    return probes.refuse(folder, measured)


def _answer(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """The answers of a fresh process to the probes, see `fresh_process.answer`."""
    with tempfile.TemporaryDirectory() as exchange:
        path = pathlib.Path(exchange, "texts.npz")
        np.savez(path, **probes.TEXTS)  # type: ignore[arg-type]
        # -P keeps the modules in the program's folder from being imported.
        done = subprocess.run(
            [sys.executable, "-P", str(_PROGRAM), str(folder), str(path)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            reason = next(reversed(done.stderr.strip().splitlines()), "no message")
            raise OutputError(f"the export is refused: a fresh process cannot run it: {reason}")
        with np.load(path) as arrays:
            return dict(arrays)
