"""Builds ONNX models with 8-bit weights in which a text has one vector, alone or in any batch.

Each token's activations are quantized by a scale of their own, so nothing depends on the other
tokens of a batch. All products of integers are exact on every processor: see `quantize_kernel`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from dcse_tf.exporting.onnx_graph import Graph

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
_LENGTHS, _SEQUENCES = (5, 10, 20, 40, 80), 4


def quantize_kernel(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantizes a kernel by columns, so that its integer products cannot saturate.

    Of two neighbouring weights of a column (rows 0 and 1, 2 and 3, ...) those of the same sign sum
    to at most LARGEST_SUM in magnitude. This costs less precision than weights of 7 bits.

    Args:
        kernel: float32 `[k, n]`.

    Returns:
        int8 `[k, n]`, and the scale of each column, float32 `[n]`.
    """
    rows, columns = kernel.shape
    pairs = np.zeros((-(-rows // 2), 2, columns), kernel.dtype)
    pairs.reshape(-1, columns)[:rows] = kernel
    sums = np.maximum(np.maximum(pairs, 0).sum(1), np.maximum(-pairs, 0).sum(1)).max(0)
    # A little less than the largest sum, which rounding must not exceed.
    scale = np.maximum(sums / (LARGEST_SUM - 0.01), np.abs(kernel).max(0) / _LARGEST_WEIGHT)
    scale = np.maximum(scale, _SMALLEST).astype(np.float32)
    return np.rint(kernel / scale).astype(np.int8), scale


class EightBitGraph(Graph):
    """A graph whose layers multiply integers, and whose token table has eight bits.

    Args:
        magnitudes: kernel name -> magnitude of each channel of its input, see `measure_channels`.
            For the others see `Graph`.
    """

    def __init__(self, *of_graph: Any, magnitudes: Mapping[str, np.ndarray]) -> None:
        super().__init__(*of_graph)
        self._magnitudes = magnitudes
        self._rows: dict[str, tuple[str, str, str]] = {}
        self._one = ""

    def multiply(self, x: str, kernel: np.ndarray, name: str) -> str:
        """See `Graph`; float32. What is computed once per text, not per token, is not quantized."""
        if not name.startswith("encoder."):
            return super().multiply(x, kernel, name)
        # In every trained BERT a few channels are far louder than the others, and would leave them
        # only a few steps. They are divided by a factor, and the kernel's rows multiplied by it.
        loud = None
        if name in self._magnitudes:
            usual = max(float(np.median(self._magnitudes[name])), _SMALLEST)
            loud = np.maximum(self._magnitudes[name] / usual, 1).astype(np.float32)
            loud = loud ** np.float32(_EXPONENT)
        if x not in self._rows:
            self._rows[x] = self._quantize_rows(x, loud)
        rows, zero, row_scale = self._rows[x]
        weights, scale = quantize_kernel(kernel if loud is None else kernel * loud[:, None])
        product = self.add("MatMulInteger", rows, self.constant(weights, name), zero)
        product = self.add("Cast", product, to=TensorProto.FLOAT)
        # The columns' scales, times a 1 that onnxruntime cannot know beforehand: in this form it
        # computes product, cast and scaling in one operation.
        if not self._one:
            tokens = self.add("Shape", self.inputs[0], start=1, end=2)
            self._one = self.add("Sign", self.add("Cast", tokens, to=TensorProto.FLOAT))
        product = self.add("Mul", product, self.add("Mul", self._one, scale))
        return self.add("Mul", product, row_scale)

    def look_up(self, table: np.ndarray, ids: str, name: str) -> str:
        """See `Graph`; each row has a scale."""
        scale = np.maximum(np.abs(table).max(1, keepdims=True) / _LARGEST_WEIGHT, _SMALLEST)
        scale = scale.astype(np.float32)
        small = self.constant(np.rint(table / scale).astype(np.int8), name)
        rows = self.add("Cast", self.add("Gather", small, ids), to=TensorProto.FLOAT)
        return self.add("Mul", rows, self.add("Gather", scale, ids))

    def _quantize_rows(self, x: str, loud: np.ndarray | None) -> tuple[str, str, str]:
        """Quantizes activations `[..., k]`; returns them as uint8, the number that stands for 0,
        and the scale of each row, float32 `[..., 1]`.
        """
        if any(node.op_type == "Gelu" and x in node.output for node in self.nodes):
            zero, least = _GELU_ZERO, _GELU_MINIMUM * (_BYTE - _GELU_ZERO) / _GELU_ZERO
            top = self.add("ReduceMax", x, [-1], keepdims=1)
        else:
            zero, least = _MIDDLE, _SMALLEST
            if loud is not None:
                x = self.add("Mul", x, 1 / loud)
            top = self.add("ReduceMax", self.add("Abs", x), [-1], keepdims=1)
        # A quotient, not a product: onnxruntime takes a product here for the scale of a tensor.
        scale = self.add("Div", self.add("Max", top, least), float(_BYTE - zero))
        nothing = self.constant(np.array(zero, np.uint8))
        return self.add("QuantizeLinear", self.add("Div", x, scale), 1.0, nothing), nothing, scale


def measure_channels(
    model: onnx.ModelProto, ends: tuple[int, int], longest: int
) -> dict[str, np.ndarray]:
    """The root mean square of each channel, float32 `[k]`, of what a kernel is applied to, by the
    kernel's name, where that is a layer norm's result; by a float32 model on random tokens.

    Random tokens serve every language and domain; on texts the loud channels are the same. A
    sequence begins and ends with the ids `ends`, and has `longest` tokens at most.
    """
    import onnxruntime

    norms = {node.output[0] for node in model.graph.node if node.op_type == "LayerNormalization"}
    sources = {
        node.input[1]: node.input[0]
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[0] in norms
    }
    wanted = sorted(set(sources.values()))
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in wanted]
    probe.graph.output.extend(outputs)
    run_on = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(probe.SerializeToString(), providers=run_on)
    words = next(w.dims[0] for w in model.graph.initializer if w.name == "embeddings.words")
    totals: dict[str, Any] = dict.fromkeys(wanted, 0.0)
    tokens, rng = 0, np.random.default_rng(0)
    for length in sorted({min(length, longest) for length in _LENGTHS}):
        ids = rng.integers(0, words, (_SEQUENCES, length))
        ids[:, 0], ids[:, -1] = ends
        # The second half of each sequence has segment and speaker 1.
        later = np.broadcast_to(np.arange(length) >= length // 2, ids.shape).astype(np.int64)
        inputs = dict.fromkeys((value.name for value in model.graph.input), later)
        inputs |= {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        for name, value in zip(wanted, session.run(wanted, inputs), strict=True):
            totals[name] += np.square(value, dtype=np.float64).sum((0, 1))
        tokens += ids.size
    return {name: np.sqrt(totals[x] / tokens).astype(np.float32) for name, x in sources.items()}
