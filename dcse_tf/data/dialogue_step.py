"""Dialogues drawn for a step, and rows of response selection, of its four auxiliary tasks (Xu et
al. 2020, section 2.3), and of post-training.

Rows are sequences of one or two segments of turns, [CLS] first [SEP] second [SEP]. Draws within a
dialogue depend on (seed, epoch, index); draws from other sessions on (seed, step).

What is drawn from another session resembles what it takes the place of in all that a rule could see
without reading: it is as many turns and, where another session has any, of the same role. The
auxiliary tasks read the context, unless that is one turn, which can be neither split nor replaced,
or the dialogue with its true response.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from dcse_tf.bert import pairs
from dcse_tf.bert.layout import Tensors
from dcse_tf.bert.token_rows import PairRule
from dcse_tf.data.records import parse_given, parse_session
from dcse_tf.data.responses import MaskingRule, mask_tokens, prefer, sample_negatives
from dcse_tf.data.table import ROWS, Rows, Step


@dataclasses.dataclass(frozen=True)
class DialogueSource:
    """Sessions, of which each gives the dialogue up to one response."""

    context_turns: int  # the most before the response
    rule: PairRule
    speakers: bool = False  # whether tokens are marked with their speaker
    same_role: bool = True  # whether what is from other sessions is of the same role where possible
    given: int | None = None  # the corpus' negatives to draw, 0 for all; None to ignore them
    other_turns: bool = False  # whether another turn of the session is drawn, too
    without_response: bool = False  # whether the auxiliary tasks read the context alone
    any_pair: bool = False  # whether the two turns of a pair may be of different speakers
    samples = "sessions"

    def draw(self, element: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        session = parse_session(element)
        given = None if self.given is None else parse_given(element)
        drawn = draw_dialogue(session, seed, self, given)
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
        drawn["relevance"] = _draw_below(tf.constant(3), seeds[1])
        return drawn | self._add(session, chosen)

    def _add(self, texts: dict, places: tf.Tensor) -> dict:
        """Some texts of a record as a sample's further ones."""
        found = {name: tf.gather(texts[name], places) for name in ("token_ids", "utterances")}
        more = pairs.strip_ends(found["token_ids"], self.rule.prefix_tokens)
        return {"more_tokens": more, "more_utterances": found["utterances"]}

    def make_step(
        self, samples: dict, splits: tf.Tensor, seed: int, number: tf.Tensor
    ) -> "DialogueStep":
        return DialogueStep(samples, splits, seed, number, self)


def draw_dialogue(
    session: dict, seed: tf.Tensor, source: DialogueSource, given: dict | None = None
) -> dict:
    """Draws a response from a session, and the choices of the auxiliary tasks for its dialogue, all
    uniformly (Xu et al. 2020, footnote 1).

    With given candidates the response is the last turn, which they belong to.

    Returns:
        session, utterances, roles: as in `parse_session`; the response is the last turn.
        token_ids: int32 `[turns, (tokens)]` without [CLS], prefix and [SEP].
        speakers: int32 `[turns]`, 0 for the speaker of the response, 1 for all others.
        read: int32, number of turns that the auxiliary tasks read, the first ones.
        split: int32, number of turns of the left piece, 1 to read - 1.
        right: bool, whether the right piece and not the left one may be replaced.
        replaced: bool, whether to replace that piece by another session's.
        hidden, odd: int32, the turn to restore, and that to replace.
        pair: int32 `[2]`, two of these turns with different texts, -1 if there are none.
        more_tokens, more_utterances: only with given candidates, the same of those drawn.
    """
    seeds = tf.unstack(tf.random.split(seed, 7))
    last = tf.shape(session["utterances"])[0] - 1
    response = _draw_below(last, seeds[0]) + 1 if given is None else last
    start = tf.maximum(response - source.context_turns, 0)
    turns, fate = response + 1 - start, tf.random.stateless_uniform([], seeds[2])
    token_ids, utterances, speakers, roles = (
        session[name][start : response + 1]
        for name in ("token_ids", "utterances", "speakers", "roles")
    )
    read = tf.where(source.without_response & (turns > 2), turns - 1, turns)
    matches = (speakers[:, None] == speakers) | source.any_pair
    matches = (matches & (utterances[:, None] != utterances))[:read, :read]
    first = _draw_true(tf.reduce_any(matches, axis=1)[None, :], seeds[5])[0]
    second = _draw_true(matches[tf.maximum(first, 0)][None, :], seeds[6])[0]
    sample = {
        "session": session["session"],
        "token_ids": pairs.strip_ends(token_ids, source.rule.prefix_tokens),
        "utterances": utterances,
        "speakers": tf.cast(speakers != speakers[-1], tf.int32),
        "roles": roles,
        "read": read,
        "split": _draw_below(read - 1, seeds[1]) + 1,
        "right": (4.0 * fate) % 2.0 >= 1.0,
        "replaced": fate >= 0.5,
        "hidden": _draw_below(read, seeds[3]),
        "odd": _draw_below(read, seeds[4]),
        "pair": tf.stack([first, tf.where(first < 0, -1, second)]),
    }
    if given is not None:
        places = tf.range(given["token_ids"].nrows())
        order = tf.random.experimental.stateless_shuffle(places, seeds[0])
        sample |= source._add(given, order[: source.given or None])
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
    """Sequences of one or two segments, which become `Rows` with the text "text".

    Segments are int32 `[rows, (turns)]`, indices into the step's list of turns.
    """

    first: tf.RaggedTensor
    second: tf.RaggedTensor | None
    targets: Tensors  # see `Rows`; "hints", int32, say what a rule could go by without reading
    # Whether they are two pieces of a dialogue: the turns of the second end with [EOT] too, as a
    # response does not, and no token is marked with its speaker. Two pieces that one speaker ends
    # and begins would give a replaced piece away.
    pieces: bool = False
    rule: PairRule | None = None  # the maximum lengths, if they are not the source's
    speaker_turns: tf.RaggedTensor | None = None  # whose speakers mark the first, if others
    # Maps the token ids of the sequences and the index of each token's turn in the first segment,
    # -1 for others, both int32 `[rows, tokens]`, to token ids, further targets and `Rows.tokens`.
    finish: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, Tensors, Tensors]] | None = None

    def build(self, step: "DialogueStep") -> Rows:
        """Builds the sequences and adds them to the step's texts."""
        rule = self.rule or step.source.rule
        ended = pairs.end_turns(step.turns, rule.end_of_turn_id)
        second = self.first[:, :0] if self.second is None else self.second  # or nothing
        turns = tf.gather(ended, self.first)
        others = tf.gather(ended if self.pieces else step.turns, second)

        owner = pairs.find_rows(turns.values)
        place = tf.gather(tf.ragged.range(tf.cast(turns.row_lengths(), tf.int32)).values, owner)
        # An [EOT] belongs to no turn.
        last = tf.cast(tf.gather(turns.values.row_limits(), owner), tf.int32) - 1
        place = tf.where(tf.range(tf.size(owner)) < last, place, -1)
        limits, is_pair = (rule.first_tokens, rule.second_tokens), self.second is not None
        joined = turns.merge_dims(1, 2), others.merge_dims(1, 2)
        found = pairs.place_segments(*joined, *limits, is_pair)
        # The responder's turns, the response and [CLS] are marked 0, other speakers' turns 1.
        speaker_turns = self.first if self.speaker_turns is None else self.speaker_turns
        speakers = tf.gather(tf.gather(step.speakers, speaker_turns.values), owner)
        # A candidate counts as the responder's, whoever said it.
        nobody = tf.zeros_like(others.flat_values)
        ids = found.fill(turns.flat_values, others.flat_values, rule.marks)
        turn_ids = found.fill(place, nobody - 1, (-1, -1, -1, -1))
        speaker_ids = found.fill(speakers, nobody) * int(not self.pieces)

        targets, tokens = self.targets, dict[str, tf.Tensor]()
        if self.finish:
            ids, further, tokens = self.finish(ids, turn_ids)
            targets = {**targets, **further}
        text = step.add_apart(ids, segment_ids=found.segment_ids(), speaker_ids=speaker_ids)
        return Rows({"text": text}, targets, tokens)


class DialogueStep(Step):
    """A step of batched outputs of `DialogueSource.draw`, with their turns in one list.

    Attributes:
        starts, ends: int32 `[samples]`, the range of each dialogue's turns in the list; its last
            turn is the response.
        read_ends: int32 `[samples]`, where the turns end that the auxiliary tasks read.
        session: int64 `[samples]`, fingerprints of the sessions.
        session_of_turn, roles: int64 `[turns]`, of each dialogue's turns.
        turns: int32 `[turns, (tokens)]`, the turns of all dialogues without [CLS] and [SEP],
            followed by given negatives or other turns.
        utterances, speakers: int64 and int32 `[turns]`, of the same.
        more: int32 `[samples, (texts)]`, each sample's negatives, or its other turn, in the list.
    """

    def __init__(
        self, samples: dict, splits: tf.Tensor, seed: int, number: tf.Tensor, source: DialogueSource
    ):
        ranges = tf.cast(samples["utterances"].row_splits, tf.int32)
        self.samples, self.source = samples, source
        self.starts, self.ends = ranges[:-1], ranges[1:]
        self.read_ends = self.starts + samples["read"]
        self.count, self.session = tf.shape(self.starts)[0], samples["session"]
        self.session_of_turn = tf.repeat(self.session, self.ends - self.starts)
        self.turns, self.utterances, self.speakers, self.roles = (
            samples[name].values for name in ("token_ids", "utterances", "speakers", "roles")
        )
        around = tf.ones([tf.size(self.utterances), 1], tf.int32)
        whole = [around * source.rule.cls_id, self.turns, around * source.rule.sep_id]
        drawn = tf.concat(whole, axis=1).to_tensor(), self.utterances, self.ends - 1
        marks = ("segment_ids", "speaker_ids")[: 1 + source.speakers]
        super().__init__(*drawn, splits, seed, number, marks)
        if "more_tokens" in samples:
            texts = samples["more_utterances"]
            self.more = texts.with_values(ranges[-1] + tf.range(tf.size(texts.values)))
            self.turns = tf.concat([self.turns, samples["more_tokens"].values], axis=0)
            self.utterances = tf.concat([self.utterances, texts.values], axis=0)
            # A candidate counts as the responder's, see `Segments.build`.
            nobody = tf.zeros_like(texts.values, tf.int32)
            self.speakers = tf.concat([self.speakers, nobody], axis=0)

    def share_role(self, turns: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Whether the speakers of turns, given as indices into the list, have the same role."""
        return tf.gather(self.roles, turns) == tf.gather(self.roles, others)

    def draw_place(
        self, allowed: tf.Tensor, turns: tf.Tensor, others: tf.Tensor, seed: tf.Tensor
    ) -> tf.Tensor:
        """Draws an allowed place of each row, of bool `[rows, places]`, of the role of the row's
        turn if roles matter: int32 `[rows]`, -1 for none. `others` are the turns of the places,
        int32 `[rows or 1, places]`.
        """
        if self.source.same_role:
            allowed = prefer(allowed, self.share_role(turns[:, None], others))
        return _draw_true(allowed, seed)

    def draw_strangers(self, turns: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws a turn of another session for a turn of each dialogue: int32 `[samples]`, indices
        into the list, and whether there is another session, bool `[samples]`.
        """
        strange = self.session_of_turn != self.session[:, None]
        drawn = self.draw_place(strange, turns, tf.range(tf.size(self.roles))[None, :], seed)
        return tf.maximum(drawn, 0), drawn >= 0


# The kinds of pairs of post-training, with the number of classes of each.
PAIRS = {"utterance": 2, "pieces": 2, "relevance": 3}
_RANDOM, _SAME_SESSION, _NEXT = range(3)  # classes of relevance


def _split_seed(step: DialogueStep, place: int, parts: int = 4) -> tf.Tensor:
    return tf.random.split(step.seed(ROWS), parts)[place]


def _find_shared(roles: tf.Tensor, sessions: tf.Tensor) -> tf.Tensor:
    """Whether each role is also another session's, and not a name that says nothing elsewhere."""
    distinct, numbers = tf.unique(roles)
    first = tf.math.unsorted_segment_min(sessions, numbers, tf.size(distinct))
    last = tf.math.unsorted_segment_max(sessions, numbers, tf.size(distinct))
    return tf.gather(first < last, numbers)


def draw_matching(step: DialogueStep, negatives: int) -> Segments:
    """Rows of response matching (section 2.2): each context with its true response, then with its
    negatives, drawn or given.

    targets: labels float32, 1 for the true response; weights, 0 where a negative is missing; hints,
    0 if the candidate's role is not the response's but other sessions' responses have that, else 1.
    """
    responses = step.ends - 1
    if step.source.given is None:
        texts = tf.gather(step.utterances, responses)
        roles = tf.gather(step.roles, responses)
        own = roles[:, None] == roles if step.source.same_role else None
        chosen, mask = sample_negatives(step.session, texts, negatives, _split_seed(step, 0), own)
        candidates = tf.gather(responses, chosen)
        shared = _find_shared(roles, step.session)
        hints = (tf.gather(roles, chosen) == roles[:, None]) | ~shared[:, None]
    else:
        given = step.more.to_tensor(-1, shape=[None, negatives or None])
        candidates = tf.concat([responses[:, None], given], axis=1)
        mask = candidates >= 0
        candidates = tf.where(mask, candidates, responses[:, None])
        hints = tf.ones_like(mask)  # nothing is known of the roles of given negatives
    width = tf.shape(candidates)[1]
    contexts = tf.ragged.range(step.starts, responses)
    owners = tf.range(step.count * width)
    targets = {
        "labels": tf.cast(owners % width == 0, tf.float32),
        "weights": tf.reshape(tf.cast(mask, tf.float32), [-1]),
        "hints": tf.reshape(tf.cast(hints, tf.int32), [-1]),
    }
    second = pairs.put_apart(tf.reshape(candidates, [-1]))
    return Segments(tf.gather(contexts, owners // width), second, targets)


def draw_next_session(
    step: DialogueStep, right: tf.Tensor | None = None, seed: tf.Tensor | None = None
) -> Segments:
    """Rows of next session prediction (section 2.3.1): the two pieces of a dialogue, of which one
    may be replaced by the corresponding piece of another session.

    A left piece is replaced by the beginning of another dialogue, a right one by an end, as many
    turns and, at the seam, of the same role. The other dialogue must have more turns than that.
    `right`, bool `[samples]`, says which piece may be replaced, if not the one that was drawn.

    targets: labels float32, 1 if both pieces are from one dialogue; weights, 0 where no dialogue
    has such a piece or it has the same texts, whether or not the piece is replaced, so that neither
    tells the label; hints, the number of turns and whether the role changes at the seam.
    """
    right = step.samples["right"] if right is None else right
    seed = _split_seed(step, 1) if seed is None else seed
    split = step.samples["split"]
    starts, ends = step.starts, step.read_ends
    middle, lengths = starts + split, ends - starts
    turns = tf.where(right, lengths - split, split)
    own = tf.where(right, middle, starts)

    at_end, turns_each = right[:, None], turns[:, None]
    begins = tf.where(at_end, ends - turns_each, starts)
    seams = tf.where(at_end, begins, begins + turns_each - 1)
    longer = (lengths > turns_each) & (step.session != step.session[:, None])
    inside = tf.clip_by_value(seams, 0, tf.size(step.roles) - 1)
    donor = step.draw_place(longer, tf.where(right, middle, middle - 1), inside, seed)
    other = tf.where(donor < 0, own, tf.gather(begins, tf.maximum(donor, 0), batch_dims=1))

    replaced = step.samples["replaced"] & (donor >= 0)
    begin = tf.where(replaced & ~right, other, starts)
    first = tf.ragged.range(begin, begin + split)
    begin = tf.where(replaced & right, other, middle)
    second = tf.ragged.range(begin, begin + lengths - split)
    texts = [
        tf.reduce_sum(tf.gather(step.utterances, tf.ragged.range(x, x + turns)), axis=1)
        for x in (own, other)
    ]  # sums of fingerprints
    last = tf.gather(first.values, first.row_limits() - 1)
    changes = ~step.share_role(last, tf.gather(second.values, second.row_starts()))
    targets = {
        "labels": tf.cast(~replaced, tf.float32),
        # A piece with the same texts still continues the dialogue; without a donor it is the same.
        "weights": tf.cast(texts[0] != texts[1], tf.float32),
        "hints": 2 * lengths + tf.cast(changes, tf.int32),
    }
    return Segments(first, second, targets, pieces=True, rule=step.source.rule.divided_evenly())


def draw_restoration(step: DialogueStep, mask_id: int) -> Segments:
    """Rows of utterance restoration (section 2.3.2): the dialogue, with all tokens of one turn
    masked. These tokens, if they were not truncated away, share their row's weight equally.

    tokens: ids int32, the tokens as they were; weights.
    """

    def finish(token_ids: tf.Tensor, turn_ids: tf.Tensor) -> tuple:
        hidden = tf.equal(turn_ids, step.samples["hidden"][:, None])  # == would lose the shape
        count = tf.reduce_sum(tf.cast(hidden, tf.float32), axis=1, keepdims=True)
        weights = tf.math.divide_no_nan(tf.ones_like(token_ids, tf.float32), count)
        tokens = {"asked": hidden, "ids": token_ids, "weights": weights}
        return tf.where(hidden, mask_id, token_ids), {}, tokens

    return Segments(tf.ragged.range(step.starts, step.read_ends), None, {}, finish=finish)


def draw_incoherence(step: DialogueStep) -> Segments:
    """Rows of incoherence detection (section 2.3.3): the dialogue with one turn replaced by a turn
    of another session, see `DialogueStep.draw_strangers`.

    targets: labels int32, the index of that turn in the dialogue; weights, 0 if it was truncated
    away or says the same. tokens: turns int32, the turn of each token that belongs to one.
    """
    window = tf.ragged.range(step.starts, step.read_ends)
    odd = step.samples["odd"]
    own = step.starts + odd
    taken, found = step.draw_strangers(own, _split_seed(step, 2))
    # Replacing "ok" by "ok" is not incoherent.
    differs = tf.gather(step.utterances, own) != tf.gather(step.utterances, taken)
    weights = tf.cast(found & differs, tf.float32)

    def finish(token_ids: tf.Tensor, turn_ids: tf.Tensor) -> tuple:
        left = tf.reduce_any(tf.equal(turn_ids, odd[:, None]), axis=1)
        counts = {"weights": weights * tf.cast(left, tf.float32)}
        return token_ids, counts, {"asked": turn_ids >= 0, "turns": turn_ids}

    # The speakers stay as they were, so that they do not give the replaced turn away.
    first = tf.where(window == own[:, None], taken[:, None], window)
    targets = {"labels": odd, "weights": weights}
    return Segments(first, None, targets, speaker_turns=window, finish=finish)


def draw_consistency(step: DialogueStep) -> Segments:
    """Rows of consistency discrimination (section 2.3.4), in pairs: a turn with another turn of its
    speaker, and the same turn with a turn of another session, see `DialogueStep.draw_strangers`.

    targets: labels float32, 1 for a speaker's own turn; weights, equal for both rows of a pair; 0
    if the other session's turn says what one of the two does; hints, 0 if the roles of the two
    turns differ but other sessions have that of the first, else 1.
    """
    pair = step.samples["pair"]
    first, second = (step.starts + tf.maximum(pair[:, i], 0) for i in range(2))
    stranger, found = step.draw_strangers(second, _split_seed(step, 3))
    said = [tf.gather(step.utterances, turn) for turn in (first, second, stranger)]
    differs = (said[2] != said[0]) & (said[2] != said[1])
    counts = (tf.reduce_min(pair, axis=1) >= 0) & found & differs
    firsts, weights = tf.repeat(first, 2), tf.repeat(tf.cast(counts, tf.float32), 2)
    seconds = tf.reshape(tf.stack([second, stranger], axis=1), [-1])
    shared = tf.gather(_find_shared(step.roles, step.session_of_turn), firsts)
    targets = {
        "labels": tf.tile([1.0, 0.0], [step.count]),
        "weights": weights,
        "hints": tf.cast(step.share_role(firsts, seconds) | ~shared, tf.int32),
    }
    return Segments(pairs.put_apart(firsts), pairs.put_apart(seconds), targets)


def draw_pairs(step: DialogueStep, kind: str, masking: MaskingRule) -> Segments:
    """Rows of post-training: two segments of which the relation is classified, one of `PAIRS`, and
    masked tokens.

    The class is 0 if the second segment is from another session, and the highest if it follows the
    first, as it does if there is no other session or turn to draw from.

    targets: labels int32, the class; weights, 0 if the text from another session is also in this
    dialogue or, of pieces, as `draw_next_session` says. tokens: ids int32, the masked tokens as
    they were; token_weights, all 1.
    """
    if kind == "pieces":
        right = tf.ones_like(step.samples["right"])
        rows = draw_next_session(step, right, _split_seed(step, 0, 2))
    else:
        rows = _pair_with_turn(step, PAIRS[kind] - 1)

    def finish(token_ids: tf.Tensor, turn_ids: tf.Tensor) -> tuple:
        hidden, asked = mask_tokens(token_ids, masking, _split_seed(step, 1, 2))
        ones = tf.ones_like(token_ids, tf.float32)
        return hidden, {}, {"asked": asked, "ids": token_ids, "token_weights": ones}

    labels = tf.cast(rows.targets["labels"], tf.int32)
    targets = {"labels": labels, "weights": rows.targets["weights"]}
    if PAIRS[kind] == 2:
        targets["hints"] = tf.zeros_like(labels)  # the best rule is to say always the same
    return dataclasses.replace(rows, targets=targets, rule=None, finish=finish)


def _pair_with_turn(step: DialogueStep, highest: int) -> Segments:
    """Contexts with a single turn; `highest` is the true turn's class."""
    wanted = tf.where(step.samples["replaced"], _RANDOM, highest)
    true = other = step.ends - 1
    stranger, found = step.draw_strangers(true, _split_seed(step, 0, 2))
    if step.source.other_turns:
        other = step.more.to_tensor(-1, shape=[None, 1])[:, 0]
        wanted = step.samples["relevance"]
        wanted = tf.where((wanted == _SAME_SESSION) & (other < 0), _NEXT, wanted)
    labels = tf.where((wanted == _RANDOM) & ~found, highest, wanted)
    second = tf.where(labels == highest, true, tf.where(labels == _RANDOM, stranger, other))

    # "ok" from another session is no negative for a dialogue that contains "ok" itself.
    same = step.samples["utterances"] == tf.gather(step.utterances, stranger)[:, None]
    weights = tf.cast((labels != _RANDOM) | ~tf.reduce_any(same, axis=1), tf.float32)
    targets = {"labels": labels, "weights": weights}
    return Segments(tf.ragged.range(step.starts, true), pairs.put_apart(second), targets)
