"""Replaces tokens: those to predict (BERT, section 3.1), and those of texts without sense."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class MaskingRule:
    """How tokens are masked.

    Attributes:
        mask_rate: share of the ordinary tokens to predict; [CLS] and [SEP] are never predicted.
        max_predictions: maximum number of predictions per text.
        mask_id: id of [MASK].
        special_ids: ids that are neither predicted nor drawn as replacements.
        vocabulary_size: number of entries of the vocabulary.
        prefix_tokens: number of tokens of the prefix, after [CLS]; they are not predicted.
    """

    mask_rate: float
    max_predictions: int
    mask_id: int
    special_ids: tuple[int, ...]
    vocabulary_size: int
    prefix_tokens: int = 0


def mask_tokens(
    token_ids: tf.Tensor, rule: MaskingRule, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws the tokens to predict: 80% become [MASK], 10% a random token, and 10% stay as they are.

    Every text with an ordinary token has at least one prediction. The seed, int `[2]`, alone
    determines the draw.

    Returns:
        The texts, int32 `[texts, tokens]`, with the masked tokens replaced, and bool `[texts,
        tokens]`, True = a token to predict.
    """
    seeds = tf.random.split(seed, 3)
    special = tf.reduce_any(
        token_ids[..., None] == tf.constant([0, *rule.special_ids], token_ids.dtype), axis=-1
    )
    special |= tf.range(tf.shape(token_ids)[1]) <= rule.prefix_tokens
    order = tf.random.stateless_uniform(tf.shape(token_ids), seeds[0])
    # Rows may be shorter than max_predictions, so pad them with positions that are never drawn.
    order = tf.pad(
        tf.where(special, -1.0, order), [[0, 0], [0, rule.max_predictions]], constant_values=-1.0
    )
    drawn, positions = tf.math.top_k(order, k=rule.max_predictions)
    maskable = tf.reduce_sum(tf.cast(~special, tf.float32), axis=1, keepdims=True)
    wanted = tf.maximum(1.0, tf.round(maskable * rule.mask_rate))
    rank = tf.range(rule.max_predictions, dtype=tf.float32)[None, :]
    chosen = (drawn >= 0.0) & (rank < wanted)
    positions = tf.where(chosen, positions, 0)
    true_ids = tf.gather(token_ids, positions, batch_dims=1)
    ordinary = [i for i in range(rule.vocabulary_size) if i not in {0, *rule.special_ids}]
    shape = tf.shape(true_ids)
    pick = tf.random.stateless_uniform(shape, seeds[1], 0, len(ordinary), tf.int32)
    random_ids = tf.gather(tf.constant(ordinary, true_ids.dtype), pick)
    fate = tf.random.stateless_uniform(shape, seeds[2])
    hidden = tf.where(fate < 0.8, tf.cast(rule.mask_id, true_ids.dtype), random_ids)
    hidden = tf.where(fate < 0.9, hidden, true_ids)

    places = tf.where(chosen)
    updates = tf.stack([places[:, 0], tf.cast(tf.gather_nd(positions, places), tf.int64)], axis=1)
    masked = tf.tensor_scatter_nd_update(token_ids, updates, tf.gather_nd(hidden, places))
    nothing, every = tf.zeros_like(token_ids, tf.bool), tf.ones_like(places[:, 0], tf.bool)
    return masked, tf.tensor_scatter_nd_update(nothing, updates, every)


# Probability that an ordinary token of a text is replaced.
GARBLED = 0.5


def garble(
    token_ids: tf.Tensor,
    kept_ids: Sequence[int],
    words: Sequence[int],
    prefix_tokens: int,
    seed: tf.Tensor,
) -> tf.Tensor:
    """Replaces each ordinary token of zero-padded texts, int32 `[texts, tokens]`, with probability
    `GARBLED`, by one of the words, drawn uniformly. The seed, int `[2]`, alone determines the draw.

    `kept_ids`, which include [PAD], and the `prefix_tokens` after [CLS] are never replaced.
    """
    seeds, shape = tf.random.split(seed, 2), tf.shape(token_ids)
    kept = tf.constant(kept_ids, token_ids.dtype)
    stays = tf.reduce_any(token_ids[..., None] == kept, axis=-1)
    stays |= tf.range(shape[1]) <= prefix_tokens
    chosen = ~stays & (tf.random.stateless_uniform(shape, seeds[0]) < GARBLED)
    drawn = tf.random.stateless_uniform(shape, seeds[1], 0, len(words), tf.int32)
    return tf.where(chosen, tf.gather(tf.constant(words, token_ids.dtype), drawn), token_ids)
