"""Pairs of neighbours that a step contrasts in addition to its dialogues.

`mine_neighbours` writes the corpus of pairs. For each text of a pair, the other one is the
positive, and the texts of the step's other pairs are the negatives.
"""

import dataclasses

import tensorflow as tf

from dcse_tf.bert.layout import Tensors, join_tables
from dcse_tf.data.manifest import Corpus


@dataclasses.dataclass(frozen=True)
class NeighbourForm:
    """Which pairs a step has.

    Attributes:
        corpus: the corpus of pairs.
        pairs: number of pairs per step, over all replicas; divisible by the number of replicas.
    """

    corpus: Corpus
    pairs: int


# The tensors that are divided by row among the replicas.
ROW_TENSORS = ("neighbour_pairs", "neighbour_mask", "neighbour_weights")


def append_pairs(turns: Tensors, pairs: dict) -> Tensors:
    """Appends the texts of pairs to the turns.

    Args:
        turns: the turns of the step's dialogues, see `dcse_tf.data.batch`.
        pairs: token_ids int32 `[pairs, (2), (tokens)]` and utterances int64 `[pairs, (2)]`.

    Returns:
        The turns, with
            neighbours: int32 `[texts, 1]`, the indices of the pairs' distinct texts in the turns;
            neighbour_pairs: int32 `[rows, 2]`, a text and its partner, as indices into
                `neighbours`. Each pair makes two consecutive rows.
            neighbour_mask: bool `[rows, texts]`, True = a negative: neither the text itself nor its
                partner in any pair of the step.
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
    """Divides a step's pairs among the replicas. Each gets the same number of whole pairs.

    Every replica gets all texts, so that the negatives do not depend on the number of replicas.

    Args:
        turns: the turns with or without pairs, see `append_pairs`.
        rows_that_count: float32 scalar, number of the dialogues' rows with a negative, over all
            replicas.
        replicas: number of replicas; must divide the number of pairs.

    Returns:
        For every replica neighbours, neighbour_pairs, neighbour_mask, and neighbour_weights:
        float32 `[rows]`, equal for all rows of the step with a negative and 0 for others. Over all
        replicas the weights add up to `rows_that_count`, so that both losses become means when
        divided by it. Empty dicts without pairs.
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
