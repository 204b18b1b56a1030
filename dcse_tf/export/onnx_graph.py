"""BERT, pooling and what stands behind it as an ONNX graph from token ids to embeddings.

Built operation by operation from the tensors of a checkpoint: a conversion of the TensorFlow graph
(tf2onnx) gives the same numbers, but takes a minute and makes four times as many nodes.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dcse_tf.models.affine_map import AffineMap

INPUTS = ("input_ids", "attention_mask")
OUTPUT = "embeddings"
# Gelu has been an operation since opset 20; the IR version is the first that goes with it.
_OPSET, _IR_VERSION = 20, 9
_MASKED = -1e9
_SMALLEST_NORM = 1e-12  # as in torch.nn.functional.normalize


class _Graph:
    """Nodes and constants as they are added; an operation returns the name of its result."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon  # of all layer norms
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

    def build(self, outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
            for name in INPUTS
        ]
        weights = [numpy_helper.from_array(a, name) for name, a in self.constants.items()]
        graph = helper.make_graph(self.nodes, "sentence_encoder", inputs, outputs, weights)
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="dcse_tf")
        model.ir_version = _IR_VERSION
        return model


def build_onnx_graph(
    tensors: Mapping[str, np.ndarray],
    num_heads: int,
    epsilon: float,
    pooling: str,
    maps: Sequence[AffineMap] = (),
    unit_norm: bool = False,
) -> onnx.ModelProto:
    """The model from INPUTS, int64 `[batch, tokens]`, to OUTPUT, float32 `[batch, dim]`.

    Batch and tokens are of any size, tokens up to the positions that there are.

    Args:
        tensors: of a BERT by HuggingFace's names, without "bert.".
        num_heads: of its attention.
        epsilon: of its layer norms.
        pooling: "mean" or "cls".
        maps: applied to the pooled embedding.
        unit_norm: whether the result is scaled to unit length.
    """
    graph = _Graph(epsilon)
    layers = sum(name.endswith(".intermediate.dense.bias") for name in tensors)
    mask = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    masked = graph.add("Sub", graph.constant(1.0), mask)
    bias = graph.add("Mul", masked, graph.constant(_MASKED))
    bias = graph.add("Unsqueeze", bias, graph.constant([1, 2]))
    x = _embed(graph, tensors)
    for index in range(layers):
        x = _add_layer(graph, tensors, f"encoder.layer.{index}", x, bias, num_heads)
    x = _pool(graph, x, mask, pooling)
    dim = len(tensors["embeddings.LayerNorm.bias"])
    for step in maps:
        x, dim = _apply(graph, x, step), step.matrix.shape[1]
    if unit_norm:
        norm = graph.add("ReduceL2", x, graph.constant([-1]), keepdims=1)
        x = graph.add("Div", x, graph.add("Max", norm, graph.constant(_SMALLEST_NORM)))
    graph.add("Identity", x, name=OUTPUT)
    return graph.build([helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", dim])])


def _embed(graph: _Graph, tensors: Mapping[str, np.ndarray]) -> str:
    """Token, position and segment embeddings, normed: `[batch, tokens, dim]`."""
    prefix = "embeddings"
    table = graph.constant(tensors[f"{prefix}.word_embeddings.weight"], f"{prefix}.words")
    segment = tensors[f"{prefix}.token_type_embeddings.weight"][0]  # a sentence is one segment
    positions = tensors[f"{prefix}.position_embeddings.weight"] + segment
    tokens = graph.add("Shape", "input_ids", start=1, end=2)
    begin, axis = graph.constant([0]), graph.constant([0])
    places = graph.add("Slice", graph.constant(positions, f"{prefix}.places"), begin, tokens, axis)
    x = graph.add("Add", graph.add("Gather", table, "input_ids"), places)
    return _norm(graph, tensors, prefix, x)


def _add_layer(
    graph: _Graph,
    tensors: Mapping[str, np.ndarray],
    prefix: str,
    x: str,
    bias: str,
    num_heads: int,
) -> str:
    width = len(tensors[f"{prefix}.output.LayerNorm.bias"]) // num_heads

    def heads(name: str, order: list[int], scale: float = 1.0) -> str:
        projected = _dense(graph, tensors, f"{prefix}.attention.self.{name}", x, scale)
        split = graph.add("Reshape", projected, graph.constant([0, 0, num_heads, width]))
        return graph.add("Transpose", split, perm=order)

    # The query carries the scale of the attention's products.
    query, key = heads("query", [0, 2, 1, 3], width**-0.5), heads("key", [0, 2, 3, 1])
    scores = graph.add("Add", graph.add("MatMul", query, key), bias)
    weights = graph.add("Softmax", scores, axis=-1)
    attended = graph.add("MatMul", weights, heads("value", [0, 2, 1, 3]))
    attended = graph.add("Transpose", attended, perm=[0, 2, 1, 3])
    attended = graph.add("Reshape", attended, graph.constant([0, 0, num_heads * width]))
    attended = _dense(graph, tensors, f"{prefix}.attention.output.dense", attended)
    x = _norm(graph, tensors, f"{prefix}.attention.output", graph.add("Add", x, attended))
    hidden = _dense(graph, tensors, f"{prefix}.intermediate.dense", x)
    hidden = graph.add("Gelu", hidden, approximate="tanh")
    hidden = _dense(graph, tensors, f"{prefix}.output.dense", hidden)
    return _norm(graph, tensors, f"{prefix}.output", graph.add("Add", x, hidden))


def _pool(graph: _Graph, x: str, mask: str, pooling: str) -> str:
    if pooling == "cls":
        return graph.add("Gather", x, graph.constant(np.array(0)), axis=1)
    axis = graph.constant([1])
    real = graph.add("Unsqueeze", mask, graph.constant([-1]))
    total = graph.add("ReduceSum", graph.add("Mul", x, real), axis, keepdims=0)
    count = graph.add("ReduceSum", real, axis, keepdims=0)
    return graph.add("Div", total, graph.add("Max", count, graph.constant(1.0)))


def _apply(graph: _Graph, x: str, step: AffineMap) -> str:
    """An affine map, in the type of its matrix; float32 `[batch, k]`."""
    kind = helper.np_dtype_to_tensor_dtype(step.matrix.dtype)
    x = graph.add("Cast", x, to=kind)
    x = graph.add("Sub", x, graph.constant(step.shift.astype(step.matrix.dtype)))
    x = graph.add("MatMul", x, graph.constant(step.matrix))
    x = graph.add("Add", x, graph.constant(step.bias.astype(step.matrix.dtype)))
    return graph.add("Cast", x, to=TensorProto.FLOAT)


def _dense(
    graph: _Graph, tensors: Mapping[str, np.ndarray], name: str, x: str, scale: float = 1.0
) -> str:
    kernel, bias = tensors[f"{name}.weight"].T * np.float32(scale), tensors[f"{name}.bias"]
    product = graph.add("MatMul", x, graph.constant(np.ascontiguousarray(kernel), f"{name}.kernel"))
    return graph.add("Add", product, graph.constant(bias * np.float32(scale), f"{name}.bias"))


def _norm(graph: _Graph, tensors: Mapping[str, np.ndarray], prefix: str, x: str) -> str:
    names = [f"{prefix}.LayerNorm.{part}" for part in ("weight", "bias")]
    weights = [graph.constant(tensors[name], name) for name in names]
    return graph.add("LayerNormalization", x, *weights, axis=-1, epsilon=graph.epsilon)
