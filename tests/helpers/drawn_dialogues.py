"""Dialogues as training draws them, whose turns say what they are.

A turn's only token is 100 x session + turn.
"""

import copy
import dataclasses

import tensorflow as tf

from dcse_tf.bert.token_rows import PairRule
from dcse_tf.data.dialogue_step import DialogueSource, DialogueStep, draw_dialogue


def session(number, turns, speakers=None, same_as=None, roles=(70, 71), words=0):
    """The features of a record; turn t says [CLS] 100 x number + t [SEP].

    Further words of a turn, 1 to `words` of them, are 50, 51, ...
    """
    texts = [100 * number + turn for turn in range(turns)]
    tails = [range(50, 51 + (number + turn) % words if words else 50) for turn in range(turns)]
    said = [[text, *tail] for text, tail in zip(texts, tails, strict=True)]
    speakers = speakers or [turn % 2 for turn in range(turns)]
    return {
        "session": tf.constant(number, tf.int64),
        "token_ids": tf.ragged.constant([[2, *turn, 3] for turn in said], tf.int32),
        "utterances": tf.constant(same_as or texts, tf.int64),
        "speakers": tf.constant(speakers, tf.int32),
        "roles": tf.constant([roles[speaker] for speaker in speakers], tf.int64),
    }


RULE = PairRule(2, 3, 4, 40, 20)


def collect(sessions, context_turns=20, seed=5, replicas=1, **settings):
    """The dialogues of a step of some sessions; `settings` are those of `DialogueSource`."""
    source = DialogueSource(context_turns, RULE, speakers=True, **settings)
    samples = batch_samples(sessions, lambda *drawn: draw_dialogue(*drawn, source), seed)
    splits = tf.range(replicas + 1) * (len(sessions) // replicas)
    return DialogueStep(samples, splits, seed, tf.constant(0, tf.int64), source)


def change(step, samples=None, same_role=None):
    """The step, had it other samples or drawn turns of any role."""
    other = copy.copy(step)
    if samples is not None:
        other.samples = samples
    if same_role is not None:
        other.source = dataclasses.replace(step.source, same_role=same_role)
    return other


_LISTS = ("token_ids", "more_tokens", "utterances", "speakers", "roles", "more_utterances")


def batch_samples(sessions, draw, seed=5):
    """What sessions draw from themselves, by their features and a seed, as a step has it."""
    drawn = [
        draw(features, tf.constant([seed, place], tf.int64))
        for place, features in enumerate(sessions)
    ]
    return {
        name: (tf.ragged.stack if name in _LISTS else tf.stack)([each[name] for each in drawn])
        for name in drawn[0]
    }


def read(dialogues, places):
    """What is said at places `[rows, (turns)]` of the list of turns."""
    return tf.gather(dialogues.turns.to_tensor()[:, 0], places).to_list()
