"""TensorFlow SavedModel: strings in, embeddings out, nothing else needed than tensorflow-text."""

import json
import pathlib
from typing import Any

import tensorflow as tf

from dcse_tf.models.sentence_encoder import SentenceEncoder

SIGNATURE = "serving_default"
_SETTINGS_FILE = "dcse_tf.json"


def write_saved_model(
    folder: pathlib.Path, encoder: SentenceEncoder, settings: dict[str, Any]
) -> None:
    """Writes a SavedModel whose serving signature takes `sentences` and gives `embeddings`.

    Args:
        folder: where to; it exists.
        encoder: what to export.
        settings: written beside the model, to tell exports apart.
    """
    tf.saved_model.save(encoder, str(folder), signatures={SIGNATURE: encoder.embed})
    (folder / _SETTINGS_FILE).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def is_saved_model(folder: pathlib.Path) -> bool:
    return (folder / "saved_model.pb").is_file()
