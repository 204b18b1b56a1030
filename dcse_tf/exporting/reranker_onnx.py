"""Exports a cross-encoder as an ONNX model, from token ids to scores."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import tensorflow as tf
from absl import logging
from onnx import TensorProto, helper

from dcse_tf.bert.weights import CLASSIFIER, POOLER, SPEAKER_TABLE
from dcse_tf.encoder.onnx import INPUTS, MODEL_FILE
from dcse_tf.errors import OutputError
from dcse_tf.exporting import eight_bits
from dcse_tf.exporting.onnx import write_settings
from dcse_tf.exporting.onnx_graph import Graph, add_dense, add_layer, embed, pool
from dcse_tf.exporting.sentence_transformers import true_config
from dcse_tf.files import write_json
from dcse_tf.reading.reranker_files import write_reranker_settings
from dcse_tf.reranker.checkpoint import fingerprint
from dcse_tf.reranker.cross_encoder import CrossEncoder, read_tensors
from dcse_tf.reranker.graph import RerankerGraph
from dcse_tf.reranker.onnx import OUTPUT, SEGMENTS, SPEAKERS, OnnxReranker

TOLERANCE = 1e-4  # multiplied by the scores' standard deviation if that is beyond 1
# For eight bits, as shares of the scores' standard deviation: a score's difference from the
# re-ranker's, and between two batches. Not the order, which is a matter of luck where scores are
# nearly equal. Re-rankers with random heads had 0.13 to 0.18; one scale for the activations of a
# whole batch gave 0.6 to 2.1.
MOST_DIFFERENT, MOST_APART = 0.35, 0.01
_CONTEXTS = [
    ["where is my parcel?"],
    ["您好，我的快递什么时候能到？", "请稍等", "好的"],
    ["Hello!", "I'd like a refund for the blue cup, it broke on the 3rd day.", "Sorry.", ""],
    ["а когда доставка? " * 40, "ok"],
]
_RESPONSES = ["it left today", "好的。", "", "We pay back the price of the cup. " * 20, "no"]

# From `SequenceModel.make_inputs`, in the order of the model's inputs.
_INPUTS = ("token_ids", "padding_mask", "segment_ids", "speaker_ids")


def build_onnx_graph(
    tensors: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    make_graph: Callable[[Mapping[str, Any], tuple[str, ...]], Graph] = Graph,
) -> onnx.ModelProto:
    """Builds the model from token ids, attention mask, segment ids and, with speaker embeddings,
    speaker ids, each int64 `[batch, tokens]`, to logits, float32 `[batch]`.

    Args:
        tensors: see `dcse_tf.reranker.cross_encoder.read_tensors`.
        config: the BERT's configuration, see `read_config`.
        make_graph: makes the graph to add to, from the configuration and the inputs' names.
    """
    segments = tensors["embeddings.token_type_embeddings.weight"]
    tables = {SEGMENTS: segments - segments[0]}
    if SPEAKER_TABLE in tensors:
        tables[SPEAKERS] = tensors[SPEAKER_TABLE]
    graph = make_graph(config, (*INPUTS, *tables))
    _, bias = graph.mask_bias()
    x = embed(graph, tensors, tables)
    layers = sum(name.endswith(".intermediate.dense.bias") for name in tensors)
    for index in range(layers):
        # The head reads only [CLS].
        last = index == layers - 1
        x = add_layer(graph, tensors, f"encoder.layer.{index}", x, bias, last)
    x = pool(graph, x, "", "cls")
    x = graph.add("Tanh", add_dense(graph, tensors, POOLER, x))
    x = add_dense(graph, tensors, CLASSIFIER, x)
    graph.add("Squeeze", x, graph.constant([1]), name=OUTPUT)
    return graph.build([helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch"])])


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far the file's scores are from the re-ranker's, on a few pairs.

    Attributes:
        difference: the largest absolute difference of a score.
        apart: the largest difference between a pair's scores in two batches.
        spread: standard deviation of the re-ranker's scores.
        same_order: of all pairs of candidates of one context that the re-ranker scores differently,
            the share that the file puts into the same order.
        pairs: number of (context, response) pairs that were scored.
        quantize: as in `write_reranker`.
    """

    difference: float
    apart: float
    spread: float
    same_order: float
    pairs: int
    quantize: str

    def describe(self) -> dict[str, str]:
        """A fact for the model card."""
        found = f"scores within {self.difference:.1e} of the trained re-ranker's"
        if self.quantize == "none":
            return {"compared with the trained re-ranker": f"{found}, on {self.pairs} pairs"}
        return {
            "weights": f"{self.quantize}; on {self.pairs} pairs {found}, whose standard deviation "
            f"is {self.spread:.2g}, and in different batches at most {self.apart:.1e} apart; "
            f"{self.same_order:.0%} of the pairs of candidates keep their order"
        }

    def check(self, path: pathlib.Path) -> None:
        """Refuses a file whose scores are too far from the re-ranker's.

        Raises:
            OutputError: they are.
        """
        allowed = TOLERANCE * max(1.0, self.spread)
        if self.quantize == "none" and not self.difference <= allowed:
            raise OutputError(
                f"{path}: its scores differ from the re-ranker's by {self.difference:.1e}, "
                f"expected at most {allowed:.1e}"
            )
        most, apart = MOST_DIFFERENT * self.spread, MOST_APART * self.spread
        if self.quantize != "none" and not (self.difference <= most and self.apart <= apart):
            raise OutputError(
                f"{path}: eight bits are too coarse for this re-ranker: scores differ from its own "
                f"by {self.difference:.1e} and between batches by {self.apart:.1e}; expected at "
                f"most {most:.1e} and {apart:.1e}. Export it without `quantize`"
            )


def write_reranker(
    folder: pathlib.Path, model: CrossEncoder, graph: RerankerGraph, quantize: str
) -> Agreement:
    """Writes model.onnx, and the tokenizer's files and the configurations beside it.

    Args:
        folder: an existing folder to write to.
        model: the model to export.
        graph: the re-ranker that it belongs to.
        quantize: "none", or "int8" for 8-bit weights, see `EightBitGraph`.

    Returns:
        How closely the file's scores agree with the re-ranker's.

    Raises:
        OutputError: the file's scores differ from the re-ranker's; in eight bits: by too much, or
            a pair's between batches.
    """
    config, settings = true_config(graph.source), graph.settings
    build = functools.partial(build_onnx_graph, read_tensors(graph.source, settings), config)
    content = build()
    onnx.checker.check_model(content)
    path = folder / MODEL_FILE
    onnx.save(content, path)
    agreement = _compare(folder, model, graph, "none")
    agreement.check(path)
    if quantize == "int8":
        ends = graph.vocabulary.cls_id, graph.vocabulary.sep_id
        longest = settings.first_tokens + settings.second_tokens
        onnx.save(eight_bits.quantize(content, build, ends, longest), path)
        agreement = _compare(folder, model, graph, quantize)
        agreement.check(path)
    logging.info("%s: largest difference of a score %.1e", path.name, agreement.difference)
    graph.vocabulary.write_tokenizer(folder, settings.first_tokens + settings.second_tokens)
    write_reranker_settings(folder, settings)
    write_json(folder / "config.json", config, sort_keys=True)
    write_settings(folder, quantize, fingerprint(graph))
    return agreement


def _compare(
    folder: pathlib.Path, model: CrossEncoder, graph: RerankerGraph, quantize: str
) -> Agreement:
    """Compares all pairs in one batch, then each context's pairs, to check that batch and length
    are dynamic.
    """
    file = OnnxReranker(folder, graph.settings, graph.vocabulary, model.rule).file
    every, count = list(range(len(_CONTEXTS))), len(_RESPONSES)
    found: list[np.ndarray] = []
    expected: list[np.ndarray] = []
    for rows in (every, *([row] for row in every)):
        inputs = _make_inputs(model, graph, rows)
        given = (inputs[name].numpy() for name in _INPUTS if name in inputs)
        found.append(file.run(*given).reshape(-1, count))
        expected.append(model.scorer.score(inputs).numpy().reshape(-1, count))
    a, b = np.concatenate(found), np.concatenate(expected)
    before, after = (np.sign(x[:, :, None] - x[:, None]) for x in (b, a))
    different = before != 0
    return Agreement(
        difference=float(np.abs(a - b).max()),
        apart=float(np.abs(a[: len(every)] - a[len(every) :]).max()),
        spread=float(b.std()),
        same_order=float((before == after)[different].mean()) if different.any() else 1.0,
        pairs=len(_CONTEXTS) * count,
        quantize=quantize,
    )


def _make_inputs(
    model: CrossEncoder, graph: RerankerGraph, rows: list[int]
) -> dict[str, tf.Tensor]:
    """The inputs for every response in each of some contexts."""
    contexts = [_CONTEXTS[row] for row in rows]
    strings = [text for group in (*contexts, _RESPONSES) for text in group]
    texts = graph.tokenize(tf.constant(strings))
    counts = [len(turns) for turns in contexts]
    turns = tf.RaggedTensor.from_row_lengths(tf.range(sum(counts)), counts)
    joined = graph.join_turns(texts, turns, turns.with_values(turns.values % 2))
    first = tf.gather(joined, np.repeat(range(len(rows)), len(_RESPONSES)))
    second = tf.gather(texts, np.tile(np.arange(len(_RESPONSES)) + sum(counts), len(rows)))
    ids, speakers = (first.with_values(first.values[:, i]) for i in range(2))
    return model.make_inputs(ids, second, speakers)
