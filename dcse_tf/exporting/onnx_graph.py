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
from dcse_tf.encoder.exported_models import INPUTS, OUTPUT
from dcse_tf.errors import InputError
from dcse_tf.reranker import scorers

# Opset 20 is the first with a Gelu operation, and IR version 9 the first that supports it.
_OPSET, _IR_VERSION = 20, 9
_MASKED = -1e9
# Bytes of weights that a file holds: protobuf's limit, less a margin for everything else.
_LARGEST = 2**31 - 2**20
_SMALLEST_NORM = 1e-12  # as in torch.nn.functional.normalize

Tensors = Mapping[str, np.ndarray]
Constant = np.ndarray | Sequence[int] | float


class Graph:
    """Collects the nodes and constants of an ONNX graph; methods return the names of results.

    Args:
        tensors: a BERT's weights by HuggingFace's names, without the prefix "bert.".
        config: the BERT's configuration, see `read_config`.
        inputs: names of the inputs, each int64 `[batch, tokens]`; the first has the token ids.
    """

    def __init__(self, tensors: Tensors, config: Mapping[str, Any], inputs: Sequence[str]) -> None:
        self._tensors = tensors
        self._config = config
        self.inputs = inputs
        self.nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, np.ndarray] = {}

    def constant(self, value: Constant, name: str = "") -> str:
        array = np.array(value, np.float32) if isinstance(value, float) else np.array(value)
        name = name or f"constant_{len(self._constants)}"
        self._constants[name] = array
        return name

    def add(
        self, operation: str, *inputs: str | Constant, name: str = "", **attributes: object
    ) -> str:
        """Adds an operation on results, by their names, and on constants."""
        name = name or f"{operation}_{len(self.nodes)}"
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        self.nodes.append(helper.make_node(operation, names, [name], name=name, **attributes))
        return name

    def multiply(self, x: str, kernel: np.ndarray, name: str) -> str:
        """The product of activations `[..., k]` and a constant kernel, float32 `[k, n]`."""
        return self.add("MatMul", x, self.constant(np.ascontiguousarray(kernel), name))

    def look_up(self, table: np.ndarray, ids: str, name: str) -> str:
        """The rows of a constant table, float32 `[rows, dim]`, with the given ids."""
        return self.add("Gather", self.constant(table, name), ids)

    def dense(self, name: str, x: str, scale: float = 1.0) -> str:
        kernel, bias = (self._tensors[f"{name}.{part}"] for part in ("weight", "bias"))
        product = self.multiply(x, kernel.T * np.float32(scale), f"{name}.kernel")
        return self.add("Add", product, bias * np.float32(scale))

    def encode(self, tables: Tensors, first_only: bool = False) -> tuple[str, str]:
        """The BERT's output, `[batch, tokens, dim]`, or with `first_only` that of the first token
        alone, `[batch, 1, dim]`; and the mask as floats `[batch, tokens]`.

        `tables` are embedding tables `[rows, dim]` that are looked up by the inputs of their names
        and added.
        """
        mask = self.add("Cast", "attention_mask", to=TensorProto.FLOAT)
        bias = self.add("Mul", self.add("Sub", 1.0, mask), _MASKED)
        bias = self.add("Unsqueeze", bias, [1, 2])  # [batch, 1, 1, tokens]
        tokens = self.add("Shape", "input_ids", start=1, end=2)
        if RELATIVE_BIAS in self._tensors:
            bias = self.add("Add", bias, self._relative_bias(tokens))

        # Token, position and segment embeddings, where every token is in the first segment.
        tensors, prefix = self._tensors, "embeddings"
        segment = tensors[f"{prefix}.token_type_embeddings.weight"][0]
        positions = tensors[f"{prefix}.position_embeddings.weight"] + segment
        words = tensors[f"{prefix}.word_embeddings.weight"]
        x = self.look_up(words, "input_ids", f"{prefix}.words")
        x = self.add("Add", x, self.add("Slice", positions, [0], tokens, [0]))
        for name, rows in tables.items():
            x = self.add("Add", x, self.add("Gather", rows, name))
        x = self._norm(prefix, x)
        layers = sum(name.endswith(".intermediate.dense.bias") for name in tensors)
        for index in range(layers):
            x = self._layer(f"encoder.layer.{index}", x, bias, first_only and index == layers - 1)
        return x, mask

    def _relative_bias(self, tokens: str) -> str:
        """MPNet's bias by distance, `[heads, tokens, tokens]`, see `dcse_tf.bert.families`."""
        places = self.add("Range", 0, self.add("Squeeze", tokens, [0]), 1)
        distances = self.add("Sub", places, self.add("Unsqueeze", places, [1]))
        near = self.add("Clip", distances, -FARTHEST, FARTHEST)
        rows = self.add("Unsqueeze", self.add("Add", near, FARTHEST), [2])
        table = self.add("GatherND", self._tensors[RELATIVE_BIAS][BUCKET_OF], rows)
        return self.add("Transpose", table, perm=[2, 0, 1])

    def _layer(self, prefix: str, x: str, bias: str, first_only: bool) -> str:
        num_heads = int(self._config["num_attention_heads"])
        width = len(self._tensors[f"{prefix}.output.LayerNorm.bias"]) // num_heads

        def heads(name: str, source: str, order: list[int], scale: float = 1.0) -> str:
            projected = self.dense(f"{prefix}.attention.self.{name}", source, scale)
            split = self.add("Reshape", projected, [0, 0, num_heads, width])
            return self.add("Transpose", split, perm=order)

        everything = x
        if first_only:
            x = self.add("Slice", x, [0], [1], [1])
        # The attention's scaling factor is folded into the query.
        query = heads("query", x, [0, 2, 1, 3], width**-0.5)
        key = heads("key", everything, [0, 2, 3, 1])
        scores = self.add("Add", self.add("MatMul", query, key), bias)
        weights = self.add("Softmax", scores, axis=-1)
        attended = self.add("MatMul", weights, heads("value", everything, [0, 2, 1, 3]))
        attended = self.add("Transpose", attended, perm=[0, 2, 1, 3])
        attended = self.add("Reshape", attended, [0, 0, num_heads * width])
        attended = self.dense(f"{prefix}.attention.output.dense", attended)
        x = self._norm(f"{prefix}.attention.output", self.add("Add", x, attended))
        hidden = self.dense(f"{prefix}.intermediate.dense", x)
        gelu = "tanh" if checkpoints.approximates_gelu(self._config) else "none"
        hidden = self.add("Gelu", hidden, approximate=gelu)
        hidden = self.dense(f"{prefix}.output.dense", hidden)
        return self._norm(f"{prefix}.output", self.add("Add", x, hidden))

    def _norm(self, prefix: str, x: str) -> str:
        weights = [self._tensors[f"{prefix}.LayerNorm.{part}"] for part in ("weight", "bias")]
        epsilon = float(self._config["layer_norm_eps"])
        return self.add("LayerNormalization", x, *weights, axis=-1, epsilon=epsilon)

    def build(self, output: str, shape: Sequence[str | int] | None) -> onnx.ModelProto:
        """The model with all nodes and constants, and one float32 output of a shape.

        Raises:
            InputError: it is too large for an ONNX file.
        """
        size = sum(array.nbytes for array in self._constants.values())
        if size > _LARGEST:
            raise InputError(
                f"`format`=onnx: a file holds at most {_LARGEST / 1e9:.2f} GB of weights, and this "
                f"model has {size / 1e9:.2f}; `format`=saved_model can hold it"
            )
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
            for name in self.inputs
        ]
        weights = [numpy_helper.from_array(a, name) for name, a in self._constants.items()]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self.nodes, "dcse_tf", inputs, outputs, weights)
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="dcse_tf")
        model.ir_version = _IR_VERSION
        return model


MakeGraph = Callable[[Tensors, Mapping[str, Any], Sequence[str]], Graph]


def build_encoder(
    tensors: Tensors,
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
        tensors, config: see `Graph`.
        pooling: "mean" or "cls".
        maps: affine maps applied to the pooled embedding, in order.
        unit_norm: whether the result is scaled to unit length.
        make_graph: makes the graph to add to.
    """
    graph = make_graph(tensors, config, INPUTS)
    x, mask = graph.encode({})
    if pooling == "cls":
        x = graph.add("Gather", x, 0, axis=1)
    else:
        real = graph.add("Unsqueeze", mask, [-1])
        total = graph.add("ReduceSum", graph.add("Mul", x, real), [1], keepdims=0)
        count = graph.add("ReduceSum", real, [1], keepdims=0)
        x = graph.add("Div", total, graph.add("Max", count, 1.0))
    dim = len(tensors["embeddings.LayerNorm.bias"])
    for step in maps:  # each computed in the type of its matrix
        kind = step.matrix.dtype
        x = graph.add("Cast", x, to=helper.np_dtype_to_tensor_dtype(kind))
        x = graph.add("Sub", x, step.shift.astype(kind))
        x = graph.add("MatMul", x, step.matrix)
        x = graph.add("Add", x, step.bias.astype(kind))
        x = graph.add("Relu", x) if step.relu else x
        x, dim = graph.add("Cast", x, to=TensorProto.FLOAT), step.matrix.shape[1]
    if unit_norm:
        norm = graph.add("ReduceL2", x, [-1], keepdims=1)
        x = graph.add("Div", x, graph.add("Max", norm, _SMALLEST_NORM))
    graph.add("Identity", x, name=OUTPUT)
    return graph.build(OUTPUT, ["batch", dim])


def build_cross_encoder(
    tensors: Tensors, config: Mapping[str, Any], make_graph: MakeGraph = Graph
) -> onnx.ModelProto:
    """Builds the model from token ids, attention mask, segment ids and, with speaker embeddings,
    speaker ids, each int64 `[batch, tokens]`, to "scores", logits, float32 `[batch]`.

    For the arguments see `build_encoder`; `tensors` also have the head's.
    """
    segments = tensors["embeddings.token_type_embeddings.weight"]
    tables = {scorers.SEGMENTS: segments - segments[0]}
    if SPEAKER_TABLE in tensors:
        tables[scorers.SPEAKERS] = tensors[SPEAKER_TABLE]
    graph = make_graph(tensors, config, (*INPUTS, *tables))
    x, _ = graph.encode(tables, first_only=True)  # the head reads only [CLS]
    x = graph.add("Gather", x, 0, axis=1)
    x = graph.dense(CLASSIFIER, graph.add("Tanh", graph.dense(POOLER, x)))
    graph.add("Squeeze", x, [1], name=scorers.OUTPUT)
    return graph.build(scorers.OUTPUT, ["batch"])
