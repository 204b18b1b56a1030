"""Exports an encoder as a SavedModel for serving, and checks its signatures on sample requests."""

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from absl import logging

import dcse_tf
from dcse_tf.bert.blanks import BLANK, NO_CANDIDATE
from dcse_tf.encoder.graph import EncoderGraph, GraphBackend
from dcse_tf.encoder.saved_model import (
    EMBED,
    EMBED_TOKENS,
    MATCH,
    SETTINGS_FILE,
    export_fingerprint,
)
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import OutputError, require
from dcse_tf.matching.dialogue_cse import build_matching


class Served(Protocol):
    """A tf.Module that can be saved; `functions` maps signature names to functions."""

    functions: dict[str, Any]


class ServedEncoder(tf.Module):
    """The functions that a server calls: embeddings of strings or token ids, and the matching.

    In one call, all inputs and outputs have the same number of rows n, which may be 0. A server
    that batches several requests concatenates and splits them along that axis, and rejects a model
    of any other form.

    Args:
        encoder: the encoder.
        unit_norm: whether embeddings are scaled to length 1; a zero vector stays zero.

    Attributes:
        functions: name -> function from named tensors to named tensors:
            serving_default: sentences string `[n]` to embeddings float32 `[n, dim]`;
            tokens: token_ids int32 `[n, tokens]`, including [CLS] and [SEP], and padding_mask bool
                `[n, tokens]`, True = real token, to embeddings float32 `[n, dim]`;
            match: context string `[n, turns]` and candidates string `[n, candidates]`, both padded
                with empty strings, to similarities float32 `[n, candidates]`, see
                `build_matching`. A blank text is no turn, and as a candidate has the similarity
                `NO_CANDIDATE`. A context without turns has similarity 0 with every other one.
                Absent if the encoder has postprocessing, which was fitted to sentence embeddings.
    """

    def __init__(self, encoder: EncoderGraph, unit_norm: bool) -> None:
        super().__init__()
        self._max_tokens = encoder.max_sequence_length
        self._vocabulary_size = encoder.tokenizer.size
        self._unit_norm = unit_norm
        # Traced once each, and shared by all signatures that call them.
        self._tokenize = tf.function(encoder.tokenize, input_signature=[_texts("texts")])
        self._pool = tf.function(
            encoder.pool_tokens,
            input_signature=[_tokens(tf.int32, "token_ids"), _tokens(tf.bool, "padding_mask")],
        )
        self._parts: list[Any] = [encoder.tokenizer, encoder.bert]
        self.functions: dict[str, Any] = {
            EMBED: tf.function(self._embed, input_signature=[_texts("sentences")]),
            EMBED_TOKENS: tf.function(
                self._embed_tokens,
                input_signature=[_tokens(tf.int32, "token_ids"), _tokens(tf.bool, "padding_mask")],
            ),
        }
        if encoder.postprocessing:
            self._parts.append(encoder.postprocessing)
            return
        self._encode = encoder.encode_tokens
        dim = encoder.encode_tokens(tf.zeros([1, 1], tf.int32))[0].shape[-1]
        self._matching = build_matching(dim, encoder.matching)
        self.functions[MATCH] = tf.function(
            self._match,
            input_signature=[
                tf.TensorSpec([None, None], tf.string, name=name)
                for name in ("context", "candidates")
            ],
        )

    def _embed(self, sentences: tf.Tensor) -> dict[str, tf.Tensor]:
        token_ids = self._tokenize(sentences).to_tensor()
        return self._finish(self._pool(token_ids, token_ids != 0))

    def _embed_tokens(self, token_ids: tf.Tensor, padding_mask: tf.Tensor) -> dict[str, tf.Tensor]:
        # On a CPU the look-up of an id out of range fails by itself; a GPU returns zeros instead.
        checks = [
            tf.debugging.assert_non_negative(token_ids, "token_ids: expected 0 or more"),
            tf.debugging.assert_less(
                token_ids,
                self._vocabulary_size,
                f"token_ids: expected under {self._vocabulary_size}",
            ),
            # Truncating would remove [SEP].
            tf.debugging.assert_less_equal(
                tf.shape(token_ids)[1],
                self._max_tokens,
                f"token_ids: expected at most {self._max_tokens} tokens",
            ),
        ]
        # Without this dependency the look-up could run, and fail, before the checks.
        with tf.control_dependencies(checks):
            token_ids = tf.identity(token_ids)
        return self._finish(self._pool(token_ids, padding_mask))

    def _finish(self, embeddings: tf.Tensor) -> dict[str, tf.Tensor]:
        if self._unit_norm:
            embeddings = tf.math.l2_normalize(embeddings, axis=1, epsilon=1e-24)
        return {"embeddings": embeddings}

    def _match(self, context: tf.Tensor, candidates: tf.Tensor) -> dict[str, tf.Tensor]:
        tf.debugging.assert_equal(
            tf.shape(context)[0],
            tf.shape(candidates)[0],
            "context and candidates: expected as many rows in both",
        )
        texts = tf.concat([tf.reshape(context, [-1]), tf.reshape(candidates, [-1])], 0)
        texts, index = tf.unique(texts)
        embeddings, padding_mask = self._encode(self._tokenize(texts).to_tensor())
        turns = tf.size(context)
        similarities = self._matching(
            {
                "token_embeddings": embeddings,
                "padding_mask": padding_mask,
                "context_index": tf.reshape(index[:turns], tf.shape(context)),
                "turn_mask": ~tf.strings.regex_full_match(context, BLANK),
                "candidate_index": tf.reshape(index[turns:], tf.shape(candidates)),
            }
        )
        blank = tf.strings.regex_full_match(candidates, BLANK)
        return {"similarities": tf.where(blank, NO_CANDIDATE, similarities)}


def _texts(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.string, name=name)


def _tokens(dtype: tf.DType, name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None, None], dtype, name=name)


# Largest absolute difference of pooled embeddings and similarities. For embeddings with values
# beyond 1 it is scaled by the largest of them, because float32 has seven digits.
TOLERANCE = 1e-5

_QUESTION, _LONG = "Where is my parcel?", "It left our store today . " * 200
# The empty string, white space, Chinese, accents, a ligature, an emoji, characters that the
# tokenizer removes, one long word, sentences that are truncated, and a repeated sentence.
SENTENCES = ["", " \t", _QUESTION, "我的包裹在哪里？", "Café, ÉCOLE: ﬁ ß 🙂\u200b\u0007", "a" * 300]
SENTENCES += [_LONG, "好的。" * 200, _QUESTION]
CONTEXTS = [
    [_QUESTION, "It left our store today.", "我的包裹在哪里？"],
    ["Do you like coffee?", "", ""],
    ["", _LONG, "Café"],
    [" ", _QUESTION, ""],
]
CANDIDATES = [
    ["The courier comes at noon.", _QUESTION, "", _LONG],
    ["I drink it black.", "好的。", "好的。", "🙂"],
    ["I drink it black.", "Café", "a" * 300, "It rains."],
    ["The courier comes at noon.", "no", "No!", "我的包裹"],
]


@dataclasses.dataclass(frozen=True)
class Request:
    """A request to a signature, with the expected answer.

    Attributes:
        signature: the signature's name.
        inputs: name -> array; strings are an array of str objects.
        output: the name of the output to compare.
        answer: the expected output, computed by the encoder itself, float32.
        tolerance: the largest absolute difference from `answer` that is accepted.
    """

    signature: str
    inputs: dict[str, np.ndarray]
    output: str
    answer: np.ndarray
    tolerance: float


def make_requests(graph: EncoderGraph, unit_norm: bool) -> list[Request]:
    """Makes requests of 0, 1 and several rows for each signature of `ServedEncoder`.

    The answers come from the code that evaluation uses, not from the exported graphs.

    Args:
        graph: the encoder.
        unit_norm: see `ServedEncoder`.
    """
    encoder = SentenceEncoder(GraphBackend(graph, tell_unknown=False))
    embeddings = _finish(encoder.encode_and_mark(SENTENCES)[0], unit_norm)
    token_ids = graph.tokenize(tf.constant(SENTENCES)).to_tensor().numpy()
    tolerance = _measure_tolerance(graph, token_ids, unit_norm)
    requests = []
    for rows in (slice(0, 0), slice(2, 3), slice(None)):
        texts = {"sentences": np.array(SENTENCES, object)[rows]}
        tokens = {"token_ids": token_ids[rows], "padding_mask": token_ids[rows] != 0}
        requests.append(Request(EMBED, texts, "embeddings", embeddings[rows], tolerance))
        requests.append(Request(EMBED_TOKENS, tokens, "embeddings", embeddings[rows], tolerance))
    return requests + _make_match_requests(encoder)


def _finish(embeddings: np.ndarray, unit_norm: bool) -> np.ndarray:
    if not unit_norm:
        return embeddings
    lengths = np.linalg.norm(embeddings.astype(np.float64), axis=1, keepdims=True)
    return (embeddings / np.maximum(lengths, 1e-12)).astype(np.float32)


def _measure_tolerance(encoder: EncoderGraph, token_ids: np.ndarray, unit_norm: bool) -> float:
    """The change in the answers that corresponds to a change of `TOLERANCE` before postprocessing.

    Postprocessing can magnify differences: whitening scales up directions that hardly vary.
    """
    pooled = encoder.pool_plainly(tf.constant(token_ids)).numpy()
    step = TOLERANCE * max(1.0, float(np.abs(pooled).max()))
    if not encoder.postprocessing:
        return TOLERANCE if unit_norm else step
    signs = np.random.default_rng(0).choice([-1, 1], pooled.shape)
    before, after = (
        _finish(encoder.postprocess(tf.constant(x, tf.float32)).numpy(), unit_norm)
        for x in (pooled, pooled + step * signs)
    )
    return max(TOLERANCE, float(np.abs(after - before).max()))


def _make_match_requests(encoder: SentenceEncoder) -> list[Request]:
    if encoder.match is None:
        return []
    similarities = encoder.match(CONTEXTS, CANDIDATES)
    requests = []
    for rows in (slice(0, 0), slice(0, 1), slice(None)):
        texts = {
            "context": np.array(CONTEXTS, object)[rows],
            "candidates": np.array(CANDIDATES, object)[rows],
        }
        found = similarities[rows]
        requests.append(Request(MATCH, texts, "similarities", found, TOLERANCE))
    return requests


# Where TensorFlow Serving looks for warm-up requests.
FILE = pathlib.Path("assets.extra") / "tf_serving_warmup_requests"


def import_messages() -> tuple[Any, Any]:
    """Imports TensorFlow Serving's modules predict_pb2 and prediction_log_pb2.

    Raises:
        InputError: they are not installed.
    """
    names = ("predict_pb2", "prediction_log_pb2")
    predict, log = (
        require(f"tensorflow_serving.apis.{name}", extra="serving", why="`warmup`")
        for name in names
    )
    return predict, log


def write_warmup_requests(folder: pathlib.Path, requests: list[Request]) -> None:
    """Writes requests into an export, as a TFRecord file of PredictionLog messages.

    Args:
        folder: the export's folder.
        requests: the requests to write; those with 0 rows are left out.

    Raises:
        InputError: see `import_messages`.
    """
    predict_pb2, prediction_log_pb2 = import_messages()
    (folder / FILE).parent.mkdir()
    with tf.io.TFRecordWriter(str(folder / FILE)) as writer:
        for request in requests:
            if not len(request.answer):
                continue
            message = predict_pb2.PredictRequest()
            message.model_spec.signature_name = request.signature
            for name, array in request.inputs.items():
                message.inputs[name].CopyFrom(tf.make_tensor_proto(array))
            log = prediction_log_pb2.PredictionLog(
                predict_log=prediction_log_pb2.PredictLog(request=message)
            )
            writer.write(log.SerializeToString(deterministic=True))


_PROGRAM = pathlib.Path(__file__).with_name("fresh_process.py")


def verify(folder: pathlib.Path, requests: list[Request]) -> None:
    """Runs requests on an export in a fresh process that has only TensorFlow and tensorflow-text.

    Logs the absolute difference that is the largest relative to its tolerance.

    Args:
        folder: the export's folder.
        requests: the requests, with their expected answers.

    Raises:
        OutputError: the process failed, or an answer differs by more than its tolerance.
    """
    answers = _answer(folder, requests)
    largest, allowed = 0.0, requests[0].tolerance
    for number, request in enumerate(requests):
        found, expected = answers[f"{number}/{request.output}"], request.answer
        where = f"{request.output} of the signature {request.signature}"
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            raise OutputError(
                f"the export is refused: {where} are {found.dtype} {list(found.shape)}, expected "
                f"{expected.dtype} {list(expected.shape)}"
            )
        difference = float(np.abs(found - expected).max(initial=0.0))
        if not difference <= request.tolerance:  # NaN too
            raise OutputError(
                f"the export is refused: {where} differ from the encoder's by {difference:.1e}, "
                f"expected at most {request.tolerance:.1e}"
            )
        if difference / request.tolerance >= largest / allowed:
            largest, allowed = difference, request.tolerance
    logging.info(
        "computed by a fresh process: largest difference %.1e, allowed %.1e", largest, allowed
    )


def _answer(folder: pathlib.Path, requests: list[Request]) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as exchange:
        asked, answers = (pathlib.Path(exchange, name) for name in ("asked.json", "answers.npz"))
        asked.write_text(json.dumps([_describe(request) for request in requests]))
        # -P keeps the modules in the program's folder from being imported. Both sides of the
        # comparison run on the CPU: this process holds the GPU's memory, and a GPU rounds
        # differently.
        done = subprocess.run(
            [sys.executable, "-P", str(_PROGRAM), str(folder), str(asked), str(answers)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            reason = next(reversed(done.stderr.strip().splitlines()), "no message")
            raise OutputError(f"the export is refused: a fresh process cannot run it: {reason}")
        with np.load(answers) as arrays:
            return dict(arrays)


def _describe(request: Request) -> dict[str, Any]:
    inputs = {
        name: {
            "dtype": "string" if array.dtype == object else array.dtype.name,
            "shape": array.shape,
            "values": array.ravel().tolist(),
        }
        for name, array in request.inputs.items()
    }
    return {"signature": request.signature, "inputs": inputs}


_PACKAGES = ("tensorflow", "tensorflow-text", "keras", "keras-hub")


def write_saved_model(
    folder: pathlib.Path,
    encoder: EncoderGraph,
    settings: dict[str, Any],
    *,
    unit_norm: bool = False,
    warmup: bool = False,
) -> None:
    """Writes a SavedModel with the signatures of `ServedEncoder`, and verifies it.

    Args:
        folder: an existing folder to write to. After an error its content must not be used.
        encoder, unit_norm: see `ServedEncoder`.
        settings: written beside the model, together with the versions of the libraries used.
        warmup: whether to include warm-up requests for TensorFlow Serving.

    Raises:
        InputError: `warmup` is set and TensorFlow Serving's message modules are not installed.
        OutputError: the model cannot be written, or its answers differ from the encoder's.
    """
    save_and_verify(
        folder,
        ServedEncoder(encoder, unit_norm),
        lambda: make_requests(encoder, unit_norm),
        {**settings, "fingerprint": export_fingerprint(encoder.fingerprint(), unit_norm)},
        warmup,
    )


def save_and_verify(
    folder: pathlib.Path,
    served: Served,
    make: Callable[[], list[Request]],
    settings: dict[str, Any],
    warmup: bool,
) -> None:
    """Saves and verifies any module, as `write_saved_model` does for an encoder.

    Args:
        folder, settings, warmup: see `write_saved_model`.
        served: the module to save.
        make: returns sample requests with their expected answers.
    """
    if warmup:
        import_messages()  # before the work
    with _warnings_only(), _named_faults(folder):
        tf.saved_model.save(served, str(folder), signatures=served.functions)
    # Both sides of the comparison run on the CPU.
    with tf.device("CPU:0"):
        requests = make()
    if warmup:
        with _named_faults(folder):
            write_warmup_requests(folder, requests)
    settings = {**settings, "signatures": sorted(served.functions), "versions": _versions()}
    text = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / SETTINGS_FILE).write_text(text + "\n", encoding="utf-8")
    verify(folder, requests)


@contextlib.contextmanager
def _warnings_only() -> Iterator[None]:
    """Hides TensorFlow's informational messages: a page of generated names per signature."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


@contextlib.contextmanager
def _named_faults(folder: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        # The message names TensorFlow's temporary file, then, after a semicolon, the reason.
        reason = error.message.rpartition("; ")[2]
        raise OutputError(f"{folder}: cannot be written: {reason}") from error


def _versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {**found, "dcse_tf": dcse_tf.__version__, "python": platform.python_version()}
