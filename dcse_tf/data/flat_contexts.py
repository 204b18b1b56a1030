"""Joins each context into one sequence, for encoders that read it as a whole (SiameseBERT_M)."""

import tensorflow as tf

from dcse_tf.bert.layout import Tensors, fingerprint_rows, join_tables


def flatten_contexts(turns: Tensors, turns_before: int, max_tokens: int) -> Tensors:
    """Joins every row's context into one sequence: [CLS] a [SEP] b [SEP] and so on.

    Turns keep their order, and empty slots are skipped. If a sequence is too long, the tokens
    farthest from the response are cut; of two equally far ones, the one after the response is cut
    first. [CLS] and the last [SEP] are kept.

    Args:
        turns: see `dcse_tf.data.batch`.
        turns_before: number of slots before the response.
        max_tokens: maximum length of a sequence in tokens, at least 2.

    Returns:
        The turns of the same rows, each with one context slot, which is never empty. The sequences
        follow the utterances. All fingerprints are recomputed from the tokens.
    """
    # The turns without their [CLS]. The sequence begins with the [CLS] of its response.
    words = tf.gather(turns["token_ids"][:, 1:], turns["context"])
    is_real = (words != 0) & turns["turn_mask"][..., None]
    kept = _keep_nearest(is_real, turns_before, max_tokens - 1)
    sequences = tf.ragged.boolean_mask(_flatten(words), kept)
    first = tf.gather(turns["token_ids"][:, :1], turns["response"])
    sequences = tf.concat([tf.RaggedTensor.from_tensor(first), sequences], axis=1).to_tensor()

    token_ids = join_tables(turns["token_ids"], sequences)
    utterances, rows = tf.shape(turns["token_ids"])[0], tf.shape(sequences)[0]
    return {
        **turns,
        "token_ids": token_ids,
        "utterances": fingerprint_rows(token_ids),
        "context": (utterances + tf.range(rows))[:, None],
        "turn_mask": tf.ones([rows, 1], tf.bool),
    }


def _flatten(values: tf.Tensor) -> tf.Tensor:
    """Reshapes `[rows, slots, tokens]` to `[rows, slots x tokens]`."""
    shape = tf.shape(values)
    return tf.reshape(values, [shape[0], shape[1] * shape[2]])


def _keep_nearest(is_real: tf.Tensor, turns_before: int, budget: int) -> tf.Tensor:
    """Chooses the tokens nearest to the response, always including the last token of the row.

    Args:
        is_real: bool `[rows, slots, tokens]`, True = real token.
        turns_before: number of slots before the response.
        budget: maximum number of tokens per row.

    Returns:
        bool `[rows, slots x tokens]`, True = the token is kept.
    """
    real = _flatten(is_real)
    before = _flatten(is_real[:, :turns_before])
    after = _flatten(is_real[:, turns_before:])
    count = tf.cast(before, tf.int32), tf.cast(after, tf.int32)

    # Rank tokens by the number of real tokens between them and the response. Ranks are even before
    # the response and odd after it, so that no two tokens of a row have the same rank.
    distance = tf.concat(
        [2 * tf.cumsum(count[0], axis=1, reverse=True, exclusive=True),
         2 * tf.cumsum(count[1], axis=1, exclusive=True) + 1],
        axis=1,
    )  # fmt: skip
    behind = tf.cumsum(tf.cast(real, tf.int32), axis=1, reverse=True, exclusive=True)
    distance = tf.where(real & (behind == 0), -1, distance)
    distance = tf.where(real, distance, tf.int32.max)

    nearest = tf.sort(distance, axis=1)[:, :budget]
    return real & (distance <= nearest[:, -1:])
