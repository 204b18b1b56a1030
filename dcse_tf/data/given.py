"""Candidates that a corpus gives for its sessions' last turns, as tensors of fixed shapes."""

import tensorflow as tf

Tensors = dict[str, tf.Tensor]


def pad_given(given: dict, most: int, max_tokens: int) -> Tensors:
    """Pads the candidates that a record gives to fixed shapes.

    Args:
        given: the candidates, with scores, see `parse_given`.
        most: the largest number of negatives of any session in the corpus.
        max_tokens: length of the longest utterance of the corpus, in tokens.

    Returns:
        given_token_ids: int32 `[most, max_tokens]`, zero-padded.
        given_utterances: int64 `[most]`, fingerprints.
        given_mask: bool `[most]`, True = a negative.
        teacher_scores: float32 `[1 + most]`, scores of the true response and then of the negatives.
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
    """Appends the given negatives of samples to the turns.

    Args:
        turns: the turns of the samples, see `dcse_tf.data.batch`.
        samples: the batched samples, with the entries that `pad_given` returns.

    Returns:
        The turns, with given, given_mask and teacher_scores.
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
