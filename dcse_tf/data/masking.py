"""Masked language modelling: draws tokens to mask and their replacements (BERT, section 3.1)."""

import dataclasses

import tensorflow as tf

Tensors = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class MaskingRule:
    """How tokens are masked.

    Attributes:
        mask_rate: share of the ordinary tokens to predict; [CLS] and [SEP] are never predicted.
        max_predictions: maximum number of predictions per utterance.
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


def mask_tokens(token_ids: tf.Tensor, rule: MaskingRule, seed: tf.Tensor) -> Tensors:
    """Draws the tokens to predict: 80% become [MASK], 10% a random token, and 10% stay as they are.

    Every utterance with an ordinary token has at least one prediction.

    Args:
        token_ids: int32 `[batch, tokens]`, zero-padded.
        rule: how tokens are masked.
        seed: int `[2]`; it alone determines the draw.

    Returns:
        token_ids: int32 `[batch, tokens]`, with the masked tokens replaced.
        padding_mask: bool `[batch, tokens]`, True = real token.
        mask_positions: int32 `[batch, max_predictions]`, positions of the tokens to predict.
        mask_ids: int32 `[batch, max_predictions]`, the true tokens there.
        mask_weights: float32 `[batch, max_predictions]`, 1 = a prediction, 0 = none.
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
    hidden_ids = _hide(true_ids, rule, seeds[1:])

    places = tf.where(chosen)
    updates = tf.stack([places[:, 0], tf.cast(tf.gather_nd(positions, places), tf.int64)], axis=1)
    return {
        "token_ids": tf.tensor_scatter_nd_update(
            token_ids, updates, tf.gather_nd(hidden_ids, places)
        ),
        "padding_mask": token_ids != 0,
        "mask_positions": positions,
        "mask_ids": tf.where(chosen, true_ids, 0),
        "mask_weights": tf.cast(chosen, tf.float32),
    }


def list_predictions(batch: Tensors) -> Tensors:
    """Flattens the predictions of a batch into one list, without unused positions.

    So the prediction head computes only what is needed.

    Args:
        batch: mask_positions, mask_ids, mask_weights `[batch, max_predictions]` and padding_mask
            `[batch, tokens]`, as `mask_tokens` returns them.

    Returns:
        mask_positions: int32 `[predictions]`, indices into the batch's flattened tokens.
        mask_ids: int32 `[predictions]`.
        mask_weights: float32 `[predictions]`.
    """
    rows, tokens = tf.unstack(tf.shape(batch["padding_mask"]))
    chosen = batch["mask_weights"] > 0.0
    flat = {
        "mask_positions": batch["mask_positions"] + (tf.range(rows) * tokens)[:, None],
        "mask_ids": batch["mask_ids"],
        "mask_weights": batch["mask_weights"],
    }
    return {name: tf.boolean_mask(value, chosen) for name, value in flat.items()}


def _hide(true_ids: tf.Tensor, rule: MaskingRule, seeds: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(true_ids)
    ordinary = [i for i in range(rule.vocabulary_size) if i not in {0, *rule.special_ids}]
    pick = tf.random.stateless_uniform(shape, seeds[0], 0, len(ordinary), tf.int32)
    random_ids = tf.gather(tf.constant(ordinary, true_ids.dtype), pick)
    fate = tf.random.stateless_uniform(shape, seeds[1])
    hidden = tf.where(fate < 0.8, tf.cast(rule.mask_id, true_ids.dtype), random_ids)
    return tf.where(fate < 0.9, hidden, true_ids)
