"""Exports an encoder as a sentence-transformers folder."""

import pathlib
from typing import Any

import keras
import numpy as np

from dcse_tf.bert import checkpoints
from dcse_tf.bert.sentence_modules import (
    AffineMap,
    SentenceModules,
    describe_prefix,
    write_modules,
)
from dcse_tf.bert.tokenizer import number_as_written
from dcse_tf.bert.weights import POOLER, read_bert_tensors, write_bert
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.errors import InputError
from dcse_tf.files import write_json
from dcse_tf.matching.affine import AffineMaps


def list_maps(layer: keras.layers.Layer | None, form: str) -> tuple[AffineMap, ...]:
    """The affine maps of an encoder's postprocessing, in order.

    Args:
        layer: the postprocessing, see `EncoderGraph`; None for none.
        form: the export's `format`, for the message.

    Raises:
        InputError: the postprocessing is not affine, such as a flow.
    """
    if layer is None:
        return ()
    if isinstance(layer, AffineMaps):
        return layer.maps
    raise InputError(
        f"`format`={form}: a {layer.name} is not an affine map of embeddings and cannot be written "
        "in this format; `format`=saved_model can hold it"
    )


FORMAT = "sentence_transformers"


def write_sentence_transformers(
    folder: pathlib.Path, encoder: EncoderGraph, unit_norm: bool
) -> None:
    """Writes an encoder as sentence-transformers saves one: transformer, pooling, other modules.

    Args:
        folder: an existing folder to write to.
        encoder: the encoder to export, read from a checkpoint.
        unit_norm: whether embeddings are scaled to unit length.

    Raises:
        InputError: the library has no module for a part of the encoder.
    """
    maps = list_maps(encoder.postprocessing, FORMAT)
    assert encoder.source
    config = true_config(encoder.source)
    write_bert(folder, config, read_bert_tensors(encoder.source, config) | _make_pooler(config))
    vocabulary = number_as_written(encoder.vocabulary, config)
    vocabulary.write_tokenizer(folder, encoder.max_sequence_length)
    checkpoints.write_max_sequence_length(folder, encoder.max_sequence_length, pooler=True)
    modules = SentenceModules(encoder.pooling, maps, unit_norm)
    write_modules(folder, modules, config["hidden_size"])
    settings: dict[str, Any] = {
        **describe_prefix(encoder.vocabulary.prefix),
        "similarity_fn_name": "cosine",
    }
    write_json(folder / "config_sentence_transformers.json", settings, sort_keys=True)


def _make_pooler(config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Random weights for BERT's pooler, which sentence embeddings do not depend on.

    Without them transformers initialises the pooler at random and warns about it. The setting that
    leaves the pooler out is rejected by sentence-transformers' ONNX backend.
    """
    dim = config["hidden_size"]
    kernel = np.random.default_rng(0).normal(0.0, 0.02, [dim, dim])
    return {
        f"{POOLER}.weight": kernel.astype(np.float32),
        f"{POOLER}.bias": np.zeros(dim, np.float32),
    }


def true_config(source: pathlib.Path) -> dict[str, Any]:
    """The configuration of a checkpoint's BERT, without the entries about how it was made."""
    config = checkpoints.read_config(source)
    for name in ("_name_or_path", "torch_dtype", "transformers_version"):
        config.pop(name, None)
    return {
        **config,
        "dtype": "float32",
        "model_type": "bert",
    }
