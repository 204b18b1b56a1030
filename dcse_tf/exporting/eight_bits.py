"""Builds ONNX models with 8-bit weights in which a text has one vector, alone or in any batch.

Each token's activations are quantized by a scale of their own, so nothing depends on the other
tokens of a batch. All products of integers are exact on every processor: see `quantize_kernel`.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from dcse_tf.exporting.onnx_graph import WORDS, Graph

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
