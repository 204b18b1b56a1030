"""Garbled texts in a step, on which an encoder rehearses what it said at the start.

They are responses of the step half of whose tokens are others of the vocabulary: texts of no
domain, for which no corpus is needed (Robins 1995, "Catastrophic Forgetting, Rehearsal and
Pseudorehearsal").
"""

import dataclasses

import tensorflow as tf

from dcse_tf.model.layout import fingerprint_rows, join_tables

Tensors = dict[str, tf.Tensor]
# Share of the ordinary tokens of a text that become others.
GARBLED = 0.5


@dataclasses.dataclass(frozen=True)
class RehearsalForm:
    """Which texts a step rehearses.

    Attributes:
        texts: of a step, of all replicas together; the number of replicas divides it.
        special_ids: ids that stay; [PAD] among them.
        words: ids that are drawn as replacements.
    """

    texts: int
    special_ids: tuple[int, ...]
    words: tuple[int, ...]


def garble(token_ids: tf.Tensor, form: RehearsalForm, seed: tf.Tensor) -> tf.Tensor:
    """Replaces ordinary tokens, each with probability `GARBLED`, by words drawn uniformly.

    Args:
        token_ids: int32 `[texts, tokens]`, zero-padded.
        form: which stay, and what the others may become.
        seed: int `[2]`; it alone decides the draw.

    Returns:
        int32 `[texts, tokens]`.
    """
    seeds, shape = tf.random.split(seed, 2), tf.shape(token_ids)
    special = tf.constant(form.special_ids, token_ids.dtype)
    stays = tf.reduce_any(token_ids[..., None] == special, axis=-1)
    chosen = ~stays & (tf.random.stateless_uniform(shape, seeds[0]) < GARBLED)
    words = tf.constant(form.words, token_ids.dtype)
    drawn = tf.random.stateless_uniform(shape, seeds[1], 0, len(form.words), tf.int32)
    return tf.where(chosen, tf.gather(words, drawn), token_ids)


def append_garbled(turns: Tensors, form: RehearsalForm, seed: tf.Tensor) -> Tensors:
    """Puts garbled responses of a step after all turns.

    Args:
        turns: of the step's dialogues, see `dcse_tf.data.batch`.
        form: which.
        seed: int `[2]`; it alone decides the draw.

    Returns:
        The turns with rehearsed: int32 `[texts, 1]`, the places of the texts among the turns.
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
    """What each replica has of a step's garbled texts: as many as every other.

    Args:
        turns: with such texts or without, see `append_garbled`.
        rows_that_count: float32 scalar, of the dialogues, of all replicas together.
        replicas: how many; it divides the number of texts.

    Returns:
        For every replica rehearsed, and rehearsal_weights: float32 `[texts]`, all equal, which add
        up over the replicas to the rows that count, so that sums over either divided by that number
        are means. Empty without texts.
    """
    if "rehearsed" not in turns:
        return [{}] * replicas
    parts = tf.split(turns["rehearsed"], replicas)
    texts = tf.cast(tf.shape(turns["rehearsed"])[0], tf.float32)
    return [
        {"rehearsed": part, "rehearsal_weights": tf.ones_like(part[:, 0], tf.float32) * weight}
        for part, weight in ((part, rows_that_count / texts) for part in parts)
    ]
