"""Examples of response selection and of its four auxiliary tasks (Xu et al. 2020, section 2.3).

An example has one or two segments of turns: a piece of dialogue, two pieces, a context and a
response, or two utterances. Draws within a dialogue depend on (seed, epoch, index); draws from
other sessions depend on (seed, step).

What is drawn from another session resembles what it takes the place of in all that a rule could see
without reading: it is as many turns and, where another session of the step has any, of the same
role.

The auxiliary tasks use the dialogue up to and including the true response: a context alone may have
only one turn, which can be neither split nor replaced.
"""

import dataclasses

import tensorflow as tf

from dcse_tf.bert.layout import Tensors
from dcse_tf.bert.pairs import find_rows, put_apart, put_in_rows, strip_ends
from dcse_tf.data.batch import prefer, sample_negatives


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
        roles: int64 `[turns]`, fingerprints of the speakers' roles.
        split: int32, number of turns of the left piece, 1 to turns - 1.
        right: bool, whether the right piece and not the left one may be replaced.
        replaced: bool, whether to replace that piece by another session's.
        hidden, odd: int32, the turn to restore, and that to replace.
        pair: int32 `[2]`, two turns of one speaker with different texts; -1 if there are none.
        negatives: only with given candidates, the drawn ones, int32 `[negatives, (tokens)]`.
    """
    seeds = tf.unstack(tf.random.split(seed, 7))
    last = tf.shape(session["utterances"])[0] - 1
    response = _draw_below(last, seeds[0]) + 1 if given is None else last
    start = tf.maximum(response - context_turns, 0)
    turns, fate = response + 1 - start, tf.random.stateless_uniform([], seeds[2])
    speakers = session["speakers"][start : response + 1]
    utterances = session["utterances"][start : response + 1]
    sample = {
        "session": session["session"],
        "token_ids": strip_ends(session["token_ids"][start : response + 1], prefix_tokens),
        "utterances": utterances,
        "speakers": tf.cast(speakers != speakers[-1], tf.int32),
        "roles": session["roles"][start : response + 1],
        "split": _draw_below(turns - 1, seeds[1]) + 1,
        "right": (4.0 * fate) % 2.0 >= 1.0,
        "replaced": fate >= 0.5,
        "hidden": _draw_below(turns, seeds[3]),
        "odd": _draw_below(turns, seeds[4]),
        "pair": _draw_pair(speakers, utterances, seeds[5:]),
    }
    if given is not None:
        places = tf.range(given["token_ids"].nrows())
        order = tf.random.experimental.stateless_shuffle(places, seeds[0])
        drawn = order[: negatives or None]
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
        roles: int64 `[turns]`, fingerprints of the speakers' roles.
        same_role: whether to draw only from turns of the same role where there are any.
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
    roles: tf.Tensor
    same_role: bool = True
    negatives: tf.RaggedTensor | None = None

    @classmethod
    def of(cls, samples: dict, same_role: bool = True) -> "Dialogues":
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
            samples["roles"].values,
            same_role,
            negatives,
        )

    @property
    def count(self) -> tf.Tensor:
        return tf.shape(self.starts)[0]

    @property
    def session_of_turn(self) -> tf.Tensor:
        """int64 `[turns]`, fingerprints of the turns' sessions."""
        return tf.repeat(self.session, self.ends - self.starts)

    def share_role(self, turns: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Whether the speakers of turns, given as indices into the list, have the same role."""
        return tf.gather(self.roles, turns) == tf.gather(self.roles, others)

    def draw_place(
        self, allowed: tf.Tensor, turns: tf.Tensor, others: tf.Tensor, seed: tf.Tensor
    ) -> tf.Tensor:
        """Draws a place of each row, of the role of the row's turn if roles matter.

        Args:
            allowed: bool `[rows, places]`.
            turns: int32 `[rows]`, the turns to take the place of, as indices into the list.
            others: int32 `[rows or 1, places]`, the turns that the places stand for.
            seed: int `[2]`; it alone determines the draw.

        Returns:
            int32 `[rows]`, -1 where no place is allowed.
        """
        if self.same_role:
            allowed = prefer(allowed, self.share_role(turns[:, None], others))
        return _draw_true(allowed, seed)

    def draw_strangers(self, turns: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Draws a turn of another session for a turn of each dialogue.

        Args:
            turns: int32 `[batch]`, indices into the list.
            seed: int `[2]`; it alone determines the draw.

        Returns:
            int32 `[batch]`, indices into the list, -1 where there is no other session.
        """
        strange = self.session_of_turn != self.session[:, None]
        places = tf.range(tf.size(self.roles))
        return self.draw_place(strange, turns, places[None, :], seed)


def _find_shared(roles: tf.Tensor, sessions: tf.Tensor) -> tf.Tensor:
    """Whether each role is also another session's, and not a name that says nothing elsewhere.

    Args:
        roles, sessions: int64 `[places]`, fingerprints.

    Returns:
        bool `[places]`.
    """
    distinct, numbers = tf.unique(roles)
    first, last = (
        reduce(sessions, numbers, tf.size(distinct))
        for reduce in (tf.math.unsorted_segment_min, tf.math.unsorted_segment_max)
    )
    return tf.gather(first < last, numbers)


@dataclasses.dataclass(frozen=True)
class Rows:
    """The sequences of one task for a step, grouped by dialogue.

    Attributes:
        first, second: int32 `[rows, (turns)]`, the turns of each segment, as indices into the list
            of turns; `second` is None if there is no second segment.
        ends: whether the turns of the second segment end with [EOT], as those of a piece of
            dialogue do, and a response does not.
        targets: what the task's loss needs, by name, `[rows, ...]`; "weights", float32, is always
            among them. "hints", int32, say what a rule could go by without reading; with labels
            and weights they give `score_best_rule`.
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
    missing; hints, 0 if the candidate's role is not that of the true response but other sessions'
    responses have that, else 1.
    """
    responses = dialogues.ends - 1
    if dialogues.negatives is None:
        texts = tf.gather(dialogues.utterances, responses)
        roles = tf.gather(dialogues.roles, responses)
        own = roles if dialogues.same_role else None
        chosen, mask = sample_negatives(dialogues.session, texts, negatives, seed, own)
        candidates = tf.gather(responses, chosen)
        shared = _find_shared(roles, dialogues.session)
        hints = (tf.gather(roles, chosen) == roles[:, None]) | ~shared[:, None]
    else:
        given = dialogues.negatives.to_tensor(-1, shape=[None, negatives or None])
        candidates = tf.concat([responses[:, None], given], axis=1)
        mask = candidates >= 0
        candidates = tf.where(mask, candidates, responses[:, None])
        hints = tf.ones_like(mask)  # nothing is known of the roles of given negatives
    width = tf.shape(candidates)[1]
    contexts = tf.ragged.range(dialogues.starts, responses)
    owners = tf.range(dialogues.count * width) // width
    labels = tf.one_hot(tf.zeros([dialogues.count], tf.int32), width)
    targets = {
        "labels": tf.reshape(labels, [-1]),
        "weights": tf.reshape(tf.cast(mask, tf.float32), [-1]),
        "hints": tf.reshape(tf.cast(hints, tf.int32), [-1]),
    }
    second = put_apart(tf.reshape(candidates, [-1]))
    return Rows(tf.gather(contexts, owners), second, False, targets)


def make_next_session_rows(dialogues: Dialogues, seed: tf.Tensor) -> Rows:
    """Rows of next session prediction (section 2.3.1): the two pieces of a dialogue, of which one
    may be replaced by the corresponding piece of another session.

    A left piece is replaced by the beginning of another dialogue, a right one by an end, as many
    turns and, at the seam, of the same role. The other dialogue must have more turns than that.

    targets: labels float32, 1 if both pieces are from one dialogue; weights, 0 where no dialogue
    has such a piece or it has the same texts, whether or not the piece is replaced, so that neither
    tells the label; hints, the number of turns and whether the role changes at the seam.
    """
    right, split = dialogues.samples["right"], dialogues.samples["split"]
    starts, ends = dialogues.starts, dialogues.ends
    middle, lengths = starts + split, ends - starts
    turns = tf.where(right, lengths - split, split)
    own = tf.where(right, middle, starts)

    at_end, turns_each = right[:, None], turns[:, None]
    begins = tf.where(at_end, ends - turns_each, starts)
    seams = tf.where(at_end, begins, begins + turns_each - 1)
    longer = (lengths > turns_each) & (dialogues.session != dialogues.session[:, None])
    inside = tf.clip_by_value(seams, 0, tf.size(dialogues.roles) - 1)
    donor = dialogues.draw_place(longer, tf.where(right, middle, middle - 1), inside, seed)
    other = tf.where(donor < 0, own, tf.gather(begins, tf.maximum(donor, 0), batch_dims=1))

    replaced = dialogues.samples["replaced"] & (donor >= 0)
    begin = tf.where(replaced & ~right, other, starts)
    first = tf.ragged.range(begin, begin + split)
    begin = tf.where(replaced & right, other, middle)
    second = tf.ragged.range(begin, begin + lengths - split)
    texts = [
        tf.reduce_sum(tf.gather(dialogues.utterances, tf.ragged.range(x, x + turns)), axis=1)
        for x in (own, other)
    ]
    last = tf.gather(first.values, first.row_limits() - 1)
    changes = ~dialogues.share_role(last, tf.gather(second.values, second.row_starts()))
    targets = {
        "labels": tf.cast(~replaced, tf.float32),
        # A piece with the same texts still continues the dialogue; without a donor it is the same.
        "weights": tf.cast(texts[0] != texts[1], tf.float32),
        "hints": 2 * lengths + tf.cast(changes, tf.int32),
    }
    # Two pieces that one speaker ends and begins would give a replaced piece away.
    return Rows(first, second, True, targets, tells_speakers=False)


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
    of another session, see `Dialogues.draw_strangers`.

    targets: odd int32, the index of that turn in the dialogue.
    """
    window = tf.ragged.range(dialogues.starts, dialogues.ends)
    odd = dialogues.starts + dialogues.samples["odd"]
    drawn = dialogues.draw_strangers(odd, seed)
    taken = tf.maximum(drawn, 0)
    owners = find_rows(window)
    places = tf.where(
        window.values == tf.gather(odd, owners), tf.gather(taken, owners), window.values
    )
    # Replacing "ok" by "ok" is not incoherent.
    differs = tf.gather(dialogues.utterances, odd) != tf.gather(dialogues.utterances, taken)
    targets = {
        "odd": dialogues.samples["odd"],
        "weights": tf.cast((drawn >= 0) & differs, tf.float32),
    }
    # The speakers stay as they were, so that they do not give the replaced turn away.
    return Rows(window.with_values(places), None, True, targets, speaker_turns=window)


def make_consistency_rows(dialogues: Dialogues, seed: tf.Tensor) -> Rows:
    """Rows of consistency discrimination (section 2.3.4), in pairs: a turn with another turn of its
    speaker, and the same turn with a turn of another session, see `Dialogues.draw_strangers`.

    targets: labels float32, 1 for a speaker's own turn, 0 for a stranger's; weights, equal for both
    rows of a pair; 0 if the other session's turn says what one of the two does; hints, 0 if the
    roles of the two turns differ but other sessions have that of the first, else 1.
    """
    pair = dialogues.samples["pair"]
    first, second = (dialogues.starts + tf.maximum(pair[:, i], 0) for i in range(2))
    drawn = dialogues.draw_strangers(second, seed)
    stranger = tf.maximum(drawn, 0)
    said = [tf.gather(dialogues.utterances, turn) for turn in (first, second, stranger)]
    differs = (said[2] != said[0]) & (said[2] != said[1])
    counts = (tf.reduce_min(pair, axis=1) >= 0) & (drawn >= 0) & differs
    firsts, seconds, weights = (
        tf.reshape(tf.stack(both, axis=1), [-1])
        for both in ([first, first], [second, stranger], [counts, counts])
    )
    shared = tf.gather(_find_shared(dialogues.roles, dialogues.session_of_turn), firsts)
    targets = {
        "labels": tf.tile([1.0, 0.0], [dialogues.count]),
        "weights": tf.cast(weights, tf.float32),
        "hints": tf.cast(dialogues.share_role(firsts, seconds) | ~shared, tf.int32),
    }
    return Rows(put_apart(firsts), put_apart(seconds), False, targets)
