"""Exports encoders and re-rankers as ONNX models, and checks that the files compute the same."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from dcse_tf.bert import checkpoints, sentence_modules
from dcse_tf.bert.vocabulary import NO_CANDIDATE, Vocabulary
from dcse_tf.bert.weights import read_bert_tensors
from dcse_tf.encoder.exported_models import MODEL_FILE, SETTINGS_FILE, OnnxBackend
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.errors import InputError
from dcse_tf.exporting import probes
from dcse_tf.exporting.eight_bits import measure_channels, quantize_model
from dcse_tf.exporting.export_formats import ExportOptions, Facts
from dcse_tf.exporting.onnx_graph import build_cross_encoder, build_encoder
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
    model = build_encoder(tensors, config, encoder.pooling, maps, options.unit_norm)
    checkpoints.write_max_sequence_length(folder, length)
    sentence_modules.write_prefix(folder, encoder.vocabulary.prefix)
    expected = probes.embed(encoder, options.unit_norm)
    norms = np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1e-12)

    def compute(batch_tokens: int) -> np.ndarray:
        return OnnxBackend(folder, batch_tokens).embed_texts(probes.SENTENCES)[0] / norms

    limits = TOLERANCE, MOST_OF_LENGTH
    check = functools.partial(_check, "an embedding", expected / norms, compute, limits)
    settings = {
        "fingerprint": export_fingerprint(encoder, options.unit_norm),
        "pooling": encoder.pooling,
        "unit_norm": options.unit_norm,
        "projection": options.projection,
    }
    return _write(folder, model, config, encoder.vocabulary, length, options, settings, check)


@probes.no_warnings()
def write_reranker(
    folder: pathlib.Path, model: scorers.RerankerFolder, options: ExportOptions
) -> Facts:
    """Writes a re-ranker as `write_encoder` does an encoder; see `register_export`."""
    settings = model.settings
    if settings.architecture != scorers.BERT:
        raise InputError(
            f"`format`=onnx: cannot hold a re-ranker of the architecture {settings.architecture}; "
            "`format`=saved_model can"
        )
    config, longest = true_config(model.path), settings.first_tokens + settings.second_tokens
    write_reranker_settings(folder, settings)
    written = dataclasses.replace(model, path=folder)
    expected = probes.score(model, scorers.load_checkpoint_scorer(model), _TOGETHER)
    real = expected > NO_CANDIDATE
    spread = float(expected[real].std())

    def compute(batch_tokens: int) -> np.ndarray:
        scores = probes.score(model, scorers.load_onnx_scorer(written), batch_tokens)
        return scores[real, np.newaxis] / spread

    limits = TOLERANCE * max(1.0, 1.0 / spread), MOST_OF_SPREAD
    true = expected[real, np.newaxis] / spread
    check = functools.partial(_check, "a score", true, compute, limits)
    graph = build_cross_encoder(scorers.read_weights(model), config)
    facts = {"fingerprint": scorers.hash_reranker(model)}
    return _write(folder, graph, config, model.vocabulary, longest, options, facts, check)


def _write(
    folder: pathlib.Path,
    model: onnx.ModelProto,
    config: dict[str, Any],
    vocabulary: Vocabulary,
    longest: int,
    options: ExportOptions,
    settings: dict[str, Any],
    check: Callable[..., Facts],
) -> Facts:
    """Writes model.onnx and its settings, which `OnnxFile.written` reads; `check` writes and checks
    the model, see `_check`.
    """
    write_json(folder / "config.json", config, sort_keys=True)
    vocabulary.write_tokenizer(folder, longest)
    path = folder / MODEL_FILE
    facts = check(path, model)
    if options.quantize == "int8":
        del settings["fingerprint"]  # of other embeddings
        magnitudes = measure_channels(model, (vocabulary.cls_id, vocabulary.sep_id), longest)
        model = quantize_model(model, magnitudes)
        facts = {"weights": "int8"} | check(path, model, "eight bits: ")
    settings |= {
        "compute_dtype": "float32" if options.quantize == "none" else options.quantize,
        "sha256": hash_file(path),
    }
    write_json(folder / SETTINGS_FILE, settings, sort_keys=True)
    return facts


def _check(
    what: str,
    expected: np.ndarray,
    compute: Callable[[int], np.ndarray],
    limits: tuple[float, float],
    path: pathlib.Path,
    model: onnx.ModelProto,
    eight_bits: str = "",
) -> Facts:
    """Writes a model and refuses one that computes something else than `expected`, float `[n, k]`,
    in batches of at most so many tokens. The `limits` are for float32 and for eight bits, whose
    messages begin with `eight_bits`.
    """
    onnx.checker.check_model(model)
    onnx.save(model, path)
    alone, together = compute(1), compute(_TOGETHER)

    def apart(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.linalg.norm(one - other, axis=1).max())

    difference = max(apart(alone, expected), apart(together, expected))
    told = f"{eight_bits}difference of {what} from the model's"
    measured = [(told, difference, limits[bool(eight_bits)])]
    if eight_bits:
        told = f"{eight_bits}{what} alone and in a batch"
        measured.append((told, apart(alone, together), MOST_APART))
    return probes.refuse(path, measured)
