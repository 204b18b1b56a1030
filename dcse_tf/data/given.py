"""Candidates that a corpus gives for the responses of its samples, as tensors of fixed shapes."""

import tensorflow as tf

Tensors = dict[str, tf.Tensor]


def pad_given(given: dict, most: int, max_tokens: int) -> Tensors:
    """The candidates that a record gives, as tensors of a fixed shape.

    Args:
        given: see `parse_given`; with scores.
        most: negatives of the session of the corpus that has most.
        max_tokens: tokens of the longest utterance of the corpus.

    Returns:
        given_token_ids: int32 `[most, max_tokens]`, zero-padded.
        given_utterances: int64 `[most]`, fingerprints.
        given_mask: bool `[most]`, True = a negative.
        teacher_scores: float32 `[1 + most]`, of the true response and then of the negatives.
    """
    count = tf.shape(given["utterances"])[0]
    missing = [[0, most - count]]
    return {
        "given_token_ids": given["token_ids"].to_tensor(shape=[most, max_tokens]),
        "given_utterances": tf.ensure_shape(tf.pad(given["utterances"], missing), [most]),
        "given_mask": tf.sequence_mask(count, most),
        "teacher_scores": tf.ensure_shape(tf.pad(given["scores"], missing), [1 + most]),
    }


def append_given(turns: Tensors, samples: Tensors) -> Tensors:
    """Puts the given negatives of samples after all turns.

    Args:
        turns: those of the samples, see `dcse_tf.data.batch`.
        samples: batched, of which each has what `pad_given` gives.

    Returns:
        The turns with given, given_mask and teacher_scores.
    """
    mask, tokens = samples["given_mask"], samples["token_ids"].shape[-1]
    begin = tf.size(turns["utterances"])
    places = begin + tf.reshape(tf.range(tf.size(mask)), tf.shape(mask))
    own = turns["response"][:, None]
    added = {
        "token_ids": tf.reshape(samples["given_token_ids"], [-1, tokens]),
        "utterances": tf.reshape(samples["given_utterances"], [-1]),
    }
    return {
        **turns,
        **{name: tf.concat([turns[name], value], axis=0) for name, value in added.items()},
        "given": tf.concat([own, tf.where(mask, places, own)], axis=1),
        "given_mask": tf.concat([tf.ones_like(own, tf.bool), mask], axis=1),
        "teacher_scores": samples["teacher_scores"],
    }
