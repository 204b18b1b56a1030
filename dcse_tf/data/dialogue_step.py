"""Dialogues drawn for a step, and sequences of their turns, [CLS] first [SEP] second [SEP].

This is how response selection, its auxiliary tasks and post-training read a corpus. Draws within a
dialogue depend on (seed, epoch, index); draws from other sessions depend on (seed, step).
"""

import dataclasses
from collections.abc import Callable, Mapping

import tensorflow as tf

from dcse_tf.bert.layout import Tensors
from dcse_tf.bert.pairs import (
    end_turns,
    find_rows,
    join_turns,
    place_segments,
    put_in_rows,
    strip_ends,
)
from dcse_tf.bert.token_rows import PairRule
from dcse_tf.data.records import parse_given, parse_session
from dcse_tf.data.responses import prefer
from dcse_tf.data.table import Rows, Step


@dataclasses.dataclass(frozen=True)
class DialogueSource:
    """Sessions, of which each gives the dialogue up to one response.

    Attributes:
        context_turns: maximum number of turns before the response.
        rule: special ids and maximum lengths of the sequences.
        speakers: whether tokens are marked with their speaker.
        same_role: whether what comes from other sessions is of the same role where possible.
        given: number of negatives that are drawn from those that the corpus gives for a response,
            0 for all; None to ignore them.
        other_turns: whether another turn of the session is drawn, too.
    """

    context_turns: int
    rule: PairRule
    speakers: bool = False
    same_role: bool = True
    given: int | None = None
    other_turns: bool = False
    samples = "sessions"

    def draw(self, element: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Source` and `draw_dialogue`."""
        session = parse_session(element)
        candidates = None if self.given is None else parse_given(element)
        drawn = draw_dialogue(
            session, seed, self.context_turns, candidates, self.given or 0, self.rule.prefix_tokens
        )
        if not self.other_turns:
            return drawn
        # The same seed has been split; folding in a number keeps these draws independent of it.
        seeds = tf.unstack(tf.random.split(tf.random.fold_in(seed, 1), 2))
        differs = session["utterances"] != drawn["utterances"][-1]
        if self.same_role:
            differs = prefer(differs[None, :], session["roles"] == drawn["roles"][-1])[0]
        others = tf.where(differs)[:, 0]
        place = _draw_below(tf.maximum(tf.size(others), 1), seeds[0])
        chosen = others[place : place + 1]
        return {
            **drawn,
            "relevance": _draw_below(tf.constant(3), seeds[1]),
            "other_tokens": strip_ends(
                tf.gather(session["token_ids"], chosen), self.rule.prefix_tokens
            ),
            "other_utterance": tf.gather(session["utterances"], chosen),
        }

    def make_step(
        self, samples: dict, splits: tf.Tensor, seed: int, number: tf.Tensor
    ) -> "DialogueStep":
        """See `Source`."""
        return DialogueStep(samples, splits, seed, number, self)


def draw_dialogue(
    session: dict,
    seed: tf.Tensor,
    context_turns: int,
    given: dict | None = None,
    negatives: int = 0,
    prefix_tokens: int = 0,
) -> dict:
    """Draws a response from a session, and the choices of the auxiliary tasks for its dialogue.

    With given candidates, of which `negatives` are drawn (0: all), the response is the last turn,
    which they belong to. All other draws are uniform (Xu et al. 2020, footnote 1); the seed, int64
    `[2]`, alone determines them.

    Returns:
        session: int64 scalar, fingerprint.
        token_ids: int32 `[turns, (tokens)]` without [CLS], prefix and [SEP], the response last.
        utterances, roles: int64 `[turns]`, fingerprints of texts and of speakers' roles.
        speakers: int32 `[turns]`, 0 for the speaker of the response, 1 for all others.
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
    token_ids, utterances, speakers, roles = (
        session[name][start : response + 1]
        for name in ("token_ids", "utterances", "speakers", "roles")
    )
    # Two turns of one speaker with different texts.
    matches = (speakers[:, None] == speakers) & (utterances[:, None] != utterances)
    first = _draw_true(tf.reduce_any(matches, axis=1)[None, :], seeds[5])[0]
    second = _draw_true(matches[tf.maximum(first, 0)][None, :], seeds[6])[0]
    sample = {
        "session": session["session"],
        "token_ids": strip_ends(token_ids, prefix_tokens),
        "utterances": utterances,
        "speakers": tf.cast(speakers != speakers[-1], tf.int32),
        "roles": roles,
        "split": _draw_below(turns - 1, seeds[1]) + 1,
        "right": (4.0 * fate) % 2.0 >= 1.0,
        "replaced": fate >= 0.5,
        "hidden": _draw_below(turns, seeds[3]),
        "odd": _draw_below(turns, seeds[4]),
        "pair": tf.stack([first, tf.where(first < 0, -1, second)]),
    }
    if given is not None:
        places = tf.range(given["token_ids"].nrows())
        order = tf.random.experimental.stateless_shuffle(places, seeds[0])
        drawn = tf.gather(given["token_ids"], order[: negatives or None])
        sample["negatives"] = strip_ends(drawn, prefix_tokens)
    return sample


def _draw_below(count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform([], seed, 0, count, tf.int32)


def _draw_true(allowed: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draws the index of a True in each row of `[rows, places]`: int32 `[rows]`, -1 for none."""
    order = tf.where(allowed, tf.random.stateless_uniform(tf.shape(allowed), seed), -1.0)
    place = tf.argmax(order, axis=1, output_type=tf.int32)
    return tf.where(tf.reduce_any(allowed, axis=1), place, -1)


@dataclasses.dataclass(frozen=True)
class Segments:
    """Sequences of one or two segments of turns, which become `Rows` with the text "text".

    Attributes:
        first, second: int32 `[rows, (turns)]`, the turns of each segment, as indices into the
            step's list of turns; `second` is None if there is no second segment.
        targets: see `Rows`. "hints", int32, say what a rule could go by without reading.
        ends: whether the turns of the second segment end with [EOT], as those of a piece of
            dialogue do, and a response does not.
        rule: the maximum lengths, if they are not the source's.
        speaker_turns: int32 `[rows, (turns)]`, the turns whose speakers mark the first segment, if
            they are not the segment's own.
        tells_speakers: whether tokens are marked with their speaker; if not, all marks are 0.
        finish: maps the token ids of the sequences and the index of each token's turn in the first
            segment, -1 for tokens outside those turns, both int32 `[rows, tokens]`, to token ids,
            further targets and `Rows.tokens`.
    """

    first: tf.RaggedTensor
    second: tf.RaggedTensor | None
    targets: Tensors
    ends: bool = False
    rule: PairRule | None = None
    speaker_turns: tf.RaggedTensor | None = None
    tells_speakers: bool = True
    finish: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, Tensors, Tensors]] | None = None


class DialogueStep(Step):
    """A step of batched outputs of `DialogueSource.draw`, with their turns in one list.

    Attributes:
        starts, ends: int32 `[samples]`, the range of each dialogue's turns in the list; its last
            turn is the response.
        session: int64 `[samples]`, fingerprints of the sessions.
        turns: int32 `[turns, (tokens)]`, the turns of all dialogues without [CLS] and [SEP],
            followed by given negatives or other turns.
        utterances, roles: int64 `[turns]`, fingerprints of the turns and of their speakers' roles.
        speakers: int32 `[turns]`, 0 for the speaker of the response, 1 for all others.
        negatives: int32 `[samples, (negatives)]`, the given negatives in the list; None without.
        others: int32 `[samples]`, the other turns in the list, -1 for none; None without.
    """

    def __init__(
        self, samples: dict, splits: tf.Tensor, seed: int, number: tf.Tensor, source: DialogueSource
    ):
        ranges = tf.cast(samples["utterances"].row_splits, tf.int32)
        self.samples, self.source = samples, source
        self.starts, self.ends = ranges[:-1], ranges[1:]
        self.session = samples["session"]
        self.turns, self.utterances, self.speakers, self.roles = (
            samples[name].values for name in ("token_ids", "utterances", "speakers", "roles")
        )
        self.negatives = self.others = None
        alone = _put_nothing(self.turns)
        longest = tf.cast(tf.reduce_max(self.turns.row_lengths()), tf.int32)
        found = place_segments(self.turns, alone, longest + 2, 0, False)
        super().__init__(
            found.fill(self.turns.values, alone.values, source.rule.marks),
            self.utterances,
            self.ends - 1,
            splits,
            seed,
            number,
            marks=("segment_ids", "speaker_ids") if source.speakers else ("segment_ids",),
        )
        if "negatives" in samples:
            given = samples["negatives"]
            places = ranges[-1] + tf.range(given.values.nrows(tf.int32))
            self.negatives = put_in_rows(places, given.row_splits)
            self.turns = tf.concat([self.turns, given.values], axis=0)
        if "other_tokens" in samples:
            texts = samples["other_utterance"]
            places = ranges[-1] + tf.cast(texts.row_starts(), tf.int32)
            self.others = tf.where(texts.row_lengths() > 0, places, -1)
            self.turns = tf.concat([self.turns, samples["other_tokens"].values], axis=0)
            self.utterances = tf.concat([self.utterances, texts.values], axis=0)
            # A candidate counts as the responder's, see `_build_sequences`.
            nobody = tf.zeros_like(texts.values, tf.int32)
            self.speakers = tf.concat([self.speakers, nobody], axis=0)

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
        """Draws a place of each row, of bool `[rows, places]`, that is allowed; of the role of the
        row's turn, int32 `[rows]`, if roles matter.

        `others`, int32 `[rows or 1, places]`, are the turns that the places stand for, as indices
        into the list. Returns int32 `[rows]`, -1 where no place is allowed.
        """
        if self.source.same_role:
            allowed = prefer(allowed, self.share_role(turns[:, None], others))
        return _draw_true(allowed, seed)

    def draw_strangers(self, turns: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Draws a turn of another session for a turn of each dialogue: int32 `[samples]`, indices
        into the list, -1 where there is no other session.
        """
        strange = self.session_of_turn != self.session[:, None]
        places = tf.range(tf.size(self.roles))
        return self.draw_place(strange, turns, places[None, :], seed)

    def finish(self, drawn: Mapping[str, Rows | Segments]) -> dict[str, Rows]:
        """Builds the sequences of all segments, and adds them to the step's texts."""
        found = {}
        for name, rows in drawn.items():
            if isinstance(rows, Segments):
                ids, turn_ids, marks = _build_sequences(self, rows)
                targets, tokens = rows.targets, dict[str, tf.Tensor]()
                if rows.finish:
                    ids, further, tokens = rows.finish(ids, turn_ids)
                    targets = {**targets, **further}
                rows = Rows({"text": self.add_apart(ids, **marks)}, targets, tokens)
            found[name] = rows
        return found


def _put_nothing(like: tf.RaggedTensor) -> tf.RaggedTensor:
    """As many rows as those of another ragged tensor, all empty: int32."""
    return put_in_rows(tf.zeros([0], tf.int32), tf.zeros_like(like.row_splits))


def _build_sequences(
    step: DialogueStep, rows: Segments
) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
    """The sequences of some segments; all int32 `[rows, tokens]`.

    Returns:
        Of each token: its id; the index of its turn in the first segment, -1 for tokens outside
        those turns; and segment_ids, see `Places.segment_ids`, and speaker_ids, 0 for the
        responder's turns, the response and [CLS], 1 for other speakers.
    """
    rule = rows.rule or step.source.rule
    ended = end_turns(step.turns, rule.end_of_turn_id)
    second = _put_nothing(rows.first) if rows.second is None else rows.second
    turns = tf.gather(ended, rows.first)
    others = tf.gather(ended if rows.ends else step.turns, second)

    owner = find_rows(turns.values)
    place = tf.gather(tf.ragged.range(tf.cast(turns.row_lengths(), tf.int32)).values, owner)
    # An [EOT] belongs to no turn.
    last = tf.cast(tf.gather(turns.values.row_limits(), owner), tf.int32) - 1
    place = tf.where(tf.range(tf.size(owner)) < last, place, -1)
    found = place_segments(
        join_turns(turns),
        join_turns(others),
        rule.first_tokens,
        rule.second_tokens,
        rows.second is not None,
    )
    speaker_turns = rows.first if rows.speaker_turns is None else rows.speaker_turns
    speakers = tf.gather(tf.gather(step.speakers, speaker_turns.values), owner)
    # A candidate counts as the responder's, whoever said it.
    nobody = second_speakers = tf.zeros_like(others.flat_values)
    if rows.ends:
        second_speakers = tf.gather(step.speakers, second.values)
        second_speakers = tf.gather(second_speakers, find_rows(others.values))
    ids = found.fill(turns.flat_values, others.flat_values, rule.marks)
    turn_ids = found.fill(place, nobody - 1, (-1, -1, -1, -1))
    speaker_ids = found.fill(speakers, second_speakers) * int(rows.tells_speakers)
    return ids, turn_ids, {"segment_ids": found.segment_ids(), "speaker_ids": speaker_ids}
