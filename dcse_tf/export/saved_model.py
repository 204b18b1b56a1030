"""TensorFlow SavedModel: strings in, embeddings out, nothing else needed than tensorflow-text."""

import contextlib
import importlib.metadata
import json
import pathlib
import platform
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

import dcse_tf
from dcse_tf.errors import OutputError
from dcse_tf.export.sample_requests import make_requests
from dcse_tf.export.served_encoder import ServedEncoder
from dcse_tf.export.verification import Verification, verify
from dcse_tf.export.warmup import import_messages, write_warmup_requests
from dcse_tf.layers import TurnAttention
from dcse_tf.models.sentence_encoder import SentenceEncoder

SETTINGS_FILE = "dcse_tf.json"
_PACKAGES = ("tensorflow", "tensorflow-text", "keras", "keras-hub")


def write_saved_model(
    folder: pathlib.Path,
    encoder: SentenceEncoder,
    attention: TurnAttention | None,
    settings: dict[str, Any],
    *,
    unit_norm: bool = False,
    warmup: bool = False,
) -> Verification:
    """Writes a SavedModel with the signatures of `ServedEncoder`, and verifies it.

    Args:
        folder: where to; it exists. What is in it after an error is not to be used.
        encoder, attention, unit_norm: see `ServedEncoder`.
        settings: written beside the model, with the versions of what it was made by.
        warmup: whether TensorFlow Serving finds requests to warm up with.

    Returns:
        How far it is from the encoder.

    Raises:
        InputError: the messages of warm-up requests are not installed.
        OutputError: it cannot be written, or does not compute what the encoder does.
    """
    if warmup:
        import_messages()  # before the work
    served = ServedEncoder(encoder, attention, unit_norm)
    with _warnings_only(), _named_faults(folder):
        tf.saved_model.save(served, str(folder), signatures=served.functions)
    # Both sides of the comparison are computed by the processor.
    with tf.device("CPU:0"):
        requests = make_requests(encoder, attention, unit_norm)
    if warmup:
        with _named_faults(folder):
            write_warmup_requests(folder, requests)
    settings = {**settings, "signatures": sorted(served.functions), "versions": _versions()}
    text = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / SETTINGS_FILE).write_text(text + "\n", encoding="utf-8")
    return verify(folder, requests)


def is_saved_model(folder: pathlib.Path) -> bool:
    return (folder / "saved_model.pb").is_file()


@contextlib.contextmanager
def _warnings_only() -> Iterator[None]:
    """TensorFlow logs a page of made-up names a signature."""
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
        # The file of TensorFlow's own that it could not write, and after a semicolon why.
        reason = error.message.rpartition("; ")[2]
        raise OutputError(f"{folder}: cannot be written: {reason}") from error


def _versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {**found, "dcse_tf": dcse_tf.__version__, "python": platform.python_version()}
