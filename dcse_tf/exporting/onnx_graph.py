"""Builds ONNX models, operation by operation, from the tensors of a checkpoint.

Converting the TensorFlow graph (tf2onnx) gives the same numbers, but takes a minute and makes four
times as many nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dcse_tf.bert import checkpoints
from dcse_tf.bert.families import BUCKET_OF, FARTHEST, RELATIVE_BIAS
from dcse_tf.bert.sentence_modules import AffineMap
from dcse_tf.bert.weights import CLASSIFIER, POOLER, SPEAKER_TABLE
from dcse_tf.encoder.exports import INPUTS, OUTPUT
from dcse_tf.errors import InputError
from dcse_tf.reranker import scorers

# Opset 20 is the first with a Gelu operation, and IR version 9 the first that supports it.
_OPSET, _IR_VERSION = 20, 9
_MASKED = -1e9
# Bytes of weights that a file holds: protobuf's limit, less a margin for everything else.
_LARGEST = 2**31 - 2**20
_SMALLEST_NORM = 1e-12  # as in torch.nn.functional.normalize


class Graph:
    """Collects the nodes and constants of an ONNX graph; methods return the names of results.

    Args:
        config: the BERT's configuration, see `read_config`.
        inputs: names of the inputs, each int64 `[batch, tokens]`; the first has the token ids.
    """

    def __init__(self, config: Mapping[str, Any], inputs: Sequence[str]) -> None:
        self.epsilon = float(config["layer_norm_eps"])
        self.num_heads = int(config["num_attention_heads"])
        self.gelu = "tanh" if checkpoints.approximates_gelu(config) else "none"
        self.inputs = inputs
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, value: np.ndarray | Sequence[int] | float, name: str = "") -> str:
        array = np.array(value, np.float32) if isinstance(value, float) else np.array(value)
        name = name or f"constant_{len(self.constants)}"
        self.constants[name] = array
        return name

    def add(self, operation: str, *inputs: str, name: str = "", **attributes: object) -> str:
        name = name or f"{operation}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, inputs, [name], name=name, **attributes))
        return name

    def multiply(self, x: str, kernel: np.ndarray, name: str) -> str:
        """The product of activations `[..., k]` and a constant kernel, float32 `[k, n]`."""
        return self.add("MatMul", x, self.constant(np.ascontiguousarray(kernel), name))

    def look_up(self, table: np.ndarray, ids: str, name: str) -> str:
        """The rows of a constant table, float32 `[rows, dim]`, with the given ids."""
        return self.add("Gather", self.constant(table, name), ids)

    def mask_bias(self) -> tuple[str, str]:
        """The attention mask as floats `[batch, tokens]`, and the bias to add to attention scores,
        `[batch, 1, 1, tokens]`: 0 for real tokens, very negative for padding.
        """
        mask = self.add("Cast", "attention_mask", to=TensorProto.FLOAT)
        masked = self.add("Sub", self.constant(1.0), mask)
        bias = self.add("Mul", masked, self.constant(_MASKED))
        return mask, self.add("Unsqueeze", bias, self.constant([1, 2]))

    def add_relative_bias(self, bias: str, table: np.ndarray) -> str:
        """Adds the relative position bias to a mask bias; `[batch, heads, tokens, tokens]`.

        Args:
            bias: the name of `mask_bias`'s second result.
            table: float `[buckets, heads]`, see `dcse_tf.bert.families`.
        """
        first, axis = self.constant(np.array(0)), self.constant([0])
        tokens = self.add("Squeeze", self.add("Shape", "input_ids", start=1, end=2), axis)
        places = self.add("Range", first, tokens, self.constant(np.array(1)))
        queries = self.add("Unsqueeze", places, self.constant([1]))
        ends = [self.constant(np.array(end)) for end in (-FARTHEST, FARTHEST)]
        near = self.add("Clip", self.add("Sub", places, queries), *ends)
        rows = self.add("Unsqueeze", self.add("Add", near, ends[1]), self.constant([2]))
        added = self.add("GatherND", self.constant(table[BUCKET_OF], "relative_bias"), rows)
        return self.add("Add", bias, self.add("Transpose", added, perm=[2, 0, 1]))

    def build(self, output: str, shape: Sequence[str | int] | None) -> onnx.ModelProto:
        """The model with all nodes and constants, and one float32 output of a shape.

        Raises:
            InputError: it is too large for an ONNX file.
        """
        size = sum(array.nbytes for array in self.constants.values())
        if size > _LARGEST:
            raise InputError(
                f"`format`=onnx: a file holds at most {_LARGEST / 1e9:.2f} GB of weights, and this "
                f"model has {size / 1e9:.2f}; `format`=saved_model can hold it"
            )
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
            for name in self.inputs
        ]
        weights = [numpy_helper.from_array(a, name) for name, a in self.constants.items()]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self.nodes, "dcse_tf", inputs, outputs, weights)
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="dcse_tf")
        model.ir_version = _IR_VERSION
        return model


MakeGraph = Callable[[Mapping[str, Any], Sequence[str]], Graph]


def build_encoder(
    tensors: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    pooling: str,
    maps: Sequence[AffineMap] = (),
    unit_norm: bool = False,
    make_graph: MakeGraph = Graph,
) -> onnx.ModelProto:
    """Builds the model from INPUTS, int64 `[batch, tokens]`, to "embeddings", float32
    `[batch, dim]`.

    Both axes of the inputs are dynamic; `tokens` is limited by the number of position embeddings.

    Args:
        tensors: the BERT's weights by HuggingFace's names, without the prefix "bert.".
        config: the BERT's configuration, see `read_config`.
        pooling: "mean" or "cls".
        maps: affine maps applied to the pooled embedding, in order.
        unit_norm: whether the result is scaled to unit length.
        make_graph: makes the graph to add to, from the configuration and the inputs' names.
    """
    graph = make_graph(config, INPUTS)
    mask, bias = graph.mask_bias()
    if RELATIVE_BIAS in tensors:
        bias = graph.add_relative_bias(bias, tensors[RELATIVE_BIAS])
    x = _pool(graph, _add_layers(graph, tensors, {}, bias), mask, pooling)
    dim = len(tensors["embeddings.LayerNorm.bias"])
    for step in maps:
        x, dim = _apply(graph, x, step), step.matrix.shape[1]
    if unit_norm:
        norm = graph.add("ReduceL2", x, graph.constant([-1]), keepdims=1)
        x = graph.add("Div", x, graph.add("Max", norm, graph.constant(_SMALLEST_NORM)))
    graph.add("Identity", x, name=OUTPUT)
    return graph.build(OUTPUT, ["batch", dim])


def build_cross_encoder(
    tensors: Mapping[str, np.ndarray], config: Mapping[str, Any], make_graph: MakeGraph = Graph
) -> onnx.ModelProto:
    """Builds the model from token ids, attention mask, segment ids and, with speaker embeddings,
    speaker ids, each int64 `[batch, tokens]`, to "scores", logits, float32 `[batch]`.

    Args:
        tensors: see `dcse_tf.reranker.scorers.read_weights`.
        config, make_graph: see `build_encoder`.
    """
    segments = tensors["embeddings.token_type_embeddings.weight"]
    tables = {scorers.SEGMENTS: segments - segments[0]}
    if SPEAKER_TABLE in tensors:
        tables[scorers.SPEAKERS] = tensors[SPEAKER_TABLE]
    graph = make_graph(config, (*INPUTS, *tables))
    _, bias = graph.mask_bias()
    # The head reads only [CLS].
    x = _pool(graph, _add_layers(graph, tensors, tables, bias, first_only=True), "", "cls")
    x = graph.add("Tanh", _add_dense(graph, tensors, POOLER, x))
    x = _add_dense(graph, tensors, CLASSIFIER, x)
    graph.add("Squeeze", x, graph.constant([1]), name=scorers.OUTPUT)
    return graph.build(scorers.OUTPUT, ["batch"])


def _add_layers(
    graph: Graph,
    tensors: Mapping[str, np.ndarray],
    tables: Mapping[str, np.ndarray],
    bias: str,
    first_only: bool = False,
) -> str:
    """Adds a BERT: the name of its output, `[batch, tokens, dim]`, or with `first_only` of that at
    the first token alone, `[batch, 1, dim]`. `tables` are embedding tables `[rows, dim]` that are
    looked up by the inputs of their names and added.
    """
    # Token, position and segment embeddings, where every token is in the first segment.
    prefix = "embeddings"
    segment = tensors[f"{prefix}.token_type_embeddings.weight"][0]
    positions = tensors[f"{prefix}.position_embeddings.weight"] + segment
    tokens = graph.add("Shape", "input_ids", start=1, end=2)
    begin, axis = graph.constant([0]), graph.constant([0])
    places = graph.add("Slice", graph.constant(positions, f"{prefix}.places"), begin, tokens, axis)
    words = tensors[f"{prefix}.word_embeddings.weight"]
    x = graph.add("Add", graph.look_up(words, "input_ids", f"{prefix}.words"), places)
    for name, rows in tables.items():
        added = graph.add("Gather", graph.constant(rows, f"{prefix}.{name}"), name)
        x = graph.add("Add", x, added)
    x = _norm(graph, tensors, prefix, x)

    layers = sum(name.endswith(".intermediate.dense.bias") for name in tensors)
    for index in range(layers):
        last = first_only and index == layers - 1
        x = _add_layer(graph, tensors, f"encoder.layer.{index}", x, bias, last)
    return x


def _add_layer(
    graph: Graph,
    tensors: Mapping[str, np.ndarray],
    prefix: str,
    x: str,
    bias: str,
    first_only: bool = False,
) -> str:
    """Adds a transformer layer, see `_add_layers`."""
    num_heads = graph.num_heads
    width = len(tensors[f"{prefix}.output.LayerNorm.bias"]) // num_heads

    def heads(name: str, source: str, order: list[int], scale: float = 1.0) -> str:
        projected = _add_dense(graph, tensors, f"{prefix}.attention.self.{name}", source, scale)
        split = graph.add("Reshape", projected, graph.constant([0, 0, num_heads, width]))
        return graph.add("Transpose", split, perm=order)

    everything = x
    if first_only:
        begin, end, axis = (graph.constant([value]) for value in (0, 1, 1))
        x = graph.add("Slice", x, begin, end, axis)
    # The attention's scaling factor is folded into the query.
    query = heads("query", x, [0, 2, 1, 3], width**-0.5)
    key = heads("key", everything, [0, 2, 3, 1])
    scores = graph.add("Add", graph.add("MatMul", query, key), bias)
    weights = graph.add("Softmax", scores, axis=-1)
    attended = graph.add("MatMul", weights, heads("value", everything, [0, 2, 1, 3]))
    attended = graph.add("Transpose", attended, perm=[0, 2, 1, 3])
    attended = graph.add("Reshape", attended, graph.constant([0, 0, num_heads * width]))
    attended = _add_dense(graph, tensors, f"{prefix}.attention.output.dense", attended)
    x = _norm(graph, tensors, f"{prefix}.attention.output", graph.add("Add", x, attended))
    hidden = _add_dense(graph, tensors, f"{prefix}.intermediate.dense", x)
    hidden = graph.add("Gelu", hidden, approximate=graph.gelu)
    hidden = _add_dense(graph, tensors, f"{prefix}.output.dense", hidden)
    return _norm(graph, tensors, f"{prefix}.output", graph.add("Add", x, hidden))


def _pool(graph: Graph, x: str, mask: str, pooling: str) -> str:
    if pooling == "cls":
        return graph.add("Gather", x, graph.constant(np.array(0)), axis=1)
    axis = graph.constant([1])
    real = graph.add("Unsqueeze", mask, graph.constant([-1]))
    total = graph.add("ReduceSum", graph.add("Mul", x, real), axis, keepdims=0)
    count = graph.add("ReduceSum", real, axis, keepdims=0)
    return graph.add("Div", total, graph.add("Max", count, graph.constant(1.0)))


def _apply(graph: Graph, x: str, step: AffineMap) -> str:
    """Adds an affine map, computed in the type of its matrix; returns float32 `[batch, k]`."""
    kind = helper.np_dtype_to_tensor_dtype(step.matrix.dtype)
    x = graph.add("Cast", x, to=kind)
    x = graph.add("Sub", x, graph.constant(step.shift.astype(step.matrix.dtype)))
    x = graph.add("MatMul", x, graph.constant(step.matrix))
    x = graph.add("Add", x, graph.constant(step.bias.astype(step.matrix.dtype)))
    x = graph.add("Relu", x) if step.relu else x
    return graph.add("Cast", x, to=TensorProto.FLOAT)


def _add_dense(
    graph: Graph, tensors: Mapping[str, np.ndarray], name: str, x: str, scale: float = 1.0
) -> str:
    kernel, bias = tensors[f"{name}.weight"].T * np.float32(scale), tensors[f"{name}.bias"]
    product = graph.multiply(x, kernel, f"{name}.kernel")
    return graph.add("Add", product, graph.constant(bias * np.float32(scale), f"{name}.bias"))


def _norm(graph: Graph, tensors: Mapping[str, np.ndarray], prefix: str, x: str) -> str:
    names = [f"{prefix}.LayerNorm.{part}" for part in ("weight", "bias")]
    weights = [graph.constant(tensors[name], name) for name in names]
    return graph.add("LayerNormalization", x, *weights, axis=-1, epsilon=graph.epsilon)
