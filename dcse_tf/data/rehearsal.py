"""Garbled texts in a step, on which an encoder rehearses the embeddings that it started with.

They are responses of the step with half of their tokens replaced by random ones: texts of no
domain, which need no additional corpus (Robins 1995, "Catastrophic Forgetting, Rehearsal and
Pseudorehearsal").
"""

import dataclasses

import tensorflow as tf

from dcse_tf.bert.layout import Tensors, fingerprint_rows, join_tables

# Probability that an ordinary token of a text is replaced.
GARBLED = 0.5


@dataclasses.dataclass(frozen=True)
class RehearsalForm:
    """Which texts a step rehearses.

    Attributes:
        texts: number of texts per step, over all replicas; divisible by the number of replicas.
        special_ids: ids that are never replaced, including [PAD].
        words: ids that replacements are drawn from.
        prefix_tokens: number of tokens of the prefix, after [CLS]; they are never replaced either.
    """

    texts: int
    special_ids: tuple[int, ...]
    words: tuple[int, ...]
    prefix_tokens: int = 0


def garble(token_ids: tf.Tensor, form: RehearsalForm, seed: tf.Tensor) -> tf.Tensor:
    """Replaces each ordinary token, with probability `GARBLED`, by a word drawn uniformly.

    Args:
        token_ids: int32 `[texts, tokens]`, zero-padded.
        form: the ids to keep, and the possible replacements.
        seed: int `[2]`; it alone determines the draw.

    Returns:
        int32 `[texts, tokens]`.
    """
    seeds, shape = tf.random.split(seed, 2), tf.shape(token_ids)
    special = tf.constant(form.special_ids, token_ids.dtype)
    stays = tf.reduce_any(token_ids[..., None] == special, axis=-1)
    stays |= tf.range(shape[1]) <= form.prefix_tokens
    chosen = ~stays & (tf.random.stateless_uniform(shape, seeds[0]) < GARBLED)
    words = tf.constant(form.words, token_ids.dtype)
    drawn = tf.random.stateless_uniform(shape, seeds[1], 0, len(form.words), tf.int32)
    return tf.where(chosen, tf.gather(words, drawn), token_ids)


def append_garbled(turns: Tensors, form: RehearsalForm, seed: tf.Tensor) -> Tensors:
    """Appends garbled copies of responses of the step to the turns.

    Args:
        turns: the turns of the step's dialogues, see `dcse_tf.data.batch`.
        form: how many texts, and how they are garbled.
        seed: int `[2]`; it alone determines the draw.

    Returns:
        The turns, with rehearsed: int32 `[texts, 1]`, the indices of these texts in the turns.
    """
    seeds = tf.random.split(seed, 2)
    rows = tf.size(turns["response"])
    drawn = tf.random.stateless_uniform([form.texts], seeds[0], 0, rows, tf.int32)
    texts = tf.gather(turns["token_ids"], tf.gather(turns["response"], drawn))
    texts = garble(texts, form, seeds[1])
    begin = tf.size(turns["utterances"])
    return {
        **turns,
        "token_ids": join_tables(turns["token_ids"], texts),
        "utterances": tf.concat([turns["utterances"], fingerprint_rows(texts)], axis=0),
        "rehearsed": begin + tf.range(form.texts)[:, None],
    }


def share_rehearsed(turns: Tensors, rows_that_count: tf.Tensor, replicas: int) -> list[Tensors]:
    """Divides a step's garbled texts evenly among the replicas.

    Args:
        turns: the turns with or without such texts, see `append_garbled`.
        rows_that_count: float32 scalar, number of the dialogues' rows with a negative, over all
            replicas.
        replicas: number of replicas; must divide the number of texts.

    Returns:
        For every replica rehearsed and rehearsal_weights: float32 `[texts]`, all equal. Over all
        replicas the weights add up to `rows_that_count`, so that both losses become means when
        divided by it. Empty dicts without texts.
    """
    if "rehearsed" not in turns:
        return [{}] * replicas
    parts = tf.split(turns["rehearsed"], replicas)
    texts = tf.cast(tf.shape(turns["rehearsed"])[0], tf.float32)
    return [
        {"rehearsed": part, "rehearsal_weights": tf.ones_like(part[:, 0], tf.float32) * weight}
        for part, weight in ((part, rows_that_count / texts) for part in parts)
    ]
