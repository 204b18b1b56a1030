"""Builds ONNX models, operation by operation, from the tensors of a checkpoint, and makes them
models with 8-bit weights.

Converting the TensorFlow graph (tf2onnx) gives the same numbers, but takes a minute and makes four
times as many nodes.
"""

from collections.abc import Mapping, Sequence
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
WORDS = "embeddings.word_embeddings.weight"

Tensors = Mapping[str, np.ndarray]
Constant = np.ndarray | Sequence[int] | float


class Graph:
    """Collects the nodes of an ONNX graph; methods return the names of results.

    Args:
        constants: what nodes can name, such as a BERT's weights by HuggingFace's names.
        config: the BERT's configuration, see `read_config`.
        first: the number of the first node, for names that other nodes do not have.
    """

    def __init__(self, constants: Tensors, config: Mapping[str, Any], first: int = 0) -> None:
        self.constants = dict(constants)
        self.nodes: list[onnx.NodeProto] = []
        self._config = config
        self._first = first

    def add(
        self, operation: str, *inputs: str | Constant, name: str = "", **attributes: object
    ) -> str:
        """Adds an operation on results and constants, by their names, and on further constants."""
        name = name or f"{operation}_{self._first + len(self.nodes)}"
        names = [x if isinstance(x, str) else f"{name}.{i}" for i, x in enumerate(inputs)]
        for own, value in zip(names, inputs, strict=True):
            if not isinstance(value, str):
                kind = np.float32 if isinstance(value, float) else None
                self.constants[own] = np.asarray(value, kind)
        self.nodes.append(helper.make_node(operation, names, [name], name=name, **attributes))
        return name

    def dense(self, name: str, x: str, scale: float = 1.0) -> str:
        """A dense layer of `[..., k]` by PyTorch's weights `[n, k]`, times a scale."""
        kernel, bias = (self.constants[f"{name}.{part}"] for part in ("weight", "bias"))
        product = self.add("MatMul", x, kernel.T * np.float32(scale), name=f"{name}.product")
        return self.add("Add", product, bias * np.float32(scale))

    def unit(self, x: str) -> str:
        """Float32 `[..., k]` scaled to unit length."""
        norm = self.add("ReduceL2", x, [-1], keepdims=1)
        return self.add("Div", x, self.add("Max", norm, _SMALLEST_NORM))

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
        if RELATIVE_BIAS in self.constants:  # of an MPNet, `[heads, tokens, tokens]`
            places = self.add("Range", 0, self.add("Squeeze", tokens, [0]), 1)
            distances = self.add("Sub", places, self.add("Unsqueeze", places, [1]))
            near = self.add("Clip", distances, -FARTHEST, FARTHEST)
            near = self.add("Unsqueeze", self.add("Add", near, FARTHEST), [2])
            relative = self.add("GatherND", self.constants[RELATIVE_BIAS][BUCKET_OF], near)
            bias = self.add("Add", bias, self.add("Transpose", relative, perm=[2, 0, 1]))

        # Token, position and segment embeddings, where every token is in the first segment.
        segment = self.constants["embeddings.token_type_embeddings.weight"][0]
        positions = self.constants["embeddings.position_embeddings.weight"] + segment
        x = self.add("Gather", WORDS, "input_ids")
        x = self.add("Add", x, self.add("Slice", positions, [0], tokens, [0]))
        for name, rows in tables.items():
            x = self.add("Add", x, self.add("Gather", rows, name))
        x = self._norm("embeddings", x)
        layers = sum(name.endswith(".intermediate.dense.bias") for name in self.constants)
        for index in range(layers):
            first = first_only and index == layers - 1
            queries = self.add("Slice", x, [0], [1], [1]) if first else x
            x = self._layer(f"encoder.layer.{index}", queries, x, bias)
        return x, mask

    def _layer(self, prefix: str, x: str, everything: str, bias: str) -> str:
        num_heads = int(self._config["num_attention_heads"])
        width = len(self.constants[f"{prefix}.output.LayerNorm.bias"]) // num_heads

        def heads(name: str, source: str, order: list[int], scale: float = 1.0) -> str:
            projected = self.dense(f"{prefix}.attention.self.{name}", source, scale)
            split = self.add("Reshape", projected, [0, 0, num_heads, width])
            return self.add("Transpose", split, perm=order)

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
        weights = [f"{prefix}.LayerNorm.{part}" for part in ("weight", "bias")]
        epsilon = float(self._config["layer_norm_eps"])
        return self.add("LayerNormalization", x, *weights, axis=-1, epsilon=epsilon)

    def build(
        self, inputs: Sequence[str], output: str, shape: Sequence[str | int] | None
    ) -> onnx.ModelProto:
        """The model of all nodes, with the constants that they use, from inputs int64
        `[batch, tokens]` to one float32 output of a shape. Raises InputError if it is too large for
        an ONNX file.
        """
        used = {name for node in self.nodes for name in node.input}
        constants = {name: array for name, array in self.constants.items() if name in used}
        size = sum(array.nbytes for array in constants.values())
        if size > _LARGEST:
            raise InputError(
                f"`format`=onnx: a file holds at most {_LARGEST / 1e9:.2f} GB of weights, and this "
                f"model has {size / 1e9:.2f}; `format`=saved_model can hold it"
            )
        describe, ids, axes = helper.make_tensor_value_info, TensorProto.INT64, ["batch", "tokens"]
        graph = helper.make_graph(
            self.nodes,
            "dcse_tf",
            [describe(name, ids, axes) for name in inputs],
            [describe(output, TensorProto.FLOAT, shape)],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        )
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="dcse_tf")
        model.ir_version = _IR_VERSION
        return model


def build_encoder(
    tensors: Tensors,
    config: Mapping[str, Any],
    pooling: str,
    maps: Sequence[AffineMap] = (),
    unit_norm: bool = False,
) -> onnx.ModelProto:
    """Builds the model of a BERT, see `Graph`, from INPUTS, int64 `[batch, tokens]`, to
    "embeddings", float32 `[batch, dim]`: pooled by "mean" or "cls", mapped by `maps` in order, and
    with `unit_norm` scaled to unit length.

    Both axes of the inputs are dynamic; `tokens` is limited by the number of position embeddings.
    """
    graph = Graph(tensors, config)
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
        x = graph.unit(x) if step.unit else x
        x = graph.add("Cast", x, to=helper.np_dtype_to_tensor_dtype(kind))
        x = graph.add("MatMul", graph.add("Sub", x, step.shift.astype(kind)), step.matrix)
        x = graph.add("Add", x, step.bias.astype(kind))
        x = graph.add(step.activation.capitalize(), x) if step.activation else x
        x, dim = graph.add("Cast", x, to=TensorProto.FLOAT), step.matrix.shape[1]
    graph.add("Identity", graph.unit(x) if unit_norm else x, name=OUTPUT)
    return graph.build(INPUTS, OUTPUT, ["batch", dim])


def build_cross_encoder(tensors: Tensors, config: Mapping[str, Any]) -> onnx.ModelProto:
    """Builds the model from token ids, attention mask, segment ids and, with speaker embeddings,
    speaker ids, each int64 `[batch, tokens]`, to "scores", logits, float32 `[batch]`.

    See `build_encoder`; `tensors` also have the head's.
    """
    segments = tensors["embeddings.token_type_embeddings.weight"]
    tables = {scorers.SEGMENTS: segments - segments[0]}
    if SPEAKER_TABLE in tensors:
        tables[scorers.SPEAKERS] = tensors[SPEAKER_TABLE]
    graph = Graph(tensors, config)
    x, _ = graph.encode(tables, first_only=True)  # the head reads only [CLS]
    x = graph.add("Gather", x, 0, axis=1)
    x = graph.dense(CLASSIFIER, graph.add("Tanh", graph.dense(POOLER, x)))
    graph.add("Squeeze", x, [1], name=scorers.OUTPUT)
    return graph.build((*INPUTS, *tables), scorers.OUTPUT, ["batch"])


# Eight bits. A text has one vector, alone or in any batch: each token's activations are quantized
# by a scale of their own. All products of integers are exact on every processor.

_BYTE = 255
# The largest sum of two neighbouring weights of the same sign. Without VNNI, processors multiply
# unsigned activations by signed weights with an instruction that adds two neighbouring products in
# 16 bits and saturates (vpmaddubsw): 255 * 128 is the last multiple that fits.
LARGEST_SUM = 128
_LARGEST_WEIGHT = 127
_MIDDLE = 128  # stands for 0 among the unsigned activations
# GELU is never below -0.1701, so few values have to be below 0.
_GELU_MINIMUM, _GELU_ZERO = 0.1701, 32
_SMALLEST = 1e-12
# Of the exponents tried, 0.5 to 1 gave embeddings about equally close to float32, 0 far ones.
_EXPONENT = 0.75
_LENGTH, _SEQUENCES = 20, 30  # of random tokens


def quantize_kernel(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantizes a kernel, float32 `[k, n]`, by columns, so that its integer products cannot
    saturate, to int8 `[k, n]` and the scale of each column, float32 `[n]`.

    Of two neighbouring weights of a column (rows 0 and 1, 2 and 3, ...) those of the same sign sum
    to at most LARGEST_SUM in magnitude. This costs less precision than weights of 7 bits.
    """
    rows, columns = kernel.shape
    pairs = np.zeros((-(-rows // 2), 2, columns), kernel.dtype)
    pairs.reshape(-1, columns)[:rows] = kernel
    sums = np.maximum(np.maximum(pairs, 0).sum(1), np.maximum(-pairs, 0).sum(1)).max(0)
    # A little less than the largest sum, which rounding must not exceed.
    scale = np.maximum(sums / (LARGEST_SUM - 0.01), np.abs(kernel).max(0) / _LARGEST_WEIGHT)
    scale = np.maximum(scale, _SMALLEST).astype(np.float32)
    return np.rint(kernel / scale).astype(np.int8), scale


def quantize_model(model: onnx.ModelProto, magnitudes: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """A model of `Graph` whose layers multiply integers, and whose token table has eight bits. What
    is computed once per text, not per token, stays as it is.

    `magnitudes` are those of the channels of results, by name, see `measure_channels`.
    """
    constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    inputs, (output,) = [each.name for each in model.graph.input], model.graph.output
    gelus = {node.output[0] for node in model.graph.node if node.op_type == "Gelu"}
    graph = Graph(constants, {}, first=len(model.graph.node))
    tokens = graph.add("Shape", inputs[0], start=1, end=2)
    one = graph.add("Sign", graph.add("Cast", tokens, to=TensorProto.FLOAT))
    quantized: dict[str, tuple[str, np.ndarray, str, np.ndarray]] = {}
    for node in model.graph.node:
        x, name = node.input[0], node.input[-1]
        if x == WORDS:  # each row has a scale
            scale = np.abs(constants[x]).max(1, keepdims=True) / _LARGEST_WEIGHT
            scale = np.maximum(scale, _SMALLEST).astype(np.float32)
            small = np.rint(constants[x] / scale).astype(np.int8)
            product = graph.add("Cast", graph.add("Gather", small, name), to=TensorProto.FLOAT)
            row_scale = graph.add("Gather", scale, name)
        elif node.op_type == "MatMul" and name.startswith("encoder."):
            if x not in quantized:
                quantized[x] = quantize_rows(graph, x, magnitudes.get(x), x in gelus)
            rows, zero, row_scale, factors = quantized[x]
            weights, scale = quantize_kernel(constants[name] * factors[:, None])
            product = graph.add("MatMulInteger", rows, weights, zero)
            product = graph.add("Cast", product, to=TensorProto.FLOAT)
            # The columns' scales, times a 1 that onnxruntime cannot know beforehand: in this form
            # it computes product, cast and scaling in one operation.
            product = graph.add("Mul", product, graph.add("Mul", one, scale))
        else:
            graph.nodes.append(node)
            continue
        graph.add("Mul", product, row_scale, name=node.output[0])
    shape = [axis.dim_param or axis.dim_value for axis in output.type.tensor_type.shape.dim]
    return graph.build(inputs, output.name, shape or None)


def quantize_rows(
    graph: Graph, x: str, magnitudes: np.ndarray | None, after_gelu: bool
) -> tuple[str, np.ndarray, str, np.ndarray]:
    """Quantizes activations `[..., k]`; returns them as uint8, the number that stands for 0, the
    scale of each row, float32 `[..., 1]`, and what their channels were divided by, `[k]` or `[1]`.
    """
    factors = np.ones(1, np.float32)
    if after_gelu:
        zero, least = _GELU_ZERO, _GELU_MINIMUM * (_BYTE - _GELU_ZERO) / _GELU_ZERO
        top = graph.add("ReduceMax", x, [-1], keepdims=1)
    else:
        zero, least = _MIDDLE, _SMALLEST
        if magnitudes is not None:
            # In every trained BERT a few channels are far louder than the others, and would leave
            # them only a few steps.
            loud = magnitudes / max(float(np.median(magnitudes)), _SMALLEST)
            factors = np.maximum(loud, 1).astype(np.float32) ** np.float32(_EXPONENT)
            x = graph.add("Mul", x, 1 / factors)
        top = graph.add("ReduceMax", graph.add("Abs", x), [-1], keepdims=1)
    # A quotient, not a product: onnxruntime takes a product here for the scale of a tensor.
    scale = graph.add("Div", graph.add("Max", top, least), float(_BYTE - zero))
    nothing = np.array(zero, np.uint8)
    rows = graph.add("QuantizeLinear", graph.add("Div", x, scale), 1.0, nothing)
    return rows, nothing, scale, factors


def measure_channels(
    model: onnx.ModelProto, ends: tuple[int, int], longest: int
) -> dict[str, np.ndarray]:
    """The root mean square of each channel, float32 `[k]`, of the layer norms' results, by name; by
    a float32 model on random tokens.

    Random tokens serve every language and domain; on texts the loud channels are the same. A
    sequence begins and ends with the ids `ends`, and has `longest` tokens at most.
    """
    import onnxruntime

    norms = [node.output[0] for node in model.graph.node if node.op_type == "LayerNormalization"]
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in norms)
    run_on = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(probe.SerializeToString(), providers=run_on)
    words = next(each.dims[0] for each in model.graph.initializer if each.name == WORDS)
    length = min(_LENGTH, longest)
    ids = np.random.default_rng(0).integers(0, words, (_SEQUENCES, length))
    ids[:, 0], ids[:, -1] = ends
    # The second half of each sequence has segment and speaker 1.
    later = np.broadcast_to(np.arange(length) >= length // 2, ids.shape).astype(np.int64)
    inputs = dict.fromkeys((value.name for value in model.graph.input), later)
    inputs |= {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    found = zip(norms, session.run(norms, inputs), strict=True)
    return {name: np.sqrt(np.square(x).mean((0, 1))) for name, x in found}
