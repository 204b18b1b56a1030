"""Rows of response selection, of its four auxiliary tasks (Xu et al. 2020, section 2.3), and of
post-training.

A row has one or two segments of turns: a piece of dialogue, two pieces, a context and a response,
or two utterances.

What is drawn from another session resembles what it takes the place of in all that a rule could see
without reading: it is as many turns and, where another session of the step has any, of the same
role.

The auxiliary tasks use the dialogue up to and including the true response: a context alone may have
only one turn, which can be neither split nor replaced.
"""

import dataclasses

import tensorflow as tf

from dcse_tf.bert.pairs import find_rows, put_apart
from dcse_tf.data.dialogue_step import DialogueStep, Segments
from dcse_tf.data.masking import MaskingRule, mask_tokens
from dcse_tf.data.responses import sample_negatives
from dcse_tf.data.table import ROWS

# The kinds of pairs of post-training, with the number of classes of each.
PAIRS = {"utterance": 2, "pieces": 2, "relevance": 3}
_RANDOM, _SAME_SESSION, _NEXT = range(3)  # classes of relevance


def _split_seed(step: DialogueStep, place: int, parts: int = 4) -> tf.Tensor:
    """The seed of one of the tasks that draw from other sessions of the step."""
    return tf.random.split(step.seed(ROWS), parts)[place]


def _find_shared(roles: tf.Tensor, sessions: tf.Tensor) -> tf.Tensor:
    """Whether each role is also another session's, and not a name that says nothing elsewhere; of
    fingerprints, int64 `[places]`, bool `[places]`.
    """
    distinct, numbers = tf.unique(roles)
    first, last = (
        reduce(sessions, numbers, tf.size(distinct))
        for reduce in (tf.math.unsorted_segment_min, tf.math.unsorted_segment_max)
    )
    return tf.gather(first < last, numbers)


def draw_matching(step: DialogueStep, negatives: int) -> Segments:
    """Rows of response matching (section 2.2): each context with its true response, then with its
    negatives, drawn or given.

    targets: labels float32 `[rows]`, 1 for the true response; weights, 0 where a negative is
    missing; hints, 0 if the candidate's role is not that of the true response but other sessions'
    responses have that, else 1.
    """
    responses = step.ends - 1
    if step.negatives is None:
        texts = tf.gather(step.utterances, responses)
        roles = tf.gather(step.roles, responses)
        own = roles if step.source.same_role else None
        seed = _split_seed(step, 0)
        chosen, mask = sample_negatives(step.session, texts, negatives, seed, own)
        candidates = tf.gather(responses, chosen)
        shared = _find_shared(roles, step.session)
        hints = (tf.gather(roles, chosen) == roles[:, None]) | ~shared[:, None]
    else:
        given = step.negatives.to_tensor(-1, shape=[None, negatives or None])
        candidates = tf.concat([responses[:, None], given], axis=1)
        mask = candidates >= 0
        candidates = tf.where(mask, candidates, responses[:, None])
        hints = tf.ones_like(mask)  # nothing is known of the roles of given negatives
    width = tf.shape(candidates)[1]
    contexts = tf.ragged.range(step.starts, responses)
    owners = tf.range(step.count * width) // width
    labels = tf.one_hot(tf.zeros([step.count], tf.int32), width)
    targets = {
        "labels": tf.reshape(labels, [-1]),
        "weights": tf.reshape(tf.cast(mask, tf.float32), [-1]),
        "hints": tf.reshape(tf.cast(hints, tf.int32), [-1]),
    }
    second = put_apart(tf.reshape(candidates, [-1]))
    return Segments(tf.gather(contexts, owners), second, targets)


def draw_next_session(step: DialogueStep) -> Segments:
    """Rows of next session prediction (section 2.3.1): the two pieces of a dialogue, of which one
    may be replaced by the corresponding piece of another session.

    A left piece is replaced by the beginning of another dialogue, a right one by an end, as many
    turns and, at the seam, of the same role. The other dialogue must have more turns than that.

    targets: labels float32, 1 if both pieces are from one dialogue; weights, 0 where no dialogue
    has such a piece or it has the same texts, whether or not the piece is replaced, so that neither
    tells the label; hints, the number of turns and whether the role changes at the seam.
    """
    return _pair_pieces(step, step.samples["right"], _split_seed(step, 1))


def _pair_pieces(step: DialogueStep, right: tf.Tensor, seed: tf.Tensor) -> Segments:
    """See `draw_next_session`; `right`, bool `[samples]`, says which piece may be replaced."""
    split = step.samples["split"]
    starts, ends = step.starts, step.ends
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
    ]
    last = tf.gather(first.values, first.row_limits() - 1)
    changes = ~step.share_role(last, tf.gather(second.values, second.row_starts()))
    targets = {
        "labels": tf.cast(~replaced, tf.float32),
        # A piece with the same texts still continues the dialogue; without a donor it is the same.
        "weights": tf.cast(texts[0] != texts[1], tf.float32),
        "hints": 2 * lengths + tf.cast(changes, tf.int32),
    }
    # Two pieces that one speaker ends and begins would give a replaced piece away.
    rule = step.source.rule.divided_evenly()
    return Segments(first, second, targets, True, rule, tells_speakers=False)


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

    return Segments(tf.ragged.range(step.starts, step.ends), None, {}, finish=finish)


def draw_incoherence(step: DialogueStep) -> Segments:
    """Rows of incoherence detection (section 2.3.3): the dialogue with one turn replaced by a turn
    of another session, see `DialogueStep.draw_strangers`.

    targets: labels int32, the index of that turn in the dialogue; weights, 0 if it was truncated
    away or says the same. tokens: turns int32, the turn of each token that belongs to one.
    """
    window = tf.ragged.range(step.starts, step.ends)
    odd = step.samples["odd"]
    own = step.starts + odd
    drawn = step.draw_strangers(own, _split_seed(step, 2))
    taken = tf.maximum(drawn, 0)
    owners = find_rows(window)
    places = tf.where(
        window.values == tf.gather(own, owners), tf.gather(taken, owners), window.values
    )
    # Replacing "ok" by "ok" is not incoherent.
    differs = tf.gather(step.utterances, own) != tf.gather(step.utterances, taken)
    weights = tf.cast((drawn >= 0) & differs, tf.float32)

    def finish(token_ids: tf.Tensor, turn_ids: tf.Tensor) -> tuple:
        left = tf.reduce_any(tf.equal(turn_ids, odd[:, None]), axis=1)
        counts = {"weights": weights * tf.cast(left, tf.float32)}
        return token_ids, counts, {"asked": turn_ids >= 0, "turns": turn_ids}

    # The speakers stay as they were, so that they do not give the replaced turn away.
    first = window.with_values(places)
    targets = {"labels": odd, "weights": weights}
    return Segments(first, None, targets, speaker_turns=window, finish=finish)


def draw_consistency(step: DialogueStep) -> Segments:
    """Rows of consistency discrimination (section 2.3.4), in pairs: a turn with another turn of its
    speaker, and the same turn with a turn of another session, see `DialogueStep.draw_strangers`.

    targets: labels float32, 1 for a speaker's own turn, 0 for a stranger's; weights, equal for both
    rows of a pair; 0 if the other session's turn says what one of the two does; hints, 0 if the
    roles of the two turns differ but other sessions have that of the first, else 1.
    """
    pair = step.samples["pair"]
    first, second = (step.starts + tf.maximum(pair[:, i], 0) for i in range(2))
    drawn = step.draw_strangers(second, _split_seed(step, 3))
    stranger = tf.maximum(drawn, 0)
    said = [tf.gather(step.utterances, turn) for turn in (first, second, stranger)]
    differs = (said[2] != said[0]) & (said[2] != said[1])
    counts = (tf.reduce_min(pair, axis=1) >= 0) & (drawn >= 0) & differs
    firsts, seconds, weights = (
        tf.reshape(tf.stack(both, axis=1), [-1])
        for both in ([first, first], [second, stranger], [counts, counts])
    )
    shared = tf.gather(_find_shared(step.roles, step.session_of_turn), firsts)
    targets = {
        "labels": tf.tile([1.0, 0.0], [step.count]),
        "weights": tf.cast(weights, tf.float32),
        "hints": tf.cast(step.share_role(firsts, seconds) | ~shared, tf.int32),
    }
    return Segments(put_apart(firsts), put_apart(seconds), targets)


def draw_pairs(step: DialogueStep, kind: str, masking: MaskingRule) -> Segments:
    """Rows of post-training: two segments of which the relation is classified, one of `PAIRS`, and
    masked tokens.

    The class is 0 if the second segment is from another session, and the highest class if it
    follows the first. If there is no other session or turn to draw from, the second segment is the
    true one, and so is the class.

    targets: labels int32, the class; weights, 0 if the text from another session is also in this
    dialogue or, of pieces, as `draw_next_session` says. tokens: ids int32, the masked tokens as
    they were; token_weights, all 1.
    """
    if kind == "pieces":
        right = tf.ones_like(step.samples["right"])
        rows = _pair_pieces(step, right, _split_seed(step, 0, 2))
        labels, weights = tf.cast(rows.targets["labels"], tf.int32), rows.targets["weights"]
    else:
        rows, labels, weights = _pair_with_turn(step, PAIRS[kind] - 1)

    def finish(token_ids: tf.Tensor, turn_ids: tf.Tensor) -> tuple:
        hidden, asked = mask_tokens(token_ids, masking, _split_seed(step, 1, 2))
        ones = tf.ones_like(token_ids, tf.float32)
        return hidden, {}, {"asked": asked, "ids": token_ids, "token_weights": ones}

    targets = {"labels": labels, "weights": weights}
    return dataclasses.replace(rows, targets=targets, rule=None, finish=finish)


def _pair_with_turn(step: DialogueStep, highest: int) -> tuple[Segments, tf.Tensor, tf.Tensor]:
    """Contexts with a single turn, classes and weights; `highest` is the true turn's class."""
    wanted = tf.where(step.samples["replaced"], _RANDOM, highest)
    true = other = step.ends - 1
    drawn = step.draw_strangers(true, _split_seed(step, 0, 2))
    stranger = tf.maximum(drawn, 0)
    if step.others is not None:
        other, wanted = step.others, step.samples["relevance"]
        wanted = tf.where((wanted == _SAME_SESSION) & (other < 0), _NEXT, wanted)
    labels = tf.where((wanted == _RANDOM) & (drawn < 0), highest, wanted)
    second = tf.where(labels == highest, true, tf.where(labels == _RANDOM, stranger, other))

    # "ok" from another session is no negative for a dialogue that contains "ok" itself.
    said = step.samples["utterances"]
    owners = find_rows(said)
    same = said.values == tf.gather(tf.gather(step.utterances, stranger), owners)
    known = tf.math.unsorted_segment_max(tf.cast(same, tf.int32), owners, step.count) > 0
    weights = tf.cast((labels != _RANDOM) | ~known, tf.float32)
    contexts = tf.ragged.range(step.starts, true)
    return Segments(contexts, put_apart(second), {}), labels, weights
