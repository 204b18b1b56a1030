"""Pairs of neighbours in a step: what is told apart, beside the step's dialogues.

A corpus of pairs is what `mine_neighbours` wrote. Each of the two texts of a pair is told from the
other texts of the step's pairs, the other one being the positive.
"""

import dataclasses

import tensorflow as tf

from dcse_tf.data.manifest import Corpus
from dcse_tf.model.layout import join_tables

Tensors = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class NeighbourForm:
    """Which pairs a step has.

    Attributes:
        corpus: of the pairs.
        pairs: of a step, of all replicas together; the number of replicas divides it.
    """

    corpus: Corpus
    pairs: int


# What a replica has of the rows besides the texts' places.
ROW_TENSORS = ("neighbour_pairs", "neighbour_mask", "neighbour_weights")


def append_pairs(turns: Tensors, pairs: dict) -> Tensors:
    """Puts the texts of pairs after all turns.

    Args:
        turns: of the step's dialogues, see `dcse_tf.data.batch`.
        pairs: token_ids int32 `[pairs, (2), (tokens)]` and utterances int64 `[pairs, (2)]`.

    Returns:
        The turns with
            neighbours: int32 `[texts, 1]`, the places of the pairs' distinct texts among the turns;
            neighbour_pairs: int32 `[rows, 2]`, a text and its partner, both among `neighbours`. A
                pair makes two rows, one after the other.
            neighbour_mask: bool `[rows, texts]`, True = a negative: neither the text itself nor a
                partner of it in any pair of the step.
    """
    token_ids = pairs["token_ids"].merge_dims(0, 1).to_tensor()
    added = pairs["utterances"].flat_values
    texts, index = tf.unique(added)
    first = tf.math.unsorted_segment_min(tf.range(tf.size(added)), index, tf.size(texts))

    both = tf.reshape(index, [-1, 2])
    rows = tf.reshape(tf.stack([both, both[:, ::-1]], axis=1), [-1, 2])
    count = tf.size(texts)
    partners = tf.scatter_nd(rows, tf.ones([tf.shape(rows)[0]], tf.int32), [count, count]) > 0
    refused = tf.gather(partners | tf.eye(count, dtype=tf.bool), rows[:, 0])

    return {
        **turns,
        "token_ids": join_tables(turns["token_ids"], token_ids),
        "utterances": tf.concat([turns["utterances"], added], axis=0),
        "neighbours": (tf.size(turns["utterances"]) + first)[:, None],
        "neighbour_pairs": rows,
        "neighbour_mask": ~refused,
    }


def share_pairs(turns: Tensors, rows_that_count: tf.Tensor, replicas: int) -> list[Tensors]:
    """What each replica has of a step's pairs: the rows of as many whole pairs, and all texts.

    So the negatives do not depend on the number of replicas.

    Args:
        turns: with pairs or without, see `append_pairs`.
        rows_that_count: float32 scalar, of the dialogues, of all replicas together.
        replicas: how many; it divides the number of pairs.

    Returns:
        For every replica neighbours, neighbour_pairs, neighbour_mask, and neighbour_weights:
        float32 `[rows]`, equal for all rows of the step with a negative, and 0 for others. They add
        up to the number of the dialogues' rows that count, so that sums over either divided by that
        number are means. Empty without pairs.
    """
    if "neighbours" not in turns:
        return [{}] * replicas
    counts = tf.cast(tf.reduce_any(turns["neighbour_mask"], axis=1), tf.float32)
    weights = counts * tf.math.divide_no_nan(rows_that_count, tf.reduce_sum(counts))
    rows = {**turns, "neighbour_weights": weights}
    parts = {name: tf.split(rows[name], replicas) for name in ROW_TENSORS}
    return [
        {"neighbours": turns["neighbours"], **{name: parts[name][i] for name in ROW_TENSORS}}
        for i in range(replicas)
    ]
