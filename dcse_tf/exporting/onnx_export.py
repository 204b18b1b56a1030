"""Exports encoders and re-rankers as ONNX models, and checks that the files compute the same."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from dcse_tf.bert import checkpoints, sentence_modules
from dcse_tf.bert.vocabulary import NO_CANDIDATE, Vocabulary
from dcse_tf.bert.weights import read_bert_tensors
from dcse_tf.encoder.exported_models import SETTINGS_FILE, OnnxBackend
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.errors import InputError
from dcse_tf.exporting import onnx_graph, probes
from dcse_tf.exporting.export_formats import ExportOptions, Facts
from dcse_tf.exporting.saved_model import export_fingerprint
from dcse_tf.exporting.sentence_transformers import list_maps, true_config
from dcse_tf.files import hash_file, write_json
from dcse_tf.reading.reranker_files import write_reranker_settings
from dcse_tf.reranker import scorers

# The largest difference of an embedding, as a share of its length; and of a score, multiplied by
# the scores' standard deviation if that is beyond 1.
TOLERANCE = 1e-4
# For eight bits: the largest difference of an embedding, as a share of its length (a cosine of 0.98
# with the encoder's), and of a score, as a share of the scores' standard deviation. Trained
# encoders of six and twelve layers had cosines of 0.993 and 0.998, and re-rankers with random heads
# 0.13 to 0.18. With one scale for the activations of a whole batch they had 0.96 and 0.97, and 0.6
# to 2.1.
MOST_OF_LENGTH, MOST_OF_SPREAD = 0.199, 0.35
# The largest difference of what is computed alone from that in a batch: trained encoders had none
# beyond float32's rounding, and with one scale for a whole batch up to a third of the length.
MOST_APART = 0.01
_TOGETHER = 4096  # tokens of a batch


@probes.no_warnings()
def write_encoder(folder: pathlib.Path, encoder: EncoderGraph, options: ExportOptions) -> Facts:
    """Writes model.onnx, and the tokenizer's files, the configuration and settings beside it; see
    `register_export`.
    """
    assert encoder.source
    config, maps = true_config(encoder.source), list_maps(encoder.postprocessing, "onnx")
    tensors, length = read_bert_tensors(encoder.source, config), encoder.max_sequence_length
    model = onnx_graph.build_encoder(tensors, config, encoder.pooling, maps, options.unit_norm)
    checkpoints.write_max_sequence_length(folder, length)
    sentence_modules.write_prefix(folder, encoder.vocabulary.prefix)
    expected = probes.embed(encoder, options.unit_norm)
    norms = np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1e-12)

    def differ(batch_tokens: int) -> np.ndarray:
        rows, *_ = OnnxBackend(folder, batch_tokens).embed_texts(probes.SENTENCES)
        return (rows - expected) / norms

    settings = {
        "fingerprint": export_fingerprint(encoder, options.unit_norm),
        "pooling": encoder.pooling,
        "unit_norm": options.unit_norm,
        "projection": options.projection,
    }
    own = folder, options, config, encoder.vocabulary, length, settings
    return _write(*own, model, "an embedding", differ, (TOLERANCE, MOST_OF_LENGTH))


@probes.no_warnings()
def write_reranker(
    folder: pathlib.Path, model: scorers.RerankerFolder, options: ExportOptions
) -> Facts:
    """Writes a re-ranker as `write_encoder` does an encoder; see `register_export`."""
    settings = model.settings
    if settings.architecture != scorers.BERT:
        why = f"cannot hold a re-ranker of the architecture {settings.architecture}"
        raise InputError(f"`format`=onnx: {why}; `format`=saved_model can")
    config, longest = true_config(model.path), settings.first_tokens + settings.second_tokens
    write_reranker_settings(folder, settings)
    written = dataclasses.replace(model, path=folder)
    expected = probes.score(model, batch_tokens=_TOGETHER)
    real = expected > NO_CANDIDATE
    spread = float(expected[real].std())

    def differ(batch_tokens: int) -> np.ndarray:
        scores = probes.score(written, scorers.load_onnx_scorer, batch_tokens)
        return (scores - expected)[real, np.newaxis] / spread

    limits = TOLERANCE * max(1.0, 1.0 / spread), MOST_OF_SPREAD
    graph = onnx_graph.build_cross_encoder(scorers.read_weights(model), config)
    facts = {"fingerprint": scorers.hash_reranker(model)}
    own = folder, options, config, model.vocabulary, longest, facts
    return _write(*own, graph, "a score", differ, limits)


def _write(
    folder: pathlib.Path,
    options: ExportOptions,
    config: dict[str, Any],
    vocabulary: Vocabulary,
    longest: int,
    settings: dict[str, Any],
    model: onnx.ModelProto,
    what: str,
    differ: Callable[[int], np.ndarray],
    limits: tuple[float, float],
) -> Facts:
    """Writes model.onnx and what is beside it, for `OnnxFile`, and refuses a model that computes
    something else than is expected: `differ` gives the differences of `what` in batches of at most
    so many tokens, float `[n, k]`. The `limits` are for float32 and for eight bits.
    """
    write_json(folder / "config.json", config, sort_keys=True)
    vocabulary.write_tokenizer(folder, longest)
    path = folder / checkpoints.ONNX_FILE
    kinds = ("float32",) if options.quantize == "none" else ("float32", options.quantize)
    for kind, limit in zip(kinds, limits):
        facts, mark = Facts(), ""
        if kind == "int8":
            facts, mark = {"weights": kind}, "eight bits: "
            del settings["fingerprint"]  # of other embeddings
            ends = vocabulary.cls_id, vocabulary.sep_id
            magnitudes = onnx_graph.measure_channels(model, ends, longest)
            model = onnx_graph.quantize_model(model, magnitudes)
        onnx.checker.check_model(model)
        onnx.save(model, path)
        alone, together = differ(1), differ(_TOGETHER)
        difference, apart = (
            float(np.linalg.norm(rows, axis=1).max())
            for rows in (np.concatenate([alone, together]), alone - together)
        )
        measured = [(f"{mark}difference of {what} from the model's", difference, limit)]
        if kind == "int8":
            measured.append((f"{mark}{what} alone and in a batch", apart, MOST_APART))
        facts |= probes.refuse(path, measured)
    settings |= {"compute_dtype": kind, "sha256": hash_file(path)}
    write_json(folder / SETTINGS_FILE, settings, sort_keys=True)
    return facts
