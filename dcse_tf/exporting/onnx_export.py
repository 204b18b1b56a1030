"""Exports encoders and re-rankers as ONNX models, and checks that the files compute the same."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from dcse_tf.bert import checkpoints, sentence_modules
from dcse_tf.bert.blanks import NO_CANDIDATE
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.bert.weights import read_bert_tensors
from dcse_tf.encoder.exports import MODEL_FILE, SETTINGS_FILE, OnnxBackend
from dcse_tf.encoder.graph import EncoderGraph, GraphBackend
from dcse_tf.errors import InputError
from dcse_tf.exporting.eight_bits import quantize
from dcse_tf.exporting.export_options import ExportOptions
from dcse_tf.exporting.onnx_graph import build_cross_encoder, build_encoder
from dcse_tf.exporting.probes import CANDIDATES, CONTEXTS, SENTENCES, no_warnings, refuse
from dcse_tf.exporting.saved_model import export_fingerprint
from dcse_tf.exporting.sentence_transformers import list_maps, true_config
from dcse_tf.files import hash_file, write_json
from dcse_tf.reading.reranker_files import write_reranker_settings
from dcse_tf.reranker import scorers
from dcse_tf.reranker.reranker import Reranker

# The largest difference of an embedding, as a share of its length; and of a score, multiplied by
# the scores' standard deviation if that is beyond 1.
TOLERANCE = 1e-4
# For eight bits. Of embeddings, the smallest cosine with the encoder's, and the largest difference
# of a text's embedding alone from that in a batch, as a share of its length. Trained encoders of
# six and twelve layers had 0.993 and 0.998, and no difference beyond float32's rounding. With one
# scale for the activations of a whole batch they had 0.96 and 0.97, and an embedding changed by up
# to a third of its length.
LEAST_COSINE, MOST_APART = 0.98, 0.01
# Of scores, as shares of their standard deviation: the difference from the re-ranker's. Not the
# order, which is a matter of luck where scores are nearly equal. Re-rankers with random heads had
# 0.13 to 0.18; one scale for the activations of a whole batch gave 0.6 to 2.1.
MOST_DIFFERENT = 0.35

Measured = list[tuple[str, float, float]]


def write_encoder(
    folder: pathlib.Path, encoder: EncoderGraph, options: ExportOptions
) -> dict[str, str]:
    """Writes model.onnx, and the tokenizer's files, the configuration and settings beside it; see
    `ExportFormat`.
    """
    assert encoder.source
    config, maps = true_config(encoder.source), list_maps(encoder.postprocessing, "onnx")
    tensors = read_bert_tensors(encoder.source, config)
    build = functools.partial(
        build_encoder, tensors, config, encoder.pooling, maps, options.unit_norm
    )
    length = encoder.max_sequence_length
    encoder.vocabulary.write_tokenizer(folder, length)
    checkpoints.write_max_sequence_length(folder, length)
    sentence_modules.write_prefix(folder, encoder.vocabulary.prefix)
    write_json(folder / "config.json", config, sort_keys=True)
    settings = {
        "fingerprint": export_fingerprint(encoder, options.unit_norm),
        "pooling": encoder.pooling,
        "unit_norm": options.unit_norm,
        "projection": options.projection,
    }
    true = GraphBackend(encoder)

    def measure(kind: str) -> Measured:
        file = OnnxBackend(folder, batch_tokens=4096)
        rows, lengths, _ = file.read(SENTENCES)
        expected = true.embed_inputs(rows, lengths).astype(np.float64)
        if options.unit_norm:
            expected /= _norms(expected)
        together = file.embed_inputs(rows, lengths)
        file.batch_tokens = 1
        alone = file.embed_inputs(rows, lengths)

        norms = _norms(expected)
        found, expected = np.concatenate([alone, together]), np.concatenate([expected, expected])
        difference = float((_norms(found - expected) / _norms(expected)).max())
        if kind == "none":
            return [("difference from the encoder, share of length", difference, TOLERANCE)]
        cosines = (found * expected).sum(axis=1, keepdims=True) / _norms(found) / _norms(expected)
        apart = float((_norms(alone - together) / norms).max())
        return [
            ("eight bits: 1 - cosine with the encoder", 1 - cosines.min(), 1 - LEAST_COSINE),
            ("eight bits: a text alone and in a batch apart, share of length", apart, MOST_APART),
        ]

    return _write(folder, build, encoder.vocabulary, length, options, settings, measure)


def write_reranker(
    folder: pathlib.Path, model: scorers.RerankerFolder, options: ExportOptions
) -> dict[str, str]:
    """Writes a re-ranker as `write_encoder` does an encoder; see `ExportFormat`."""
    settings = model.settings
    if settings.architecture != scorers.BERT:
        raise InputError(
            f"`format`=onnx: cannot hold a re-ranker of the architecture {settings.architecture}; "
            "`format`=saved_model can"
        )
    config = true_config(model.path)
    build = functools.partial(build_cross_encoder, scorers.read_weights(model), config)
    longest = settings.first_tokens + settings.second_tokens
    model.vocabulary.write_tokenizer(folder, longest)
    write_reranker_settings(folder, settings)
    write_json(folder / "config.json", config, sort_keys=True)

    def score(scorer: Any, batch_tokens: int) -> np.ndarray:
        reranker = Reranker(scorer, settings, model.vocabulary, batch_tokens=batch_tokens)
        return np.stack(reranker.score(CONTEXTS, CANDIDATES, show_progress=False))

    with no_warnings():
        expected = score(scorers.load_checkpoint_scorer(model), 4096)

    def measure(kind: str) -> Measured:
        file = scorers.load_onnx_scorer(dataclasses.replace(model, path=folder))
        alone, together = (score(file, tokens) for tokens in (1, 4096))
        real = expected > NO_CANDIDATE
        spread = float(expected[real].std())
        difference = float(max(np.abs(x - expected)[real].max() for x in (alone, together)))
        if kind == "none":
            most = TOLERANCE * max(1.0, spread)
            return [("difference of a score from the re-ranker's", difference, most)]
        apart = float(np.abs(alone - together)[real].max())
        return [
            ("eight bits: difference of a score", difference, MOST_DIFFERENT * spread),
            ("eight bits: a score alone and in a batch apart", apart, MOST_APART * spread),
        ]

    written = {"fingerprint": scorers.hash_reranker(model)}
    return _write(folder, build, model.vocabulary, longest, options, written, measure)


def _write(
    folder: pathlib.Path,
    build: Callable[..., onnx.ModelProto],
    vocabulary: Vocabulary,
    longest: int,
    options: ExportOptions,
    settings: dict[str, Any],
    measure: Callable[[str], Measured],
) -> dict[str, str]:
    """Writes model.onnx, checks it, and writes its settings, which `OnnxFile.written` reads.

    `build` builds the model by the `make_graph` it is given; `measure` compares the file with the
    model, by the measures of the option `quantize` it is given.
    """
    path = folder / MODEL_FILE
    model = build()
    onnx.checker.check_model(model)
    onnx.save(model, path)
    with no_warnings():
        measured = measure("none")
    facts = refuse(path, measured)
    kind = "float32"
    if options.quantize == "int8":
        kind = "int8"
        del settings["fingerprint"]  # of other embeddings
        ends = vocabulary.cls_id, vocabulary.sep_id
        onnx.save(quantize(model, build, ends, longest), path)
        with no_warnings():
            measured = measure("int8")
        facts = {"weights": kind} | refuse(path, measured)
    settings |= {"compute_dtype": kind, "sha256": hash_file(path)}
    write_json(folder / SETTINGS_FILE, settings, sort_keys=True)
    return facts


def _norms(rows: np.ndarray) -> np.ndarray:
    """float `[rows, 1]`."""
    return np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
