"""Builds the graph of a checkpoint or of a baseline that was fitted to one."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from dcse_tf.baselines.registry import is_baseline, read_baseline
from dcse_tf.bert.bert import build_bert_encoder, load_backbone
from dcse_tf.bert.checkpoints import read_config, read_max_sequence_length
from dcse_tf.bert.fused_bert import FusedBert
from dcse_tf.bert.options import EncoderOptions
from dcse_tf.bert.sentence_modules import AffineMap, read_modules
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.bert.weights import read_bert_tensors
from dcse_tf.encoder.backend import hash_arrays
from dcse_tf.encoder.graph import EncoderGraph, GraphBackend
from dcse_tf.encoder.load import find_folder, refuse_reranker
from dcse_tf.encoder.model_options import ModelOptions
from dcse_tf.errors import InputError
from dcse_tf.matching.head_files import read_heads
from dcse_tf.matching.heads import AffineMaps
from dcse_tf.matching.matching import read_matching


def load_checkpoint(
    folder: pathlib.Path,
    options: ModelOptions,
    tensors: dict[str, np.ndarray] | None = None,
    vocabulary: Vocabulary | None = None,
) -> GraphBackend:
    """Loads a folder that holds a BERT; `options.model` is ignored.

    Args:
        folder: the checkpoint folder.
        options: how to run the encoder.
        tensors: weights to use in place of the folder's; the encoder then has no fingerprint.
        vocabulary: a vocabulary, with its prefix, to use in place of the folder's.
    """
    config = read_config(folder)
    own = read_bert_tensors(folder, config) if tensors is None else tensors
    bert = FusedBert(own, config, options.compute_dtype)
    graph = _build_graph(folder, config, bert, options, vocabulary)
    graph.source = folder if tensors is None else None
    return GraphBackend(graph, options.batch_tokens, options.compute_dtype)


_AS_IT_IS = EncoderOptions()


def load_graph(name: str, option: str, options: EncoderOptions = _AS_IT_IS) -> EncoderGraph:
    """Loads an encoder in a form that can be exported.

    Args:
        name: see `resolve_checkpoint`; or the folder of a baseline that was fitted to a BERT.
        option: the option that gives the name, for messages.
        options: pooling, prefix and length; the checkpoint's own by default.

    Raises:
        InputError: see `load_backend`.
    """
    folder = find_folder(name, option)
    refuse_reranker(folder, name, option)
    if is_baseline(folder) and read_baseline(folder).spec.make_encode:
        raise InputError(
            f"`{option}`={name}: is a baseline without an encoder, which cannot be exported"
        )
    bert = build_bert_encoder(load_backbone(folder))
    return _build_graph(folder, read_config(folder), bert, options)


def _build_graph(
    folder: pathlib.Path,
    config: dict[str, Any],
    bert: Callable[..., tf.Tensor],
    options: EncoderOptions,
    vocabulary: Vocabulary | None = None,
) -> EncoderGraph:
    length = options.max_sequence_length or read_max_sequence_length(folder)
    positions = config["max_position_embeddings"]
    if length > positions:
        raise InputError(f"`max_sequence_length`={length}: {folder} has {positions} positions")
    vocabulary = vocabulary or read_vocabulary(folder)
    if options.prefix:
        vocabulary = vocabulary.with_prefix(options.prefix)
    vocabulary.require_room(length)
    pooling, layer, fingerprint = _read_pooling(folder, options, config["hidden_size"])
    matching = read_matching(folder)
    return EncoderGraph(bert, vocabulary, length, pooling, layer, matching, folder, fingerprint)


def _read_pooling(
    folder: pathlib.Path, options: EncoderOptions, dim: int
) -> tuple[str, keras.layers.Layer | None, str]:
    """The pooling, "mean" or "cls"; the layer applied to pooled embeddings `[n, dim]`, if any; and
    a hash of what it computes: as the user asks, or by default as the checkpoint was made.
    """
    baseline = read_baseline(folder) if is_baseline(folder) else None
    modules = None if baseline else read_modules(folder)
    pooling = ""
    maps: Sequence[AffineMap] = ()
    if side := options.projection:
        heads = {} if baseline else read_heads(folder)
        if not heads:
            raise InputError(
                f"`projection`={side}: {folder} has no projection heads; expected the run of a "
                "training with `projection_dim`"
            )
        pooling, maps = "mean", heads[side]
    elif baseline:
        assert baseline.pooling
        pooling = baseline.pooling
    elif modules:
        if modules.unit_norm:
            logging.info(
                "%s scales its embeddings to unit length (Normalize); here they keep their "
                "length, export has `unit_norm`",
                folder,
            )
        if not modules.maps:
            return options.pooling or modules.pooling, None, ""
        pooling, maps = modules.pooling, modules.maps

    # What was fitted or trained behind one pooling has no meaning behind another.
    if pooling and options.pooling not in ("", pooling):
        raise InputError(f"`pooling`={options.pooling}: {folder} was made for `pooling`={pooling}")
    if baseline:
        fingerprint = hash_arrays(baseline.fitted.tensors, baseline.fitted.facts)
        return pooling, baseline.make(dim), fingerprint
    for step in maps:
        if len(step.matrix) != dim:
            raise InputError(f"{folder}: a Dense module of {len(step.matrix)}, expected {dim}")
        dim = step.matrix.shape[1]
    layer = AffineMaps(maps, name=f"{side}_head" if side else "dense") if maps else None
    return pooling or options.pooling or "mean", layer, _hash_maps(maps) if maps else ""


def _hash_maps(maps: Sequence[AffineMap]) -> str:
    arrays = {
        f"{place}/{name}": getattr(step, name)
        for place, step in enumerate(maps)
        for name in ("shift", "matrix", "bias")
    }
    rectified = [place for place, step in enumerate(maps) if step.relu]
    return hash_arrays(arrays, {"relu": rectified} if rectified else {})
