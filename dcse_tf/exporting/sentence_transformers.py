"""Exports encoders and re-rankers as folders for sentence-transformers and transformers."""

import pathlib
from typing import Any

import keras
import numpy as np

from dcse_tf.bert import checkpoints, weights
from dcse_tf.bert.sentence_modules import AffineMap, SentenceModules, write_modules, write_prefix
from dcse_tf.bert.tokenizer import number_as_written
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.errors import InputError
from dcse_tf.exporting.export_formats import ExportOptions, Facts
from dcse_tf.files import write_json
from dcse_tf.input_files import read_json_object
from dcse_tf.matching.heads import AffineMaps
from dcse_tf.reading.reranker_files import write_reranker_settings
from dcse_tf.reranker.scorers import BERT, RerankerFolder, read_weights

# The library applies this to the logits; its default is the sigmoid.
_IDENTITY = "torch.nn.modules.linear.Identity"


def list_maps(layer: keras.layers.Layer | None, form: str) -> tuple[AffineMap, ...]:
    """The affine maps of an encoder's postprocessing, in order; InputError if it is not affine,
    such as a flow, which `form` cannot hold.
    """
    if layer is None:
        return ()
    if isinstance(layer, AffineMaps):
        return layer.maps
    raise InputError(
        f"`format`={form}: a {layer.name} is not an affine map of embeddings and cannot be written "
        "in this format; `format`=saved_model can hold it"
    )


def write_encoder(folder: pathlib.Path, encoder: EncoderGraph, options: ExportOptions) -> Facts:
    """Writes an encoder as sentence-transformers saves one: transformer, pooling, other modules;
    see `register_export`. The library has no module for some postprocessings.
    """
    maps = list_maps(encoder.postprocessing, "sentence_transformers")
    assert encoder.source
    config = true_config(encoder.source)
    # Random weights for BERT's pooler, which embeddings do not depend on: without them transformers
    # draws some and warns. sentence-transformers' ONNX backend rejects the setting that leaves the
    # pooler out.
    dim = config["hidden_size"]
    kernel = np.random.default_rng(0).normal(0.0, 0.02, [dim, dim]).astype(np.float32)
    pooler = {"weight": kernel, "bias": np.zeros(dim, np.float32)}
    tensors = weights.read_bert_tensors(encoder.source, config)
    tensors |= {f"{weights.POOLER}.{part}": value for part, value in pooler.items()}
    weights.write_bert(folder, config, tensors)
    vocabulary = number_as_written(encoder.vocabulary, config)
    vocabulary.write_tokenizer(folder, encoder.max_sequence_length)
    checkpoints.write_max_sequence_length(folder, encoder.max_sequence_length, pooler=True)
    write_modules(folder, SentenceModules(encoder.pooling, maps, options.unit_norm), dim)
    write_prefix(folder, encoder.vocabulary.prefix, similarity_fn_name="cosine")
    return {}


def write_reranker(folder: pathlib.Path, model: RerankerFolder, options: ExportOptions) -> Facts:
    """Writes a folder that sentence-transformers' CrossEncoder and transformers load; see
    `register_export`.

    The library has one limit for the tokens of a pair and truncates on the left; here context and
    response have a limit each. Scores are equal as long as neither exceeds its own limit.
    """
    settings = model.settings
    if settings.architecture != BERT or settings.speakers:
        raise InputError(
            "`format`=sentence_transformers: cannot hold a re-ranker "
            + ("that knows who speaks" if settings.speakers else f"of {settings.architecture}")
            + "; `format`=saved_model can"
        )
    config: dict[str, Any] = {
        **true_config(model.path),
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "sentence_transformers": {"activation_fn": _IDENTITY},
        "sbert_ce_default_activation_function": _IDENTITY,  # before version 4
    }
    write_json(folder / "config.json", config, sort_keys=True)
    tensors = {
        name if name.startswith(weights.CLASSIFIER) else f"bert.{name}": np.ascontiguousarray(value)
        for name, value in read_weights(model).items()
    }
    weights.write_tensors(folder, tensors)
    model.vocabulary.write_tokenizer(folder, settings.first_tokens + settings.second_tokens)
    path = folder / "tokenizer_config.json"
    write_json(path, {**read_json_object(path), "truncation_side": "left"}, sort_keys=True)
    write_reranker_settings(folder, settings)  # so that `Reranker.load` can read the folder too
    return {}


def true_config(source: pathlib.Path) -> dict[str, Any]:
    """The configuration of a checkpoint's BERT, without the entries about how it was made."""
    made = ("_name_or_path", "torch_dtype", "transformers_version")
    config = {x: value for x, value in checkpoints.read_config(source).items() if x not in made}
    return {**config, "dtype": "float32", "model_type": "bert"}
