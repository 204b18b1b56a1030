"""ONNX: token ids in, embeddings out, held against the encoder before it is written."""

import contextlib
import dataclasses
import importlib.util
import json
import logging as python_logging
import pathlib
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from absl import logging

from dcse_tf.data.tokenization import write_tokenizer
from dcse_tf.errors import InputError, OutputError
from dcse_tf.export.huggingface import true_config
from dcse_tf.export.postprocessing import list_maps
from dcse_tf.models import bert_encoder, bert_weights, checkpoints
from dcse_tf.models.sentence_encoder import SentenceEncoder

FORMAT = "onnx"
MODEL_FILE = "model.onnx"
TOLERANCE = 1e-4
# Of every length and several scripts; the empty one is [CLS] [SEP] alone.
_PROBES = (
    "",
    "ok",
    "where is my parcel?",
    "I'd like a refund for the blue cup, it broke on the 3rd day.",
    "您好，我的快递什么时候能到？",
    "Où est mon colis ? Ça fait déjà 2 semaines...",
    "а когда доставка? " * 40,
)


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far the file's embeddings are from the encoder's, on a few sentences.

    Attributes:
        difference: the largest length of a difference, as a share of the embedding's length.
        cosine: the smallest cosine.
        quantize: as in `write_onnx`.
    """

    difference: float
    cosine: float
    quantize: str

    def describe(self) -> dict[str, str]:
        """For the model card."""
        if self.quantize == "none":
            share = f"within {self.difference:.1e} of an embedding's length"
            return {"held against the trained encoder": f"{share}, on {len(_PROBES)} sentences"}
        cosine = f"smallest cosine {self.cosine:.4f} on {len(_PROBES)} sentences"
        return {"weights": f"{self.quantize}; {cosine} with the trained encoder"}


def write_onnx(
    folder: pathlib.Path,
    source: pathlib.Path,
    encoder: SentenceEncoder,
    unit_norm: bool,
    quantize: str,
) -> Agreement:
    """Writes model.onnx with the tokenizer's files and the configuration beside it.

    Args:
        folder: where to; it exists.
        source: the checkpoint folder that the encoder is of.
        encoder: what to export.
        unit_norm: whether embeddings are scaled to unit length.
        quantize: "none", or "int8": weights of the matrix products in eight bits.

    Raises:
        InputError: onnx and onnxruntime are not installed, or the encoder has a part that cannot
            be written.
        OutputError: the file computes something else than the encoder.
    """
    _require("onnx", "onnxruntime")
    import onnx

    from dcse_tf.export.onnx_graph import build_onnx_graph

    backbone = bert_encoder.load_backbone(source)
    tensors = bert_weights.to_tensors(bert_weights.backbone_weights(backbone))
    maps = list_maps(encoder.postprocessing, FORMAT)
    epsilon = bert_encoder.epsilon_of(backbone)
    model = build_onnx_graph(tensors, backbone.num_heads, epsilon, encoder.pooling, maps, unit_norm)
    onnx.checker.check_model(model)
    path = folder / MODEL_FILE
    onnx.save(model, path)
    agreement = _compare(path, encoder, unit_norm, "none")
    if not agreement.difference <= TOLERANCE:
        raise OutputError(
            f"{path}: its embeddings differ from the encoder's by {agreement.difference:.1e} of "
            f"their length, expected at most {TOLERANCE:.0e}"
        )
    if quantize == "int8":
        _quantize(path)
        agreement = _compare(path, encoder, unit_norm, quantize)
    logging.info(
        "%s: smallest cosine with the encoder %.6f on %d sentences",
        path.name,
        agreement.cosine,
        len(_PROBES),
    )
    write_tokenizer(folder, encoder.vocabulary, encoder.max_sequence_length)
    checkpoints.write_max_sequence_length(folder, encoder.max_sequence_length)
    config = json.dumps(true_config(source), indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(config, encoding="utf-8")
    return agreement


def _require(*names: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"--format={FORMAT} needs {' and '.join(missing)}: pip install dcse_tf[onnx]"
        )


def _compare(
    path: pathlib.Path, encoder: SentenceEncoder, unit_norm: bool, quantize: str
) -> Agreement:
    """All probes in one batch, then each alone: batch and length must be free."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    ids = encoder.tokenize(tf.constant(_PROBES))
    batches = [ids, *(ids[i : i + 1] for i in range(len(_PROBES)))]
    found, expected = [], []
    for batch in batches:
        mask = tf.ones_like(batch).to_tensor().numpy().astype(np.int64)
        padded = batch.to_tensor()
        inputs = {"input_ids": padded.numpy().astype(np.int64), "attention_mask": mask}
        found.extend(session.run(None, inputs)[0].astype(np.float64))
        expected.extend(encoder.pool_tokens(padded).numpy().astype(np.float64))
    a, b = np.array(found), np.array(expected)
    norms = [np.maximum(np.linalg.norm(x, axis=1), 1e-12) for x in (a, b)]
    if unit_norm:
        b = b / norms[1][:, None]
        norms[1] = np.ones(len(b))
    differences = np.linalg.norm(a - b, axis=1) / norms[1]
    cosines = (a * b).sum(axis=1) / (norms[0] * norms[1])
    return Agreement(float(differences.max()), float(cosines.min()), quantize)


def _quantize(path: pathlib.Path) -> None:
    """Replaces a model by one whose matrix products have int8 weights, a scale a column."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(
            path,
            path,
            op_types_to_quantize=["MatMul", "Gather"],
            per_channel=True,
            weight_type=QuantType.QInt8,
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the advice to preprocess, which is for models of images."""
    root = python_logging.getLogger()
    level = root.level
    root.setLevel(python_logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
