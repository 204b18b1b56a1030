"""A batch over eight utterances, and what the reference says of it."""

import keras
import reference
import tensorflow as tf
from tiny_bert import draw_utterances, encode_alone, make_table

TEMPERATURE = 0.1
# Rows of a batch: utterances of the context and candidates, the true response first. Utterances
# are used more than once; rows have different numbers of turns and of candidates.
CONTEXTS = [[0, 1, 2], [3], [5, 0]]
CANDIDATES = [[4, 6, 7], [6, 4], [7, 4, 3]]
INDEX_NAMES = ("context_index", "turn_mask", "candidate_index", "candidate_mask")


def make_index(contexts: list[list[int]], candidates: list[list[int]], absent: int = 0):
    """The index of a batch; places that nothing fills point at utterance `absent`."""

    def pad(rows):
        ragged = tf.ragged.constant(rows, tf.int32)
        return ragged.to_tensor(absent), tf.sequence_mask(ragged.row_lengths())

    values = (*pad(contexts), *pad(candidates))
    return dict(zip(INDEX_NAMES, values, strict=True))


def make_batch(absent: int = 0, extra: int = 0, fill: int = 0):
    """The batch, padded in the index with `absent` and in the table as `make_table` says."""
    table = make_table(draw_utterances(8), extra, fill)
    return {**table, **make_index(CONTEXTS, CANDIDATES, absent)}


def reference_similarities(encoder: keras.Model) -> list[list[float]]:
    """Of every row's candidates, from token embeddings that were encoded without padding."""
    embedded = [encode_alone(encoder, ids) for ids in draw_utterances(8)]
    return [
        [reference.similarity([embedded[i] for i in turns], embedded[j]) for j in candidates]
        for turns, candidates in zip(CONTEXTS, CANDIDATES, strict=True)
    ]
