"""Exports an encoder as an ONNX model, and checks that the file embeds as the encoder does."""

import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np
import onnx
import tensorflow as tf
from absl import logging

from dcse_tf.bert import checkpoints, sentence_modules
from dcse_tf.bert.weights import read_bert_tensors
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.encoder.onnx import MODEL_FILE
from dcse_tf.encoder.saved_model import SETTINGS_FILE, export_fingerprint
from dcse_tf.errors import OutputError
from dcse_tf.exporting import eight_bits
from dcse_tf.exporting.onnx_graph import build_onnx_graph
from dcse_tf.exporting.sentence_transformers import list_maps, true_config
from dcse_tf.files import hash_file, write_json

FORMAT = "onnx"
TOLERANCE = 1e-4
# For eight bits. Trained encoders of six and twelve layers had 0.993 and 0.998, and no difference
# beyond float32's rounding. With one scale for the activations of a whole batch they had 0.96 and
# 0.97, and an embedding changed by up to a third of its length.
LEAST_COSINE, MOST_APART = 0.98, 0.01
# Short to long, in several languages and scripts, so that every batch has both; the empty one is
# just [CLS] [SEP].
_PROBES = (
    "",
    "ok",
    "where is my parcel?",
    "I'd like a refund for the blue cup, it broke on the 3rd day.",
    "您好，我的快递什么时候能到？",
    "Où est mon colis ? Ça fait déjà 2 semaines...",
    "а когда доставка? " * 40,
    "thanks!",
    "No.",
    "I was charged twice for the same order, 1023-88, on May 4th. Please check, and pay one back.",
    "请稍等，我帮您查询一下订单。",
    "Wo bleibt meine Bestellung? Sie sollte schon am Montag da sein.",
    "👍",
    "how do i change my password, the link in the mail does not work " * 8,
    "أين طلبي؟",
    "SEND ME AN AGENT NOW",
    "12345",
    "¿Dónde está mi pedido?",
    "荷物はいつ届きますか。",
    "Could you tell me whether the shop on Main Street is open on Sundays, and until when?",
    "好的",
    "내 소포는 어디에 있나요?",
    "the the the the",
    "After the update the app closes whenever I open the camera. I have a phone of last year. " * 4,
    "?",
    "https://example.com/track?id=42",
    "मेरा पार्सल कहाँ है?",
    "Cảm ơn bạn rất nhiều!",
    "Yes, at eight o'clock, please.",
    "收到的杯子是坏的，我要退货退款。" * 12,
    "cancel",
    "Proszę o zwrot pieniędzy za zamówienie.",
)
_BATCH = 8


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far the file's embeddings are from the encoder's, on some sentences.

    Attributes:
        difference: the largest norm of a difference, relative to the embedding's norm.
        cosine: the smallest cosine of an embedding with the encoder's.
        apart: the largest norm of the difference between a sentence's embeddings alone and in a
            batch, relative to the embedding's norm.
        quantize: as in `write_onnx`.
    """

    difference: float
    cosine: float
    apart: float
    quantize: str

    def describe(self) -> dict[str, str]:
        """A fact for the model card."""
        if self.quantize == "none":
            share = f"at most {self.difference:.1e} of an embedding's length"
            return {"difference from the trained encoder": f"{share}, on {len(_PROBES)} sentences"}
        return {"weights": f"{self.quantize}; on {len(_PROBES)} sentences {self._figures()}"}

    def check(self, path: pathlib.Path) -> None:
        """Refuses a file whose embeddings are too far from the encoder's.

        Raises:
            OutputError: they are.
        """
        if self.quantize == "none" and not self.difference <= TOLERANCE:
            raise OutputError(
                f"{path}: its embeddings differ from the encoder's by {self.difference:.1e} of "
                f"their length, expected at most {TOLERANCE:.0e}"
            )
        if not (self.cosine >= LEAST_COSINE and self.apart <= MOST_APART):
            raise OutputError(
                f"{path}: eight bits are too coarse for this encoder: {self._figures()}; expected "
                f"at least {LEAST_COSINE} and at most {MOST_APART}. Export it without `quantize`"
            )

    def _figures(self) -> str:
        return (
            f"smallest cosine {self.cosine:.4f} with the trained encoder, embeddings alone and in "
            f"a batch at most {self.apart:.1e} of their length apart"
        )


def write_onnx(
    folder: pathlib.Path,
    encoder: EncoderGraph,
    unit_norm: bool,
    quantize: str,
    **further: Any,
) -> Agreement:
    """Writes model.onnx, and the tokenizer's files, the configuration and settings beside it.

    Args:
        folder: an existing folder to write to.
        encoder: the encoder to export, read from a checkpoint.
        unit_norm: whether embeddings are scaled to unit length.
        quantize: "none", or "int8" for 8-bit weights, see `EightBitGraph`.
        further: see `write_settings`.

    Returns:
        How closely the file's embeddings agree with the encoder's.

    Raises:
        InputError: the encoder has a part that ONNX export does not support.
        OutputError: the file's embeddings differ from the encoder's; in eight bits: by too much,
            or a sentence's alone from those in a batch.
    """
    assert encoder.source
    config = true_config(encoder.source)
    build = functools.partial(
        build_onnx_graph,
        read_bert_tensors(encoder.source, config),
        config,
        encoder.pooling,
        list_maps(encoder.postprocessing, FORMAT),
        unit_norm,
    )
    model = build()
    onnx.checker.check_model(model)
    path = folder / MODEL_FILE
    onnx.save(model, path)
    agreement = _compare(path, encoder, unit_norm, "none")
    agreement.check(path)
    if quantize == "int8":
        ends = encoder.vocabulary.cls_id, encoder.vocabulary.sep_id
        onnx.save(eight_bits.quantize(model, build, ends, encoder.max_sequence_length), path)
        agreement = _compare(path, encoder, unit_norm, quantize)
        agreement.check(path)
    logging.info(
        "%s: smallest cosine with the encoder %.6f on %d sentences",
        path.name,
        agreement.cosine,
        len(_PROBES),
    )
    encoder.vocabulary.write_tokenizer(folder, encoder.max_sequence_length)
    checkpoints.write_max_sequence_length(folder, encoder.max_sequence_length)
    sentence_modules.write_prefix(folder, encoder.vocabulary.prefix)
    write_json(folder / "config.json", config, sort_keys=True)
    fingerprint = export_fingerprint(encoder.fingerprint(), unit_norm)
    further |= {"pooling": encoder.pooling, "unit_norm": unit_norm}
    write_settings(folder, quantize, fingerprint, **further)
    return agreement


def write_settings(folder: pathlib.Path, quantize: str, fingerprint: str, **further: Any) -> None:
    """Writes the settings that `OnnxFile.written` reads.

    Args:
        folder: the export's folder.
        quantize: as in `write_onnx`.
        fingerprint: the exported model's fingerprint; written only if the file is not quantized.
        further: settings that are in no other file.
    """
    settings = {
        **further,
        "compute_dtype": "float32" if quantize == "none" else quantize,
        "sha256": hash_file(folder / MODEL_FILE),
        **({"fingerprint": fingerprint} if quantize == "none" else {}),
    }
    write_json(folder / SETTINGS_FILE, settings, sort_keys=True)


def _compare(
    path: pathlib.Path, encoder: EncoderGraph, unit_norm: bool, quantize: str
) -> Agreement:
    """Compares the probes in batches, then each alone, to check that both axes are dynamic."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    ids = encoder.tokenize(tf.constant(_PROBES))

    def run(first: int, count: int) -> tuple[np.ndarray, tf.Tensor]:
        batch = ids[first : first + count]
        mask = tf.ones_like(batch).to_tensor().numpy().astype(np.int64)
        padded = batch.to_tensor()
        inputs = {"input_ids": padded.numpy().astype(np.int64), "attention_mask": mask}
        return session.run(None, inputs)[0].astype(np.float64), padded

    alone = np.concatenate([run(i, 1)[0] for i in range(len(_PROBES))])
    found, expected = [], []
    for first in range(0, len(_PROBES), _BATCH):
        embeddings, padded = run(first, _BATCH)
        found.append(embeddings)
        expected.append(encoder.pool_tokens(padded).numpy().astype(np.float64))
    together, true = np.concatenate(found), np.concatenate(expected)
    if unit_norm:
        true /= _norms(true)[:, None]
    a, b = np.concatenate([alone, together]), np.concatenate([true, true])
    cosines = (a * b).sum(axis=1) / (_norms(a) * _norms(b))
    return Agreement(
        difference=float((np.linalg.norm(a - b, axis=1) / _norms(b)).max()),
        cosine=float(cosines.min()),
        apart=float((np.linalg.norm(alone - together, axis=1) / _norms(together)).max()),
        quantize=quantize,
    )


def _norms(x: np.ndarray) -> np.ndarray:
    return np.maximum(np.linalg.norm(x, axis=1), 1e-12)
