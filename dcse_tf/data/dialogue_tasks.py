"""Examples of response selection and of its four auxiliary tasks (Xu et al. 2020, section 2.3).

An example has one or two segments of turns: a piece of dialogue, two pieces, a context and a
response, or two utterances. Draws within a dialogue depend on (seed, epoch, index); draws from
other sessions depend on (seed, step).

The auxiliary tasks use the dialogue up to and including the true response: a context alone may have
only one turn, which can be neither split nor replaced.
"""

import dataclasses

import tensorflow as tf

from dcse_tf.data.batch import sample_negatives
from dcse_tf.model.layout import Tensors
from dcse_tf.model.pairs import strip_ends
from dcse_tf.model.ragged import find_rows, put_apart, put_in_rows


def draw_dialogue(
    session: dict,
    seed: tf.Tensor,
    context_turns: int,
    given: dict | None = None,
    negatives: int = 0,
    prefix_tokens: int = 0,
) -> dict:
    """Draws a response from a session, and the choices of the auxiliary tasks for its dialogue.

    With given candidates the response is not drawn: it is the last turn, which they belong to. All
    other draws are uniform (paper, footnote 1).

    Args:
        session: the features of a record with at least two turns.
        seed: int64 `[2]`; it alone determines the draws.
        context_turns: maximum number of turns before the response.
        given: the record's candidates, see `parse_given`; None to ignore them.
        negatives: number of given negatives to draw, or all if there are fewer; 0 for all.
        prefix_tokens: see `PairRule`.

    Returns:
        session: int64 scalar, fingerprint.
        token_ids: int32 `[turns, (tokens)]` without [CLS], prefix and [SEP], the response last.
        utterances: int64 `[turns]`, fingerprints.
        speakers: int32 `[turns]`, 0 for the speaker of the response, 1 for all others.
        split: int32, number of turns of the left piece, 1 to turns - 1.
        replaced: int32, which piece to replace by another session's: 0 neither (half of the
            draws), 1 the left one, 2 the right one.
        hidden: int32, the turn to restore.
        odd: int32, the turn to replace.
        pair: int32 `[2]`, two turns of one speaker with different texts; -1 if there are none.
        negatives: only with given candidates, the drawn ones, int32 `[negatives, (tokens)]`.
    """
    seeds = tf.unstack(tf.random.split(seed, 7))
    last = tf.shape(session["utterances"])[0] - 1
    response = _draw_below(last, seeds[0]) + 1 if given is None else last
    start = tf.maximum(response - context_turns, 0)
    speakers = session["speakers"]
    fate = tf.random.stateless_uniform([], seeds[2])
    turns = response + 1 - start
    own = tf.cast(speakers[start : response + 1] != speakers[response], tf.int32)
    utterances = session["utterances"][start : response + 1]
    sample = {
        "session": session["session"],
        "token_ids": strip_ends(session["token_ids"][start : response + 1], prefix_tokens),
        "utterances": utterances,
        "speakers": own,
        "split": _draw_below(turns - 1, seeds[1]) + 1,
        "replaced": tf.cast(fate >= 0.5, tf.int32) + tf.cast(fate >= 0.75, tf.int32),
        "hidden": _draw_below(turns, seeds[3]),
        "odd": _draw_below(turns, seeds[4]),
        "pair": _draw_pair(speakers[start : response + 1], utterances, seeds[5:]),
    }
    if given is not None:
        places = tf.range(given["token_ids"].nrows())
        order = tf.random.experimental.stateless_shuffle(places, seeds[0])
        drawn = order[:negatives] if negatives else order
        sample["negatives"] = strip_ends(tf.gather(given["token_ids"], drawn), prefix_tokens)
    return sample


def _draw_below(count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform([], seed, 0, count, tf.int32)


def _draw_pair(speakers: tf.Tensor, utterances: tf.Tensor, seeds: list[tf.Tensor]) -> tf.Tensor:
    """Draws two turns of one speaker with different texts, int32 `[2]`; -1 if there are none."""
    matches = (speakers[:, None] == speakers) & (utterances[:, None] != utterances)
    first = _draw_true(tf.reduce_any(matches, axis=1)[None, :], seeds[0])[0]
    second = _draw_true(matches[tf.maximum(first, 0)][None, :], seeds[1])[0]
    return tf.stack([first, tf.where(first < 0, -1, second)])


def _draw_true(allowed: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draws the index of a True in each row of `[rows, places]`: int32 `[rows]`, -1 for none."""
    order = tf.where(allowed, tf.random.stateless_uniform(tf.shape(allowed), seed), -1.0)
    place = tf.argmax(order, axis=1, output_type=tf.int32)
    return tf.where(tf.reduce_any(allowed, axis=1), place, -1)


@dataclasses.dataclass(frozen=True)
class Dialogues:
    """The dialogues of a step, with their turns in one list.

    Attributes:
        samples: batched outputs of `draw_dialogue`.
        starts, ends: int32 `[batch]`, the range of each dialogue's turns in the list; its last turn
            is the response.
        session: int64 `[batch]`, fingerprints of the sessions.
        token_ids: int32 `[turns, (tokens)]`, the turns of all dialogues, followed by their given
            negatives.
        utterances: int64 `[turns]`, fingerprints of the turns.
        speakers: int32 `[turns]`, 0 for the speaker of the response, 1 for all others.
        negatives: int32 `[batch, (negatives)]`, the rows of the given negatives in `token_ids`;
            None if none are given.
    """

    samples: dict
    starts: tf.Tensor
    ends: tf.Tensor
    session: tf.Tensor
    token_ids: tf.RaggedTensor
    utterances: tf.Tensor
    speakers: tf.Tensor
    negatives: tf.RaggedTensor | None = None

    @classmethod
    def of(cls, samples: dict) -> "Dialogues":
        splits = tf.cast(samples["utterances"].row_splits, tf.int32)
        token_ids, negatives = samples["token_ids"].values, None
        if "negatives" in samples:
            given = samples["negatives"]
            places = splits[-1] + tf.range(tf.cast(given.values.nrows(), tf.int32))
            negatives = put_in_rows(places, given.row_splits)
            token_ids = tf.concat([token_ids, given.values], axis=0)
        return cls(
            samples,
            splits[:-1],
            splits[1:],
            samples["session"],
            token_ids,
            samples["utterances"].values,
            samples["speakers"].values,
            negatives,
        )

    @property
    def count(self) -> tf.Tensor:
        return tf.shape(self.starts)[0]

    def draw_donors(self, seed: tf.Tensor) -> tf.Tensor:
        """Draws a dialogue of another session for each; int32 `[batch]`, -1 if there is none."""
        return _draw_true(self.session[:, None] != self.session[None, :], seed)

    def draw_turns(self, dialogues: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Draws a turn from each of the dialogues; int32 `[dialogues]`, indices into the list."""
        starts, ends = tf.gather(self.starts, dialogues), tf.gather(self.ends, dialogues)
        drawn = tf.random.stateless_uniform(tf.shape(starts), seed)
        inside = tf.cast(drawn * tf.cast(ends - starts, tf.float32), tf.int32)
        return tf.minimum(starts + inside, ends - 1)


@dataclasses.dataclass(frozen=True)
class Rows:
    """The sequences of one task for a step, grouped by dialogue.

    Attributes:
        first, second: int32 `[rows, (turns)]`, the turns of each segment, as indices into the list
            of turns; `second` is None if there is no second segment.
        ends: whether the turns of the second segment end with [EOT], as those of a piece of
            dialogue do, and a response does not.
        targets: what the task's loss needs, by name, `[rows, ...]`; "weights", float32, is always
            among them.
        speaker_turns: int32 `[rows, (turns)]`, the turns whose speakers mark the first segment, if
            they are not the segment's own.
        tells_speakers: whether tokens are marked with their speaker; if not, all marks are 0.
    """

    first: tf.RaggedTensor
    second: tf.RaggedTensor | None
    ends: bool
    targets: Tensors
    speaker_turns: tf.RaggedTensor | None = None
    tells_speakers: bool = True


def make_matching_rows(dialogues: Dialogues, negatives: int, seed: tf.Tensor) -> Rows:
    """Rows of response matching (section 2.2): each context with its true response, then with its
    negatives, drawn or given.

    targets: labels float32 `[rows]`, 1 for the true response; weights, 0 where a negative is
    missing.
    """
    responses = dialogues.ends - 1
    if dialogues.negatives is None:
        texts = tf.gather(dialogues.utterances, responses)
        chosen, mask = sample_negatives(dialogues.session, texts, negatives, seed)
        candidates = tf.gather(responses, chosen)
    else:
        given = dialogues.negatives.to_tensor(-1, shape=[None, negatives or None])
        candidates = tf.concat([responses[:, None], given], axis=1)
        mask = candidates >= 0
        candidates = tf.where(mask, candidates, responses[:, None])
    width = tf.shape(candidates)[1]
    contexts = tf.ragged.range(dialogues.starts, responses)
    owners = tf.range(dialogues.count * width) // width
    labels = tf.one_hot(tf.zeros([dialogues.count], tf.int32), width)
    targets = {
        "labels": tf.reshape(labels, [-1]),
        "weights": tf.reshape(tf.cast(mask, tf.float32), [-1]),
    }
    second = put_apart(tf.reshape(candidates, [-1]))
    return Rows(tf.gather(contexts, owners), second, False, targets)


def make_next_session_rows(dialogues: Dialogues, seed: tf.Tensor) -> Rows:
    """Rows of next session prediction (section 2.3.1): the two pieces of a dialogue, of which one
    may be replaced by the corresponding piece of another session.

    targets: labels float32, 1 if both pieces are from one dialogue.
    """
    split = dialogues.samples["split"]
    donor = dialogues.draw_donors(seed)
    replaced = tf.where(donor < 0, 0, dialogues.samples["replaced"])
    donor = tf.maximum(donor, 0)
    middle = dialogues.starts + split

    def choose(piece: int, own: tf.Tensor) -> tf.Tensor:
        return tf.where(replaced == piece, tf.gather(own, donor), own)

    first = tf.ragged.range(choose(1, dialogues.starts), choose(1, middle))
    second = tf.ragged.range(choose(2, middle), choose(2, dialogues.ends))
    own = tf.ragged.range(dialogues.starts, middle), tf.ragged.range(middle, dialogues.ends)
    same = _same_texts(dialogues, first, own[0]) & _same_texts(dialogues, second, own[1])
    # A piece with the same texts as the one it replaces still continues the dialogue.
    counts = (replaced == 0) | ~same
    targets = {
        "labels": tf.cast(replaced == 0, tf.float32),
        "weights": tf.cast(counts, tf.float32),
    }
    # Two pieces that one speaker ends and begins would give a replaced piece away.
    return Rows(first, second, True, targets, tells_speakers=False)


def _same_texts(dialogues: Dialogues, first: tf.RaggedTensor, second: tf.RaggedTensor) -> tf.Tensor:
    """Whether pieces have the same texts, judged by the number and sum of their fingerprints."""
    lengths = first.row_lengths() == second.row_lengths()
    sums = [
        tf.math.unsorted_segment_sum(
            tf.gather(dialogues.utterances, pieces.values), find_rows(pieces), dialogues.count
        )
        for pieces in (first, second)
    ]
    return lengths & (sums[0] == sums[1])


def make_restoration_rows(dialogues: Dialogues) -> Rows:
    """Rows of utterance restoration (section 2.3.2): the dialogue; all tokens of one turn will be
    masked.

    targets: hidden int32, the index of that turn in the dialogue.
    """
    targets = {
        "hidden": dialogues.samples["hidden"],
        "weights": tf.ones([dialogues.count]),
    }
    return Rows(tf.ragged.range(dialogues.starts, dialogues.ends), None, True, targets)


def make_incoherence_rows(dialogues: Dialogues, seed: tf.Tensor) -> Rows:
    """Rows of incoherence detection (section 2.3.3): the dialogue with one turn replaced by a turn
    of another session.

    targets: odd int32, the index of that turn in the dialogue.
    """
    seeds = tf.unstack(tf.random.split(seed, 2))
    donor = dialogues.draw_donors(seeds[0])
    taken = dialogues.draw_turns(tf.maximum(donor, 0), seeds[1])
    window = tf.ragged.range(dialogues.starts, dialogues.ends)
    odd = dialogues.starts + dialogues.samples["odd"]
    owners = find_rows(window)
    places = tf.where(
        window.values == tf.gather(odd, owners), tf.gather(taken, owners), window.values
    )
    # Replacing "ok" by "ok" is not incoherent.
    differs = tf.gather(dialogues.utterances, odd) != tf.gather(dialogues.utterances, taken)
    targets = {
        "odd": dialogues.samples["odd"],
        "weights": tf.cast((donor >= 0) & differs, tf.float32),
    }
    # The speakers stay as they were, so that they do not give the replaced turn away.
    return Rows(window.with_values(places), None, True, targets, speaker_turns=window)


def make_consistency_rows(dialogues: Dialogues, seed: tf.Tensor) -> Rows:
    """Rows of consistency discrimination (section 2.3.4), in pairs: a turn with another turn of its
    speaker, and the same turn with a turn of another session.

    targets: weights, equal for both rows of a pair; 0 if the other session's turn says what one of
    the two does.
    """
    seeds = tf.unstack(tf.random.split(seed, 2))
    pair = dialogues.samples["pair"]
    donor = dialogues.draw_donors(seeds[0])
    stranger = dialogues.draw_turns(tf.maximum(donor, 0), seeds[1])
    first, second = (dialogues.starts + tf.maximum(pair[:, i], 0) for i in range(2))
    said = [tf.gather(dialogues.utterances, turn) for turn in (first, second, stranger)]
    differs = (said[2] != said[0]) & (said[2] != said[1])
    counts = (tf.reduce_min(pair, axis=1) >= 0) & (donor >= 0) & differs
    firsts, seconds, weights = (
        tf.reshape(tf.stack(both, axis=1), [-1])
        for both in ([first, first], [second, stranger], [counts, counts])
    )
    targets = {"weights": tf.cast(weights, tf.float32)}
    return Rows(put_apart(firsts), put_apart(seconds), False, targets)
