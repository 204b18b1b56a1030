"""Retrieval sets from dialogues without labels: turns that stand in similar surroundings.

Turns that follow on similar turns, and are followed by similar ones, mostly do the same in their
dialogues: they ask for the same, or answer the same question. So an encoder that never sees the
turns around can be scored by whether it finds such turns. The surroundings are compared by one
encoder, the same for all that are scored.
"""

from collections.abc import Sequence

import numpy as np

from dcse_tf.data.dialogue import Session, fold_spaces
from dcse_tf.encoder.backend import normalize
from dcse_tf.evaluation.metrics import Encode
from dcse_tf.evaluation.retrieval import Query, RetrievalSet
from dcse_tf.files import hash_number

SENTENCES = 1000  # in a set, at most
_POSITIVES = 10  # turns in the most similar surroundings
_REACH = 3  # turns before, and after, that are its surroundings


def build_surroundings_set(
    sessions: Sequence[Session], encode: Encode, seed: int, sentences: int = SENTENCES
) -> RetrievalSet:
    """Draws turns that have a turn before and after, and ranks them by their surroundings.

    Every turn is a query. Its candidates are the turns that speakers of its role say in other
    dialogues (of any role, if too few do: it is a name), its positives the ten of them with the
    highest sum of two cosines: of the mean of up to three turns before, and of up to three after. A
    text is drawn once, ignoring case.

    Args:
        sessions: the dialogues, which no encoder to be scored was trained on.
        encode: the encoder that compares surroundings.
        seed: which turns are drawn depends on it and on their sessions alone.
        sentences: the most turns to draw.

    Returns:
        The set, without intents; without queries if no turn has enough candidates.
    """
    drawn: dict[str, tuple[int, int, int]] = {}
    for number, session in enumerate(sessions):
        for place, turn in enumerate(session.turns[1:-1], start=1):
            key = hash_number(f"{seed}:surroundings:{session.session_id}:{place}")
            text, found = turn.text.casefold(), (key, number, place)
            drawn[text] = min(found, drawn.get(text, found))
    chosen = [(number, place) for _, number, place in sorted(drawn.values())[:sentences]]
    if not chosen:
        return RetrievalSet([], [], [])
    around = [(sessions[number].turns, place) for number, place in chosen]
    sides = (
        [turns[max(0, place - _REACH) : place] for turns, place in around],
        [turns[place + 1 : place + 1 + _REACH] for turns, place in around],
    )
    # Both sides at once: most turns are before one turn and after another.
    before, after = ([turn.text for window in side for turn in window] for side in sides)
    encoded = np.split(normalize(encode(before + after)), [len(before)])
    similarity = np.zeros((len(chosen), len(chosen)))
    for windows, vectors in zip(sides, encoded, strict=True):
        owners = np.repeat(np.arange(len(chosen)), [len(window) for window in windows])
        sums = np.zeros((len(chosen), vectors.shape[1]))
        np.add.at(sums, owners, normalize(vectors - vectors.mean(axis=0)))
        similarity += normalize(sums) @ normalize(sums).T

    own = [sessions[number].turns[place] for number, place in chosen]
    roles = np.array([turn.role for turn in own])
    owner = np.array([sessions[number].dialogue for number, _ in chosen])
    queries = []
    for place in range(len(chosen)):
        others = owner != owner[place]
        allowed = np.flatnonzero(others & (roles == roles[place]))
        if len(allowed) <= 2 * _POSITIVES:
            allowed = np.flatnonzero(others)
        ranked = allowed[np.argsort(-similarity[place, allowed], kind="stable")]
        if len(ranked) > 2 * _POSITIVES:
            queries.append(Query(place, ranked[:_POSITIVES], ranked[_POSITIVES:]))
    return RetrievalSet([fold_spaces(turn.text) for turn in own], queries, [""] * len(own))
