"""Dialogues as training draws them, whose turns say what they are.

A turn's only token is 100 x session + turn.
"""

import tensorflow as tf

from dcse_tf.data import dialogue_tasks as tasks


def session(number, turns, speakers=None, same_as=None):
    """The features of a record; turn t says [CLS] 100 x number + t [SEP]."""
    texts = [100 * number + turn for turn in range(turns)]
    return {
        "session": tf.constant(number, tf.int64),
        "token_ids": tf.ragged.constant([[2, text, 3] for text in texts], tf.int32),
        "utterances": tf.constant(same_as or texts, tf.int64),
        "speakers": tf.constant(speakers or [turn % 2 for turn in range(turns)], tf.int32),
    }


def collect(sessions, context_turns=20, seed=5):
    """The dialogues of a step of some sessions."""
    return tasks.Dialogues.of(
        batch_samples(sessions, lambda *drawn: tasks.draw_dialogue(*drawn, context_turns), seed)
    )


_LISTS = ("utterances", "speakers", "other_utterance")


def batch_samples(sessions, draw, seed=5):
    """What sessions draw from themselves, by their features and a seed, as a step has it."""
    drawn = [
        draw(features, tf.constant([seed, place], tf.int64))
        for place, features in enumerate(sessions)
    ]
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(drawn),
        output_signature={
            name: tf.RaggedTensorSpec([None, None], tf.int32)
            if name.endswith(("token_ids", "tokens"))
            else tf.TensorSpec([None] if name in _LISTS else value.shape, value.dtype)
            for name, value in drawn[0].items()
        },
    )  # fmt: skip
    return next(iter(dataset.ragged_batch(len(sessions))))


def read(dialogues, places):
    """What is said at places `[rows, (turns)]` of the list of turns."""
    return tf.gather(dialogues.token_ids.to_tensor()[:, 0], places).to_list()
