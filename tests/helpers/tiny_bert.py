"""A small random BERT, and how utterances of unequal length become its table."""

import pathlib
from collections.abc import Sequence

import keras
import numpy as np
import safetensors.numpy
import tensorflow as tf

from dcse_tf.bert import bert, weights
from dcse_tf.bert.fused_bert import FusedBert
from dcse_tf.bert.vocabulary import Vocabulary, WordPiece

LAYERS, DIM, VOCABULARY_SIZE = 2, 64, 60

_WORDS = "where is my parcel it left today i want a refund for the blue cup thanks 好 的 发 货 ok ."
# Entries without a use fill the vocabulary up to its size.
VOCABULARY = WordPiece(
    tuple(
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS.split(" ")]
         + [f"[unused{i}]" for i in range(VOCABULARY_SIZE)])[:VOCABULARY_SIZE]
    ),
    lowercase=True,
)  # fmt: skip


def build_backbone(
    seed: int = 3,
    dropout: float = 0.0,
    stddev: float = 0.05,
    epsilon: float = 1e-12,
    shape: tuple[int, int, int] = (LAYERS, DIM, VOCABULARY_SIZE),
):
    """Random weights, biases too, under which similarities differ.

    What tokens share is kept small (their segment, and the average that attention makes): where
    token embeddings point one way, every similarity is 1.
    """
    config = bert.make_bert_config(*shape)
    config["layer_norm_eps"] = epsilon
    backbone = bert.build_backbone(config, dropout)
    bert.initialize_weights(backbone.trainable_variables, seed, stddev)
    rng = np.random.default_rng(seed)
    for variable in backbone.trainable_variables:
        if "bias" in variable.name or variable.name in ("gamma", "beta"):
            variable.assign_add(rng.normal(scale=0.1, size=variable.shape))
    segments = backbone.get_layer("segment_embedding").weights[0]
    segments.assign(0.1 * segments)
    return backbone


def fuse(backbone, compute_dtype: str = "float32") -> FusedBert:
    """The fused form of a backbone, by the tensors that a checkpoint of it would have."""
    config = bert.make_bert_config(backbone.num_layers, backbone.hidden_dim, VOCABULARY_SIZE)
    config["num_attention_heads"] = backbone.num_heads
    config["layer_norm_eps"] = float(backbone.embeddings_layer_norm.epsilon)
    return FusedBert(weights.to_tensors(weights.backbone_weights(backbone)), config, compute_dtype)


def draw_utterances(count: int, seed: int = 0, longest: int = 7) -> list[list[int]]:
    """Distinct lists of token ids without padding, of 2 to `longest` tokens."""
    rng = np.random.default_rng(seed)
    lengths = [2 + i % (longest - 1) for i in range(count)]
    return [rng.integers(5, VOCABULARY_SIZE, size=length).tolist() for length in lengths]


def make_table(utterances: Sequence[list[int]], extra: int = 0, fill: int = 0):
    """Token ids `[utterances, tokens]` and the mask, padded `extra` beyond need with `fill`."""
    tokens = max(len(ids) for ids in utterances) + extra
    token_ids = np.full((len(utterances), tokens), fill, np.int32)
    for row, ids in zip(token_ids, utterances, strict=True):
        row[: len(ids)] = ids
    lengths = [len(ids) for ids in utterances]
    return {"token_ids": tf.constant(token_ids), "padding_mask": tf.sequence_mask(lengths, tokens)}


def encode_alone(encoder: keras.Model, ids: list[int]) -> np.ndarray:
    """Token embeddings `[tokens, dim]` of one utterance, nothing padded."""
    return encoder(make_table([ids]))[0].numpy()


def save_checkpoint(
    folder: pathlib.Path, backbone, vocabulary: Vocabulary = VOCABULARY
) -> pathlib.Path:
    """Makes a folder of a backbone that the command lines take as --model; returns it."""
    folder.mkdir()
    config = bert.make_bert_config(backbone.num_layers, backbone.hidden_dim, len(vocabulary.tokens))
    config["layer_norm_eps"] = float(backbone.embeddings_layer_norm.epsilon)
    bert.save_backbone(folder, backbone, config)
    vocabulary.write(folder)
    return folder


def save_random(
    folder: pathlib.Path, vocabulary: Vocabulary = VOCABULARY, seed=3, layers=LAYERS, dim=DIM
) -> pathlib.Path:
    """Makes such a folder of a backbone of this shape."""
    backbone = build_backbone(seed, shape=(layers, dim, len(vocabulary.tokens)))
    return save_checkpoint(folder, backbone, vocabulary)


def read_tensors(folder: pathlib.Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / "model.safetensors")
