"""Responses with their contexts and negatives, for the objectives that contrast utterances, and
texts in which tokens are masked or garbled.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from dcse_tf.bert.layout import fingerprint_rows, join_tables
from dcse_tf.bert.pairs import find_rows
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.data.dialogue import Context
from dcse_tf.data.records import parse_session
from dcse_tf.data.table import ROWS, Rows, Step


class ResponseStep(Step):
    """A step of responses in their contexts."""

    context: tf.Tensor  # int32 [samples, slots], the turns around each response
    turn_mask: tf.Tensor  # bool [samples, slots], True = real turn
    session: tf.Tensor  # int64 [samples], fingerprints of the sessions
    near: tf.Tensor | None = None  # bool [samples, samples], responses that are in the same place


@dataclasses.dataclass(frozen=True)
class ResponseSource:
    """Sessions, of which each gives one response with its context, or several.

    In the forms "plain" and "unique", a random turn of each session is a response; in "dense" every
    turn of a run of consecutive turns. "plain" encodes every use of an utterance separately, padded
    to the corpus' longest, as in the paper's procedure; the others encode each distinct one once.
    """

    form: str
    context: Context  # which turns around a response
    session_turns: int  # the most turns of a run in "dense"
    longest: int  # tokens in the corpus's longest utterance
    same_place: bool = False  # whether negatives stand where the response does, where possible
    samples = "sessions"

    def draw(self, element: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """Draws a run of turns: in "dense" any, else a response and the turns of its context, with
        the response's place among them.
        """
        session = parse_session(element)
        count, drawn = tf.shape(session["utterances"])[0], {"session": session["session"]}
        if self.form == "dense":
            length = tf.minimum(count, self.session_turns)
            begin = tf.random.stateless_uniform([], seed, 0, count - length + 1, tf.int32)
            end = begin + length
        else:
            first = 0 if self.context.side == "both" else 1  # a response has a context
            response = tf.random.stateless_uniform([], seed, first, count, tf.int32)
            begin = tf.maximum(response + self.context.offsets[0], 0)
            end = tf.minimum(response + max(self.context.offsets[-1], 0) + 1, count)
            drawn["response"] = response - begin
        if self.same_place:
            drawn |= {"before": tf.range(begin, end), "after": count - 1 - tf.range(begin, end)}
        return drawn | {name: session[name][begin:end] for name in ("token_ids", "utterances")}

    def make_step(
        self, samples: dict, splits: tf.Tensor, seed: int, number: tf.Tensor
    ) -> ResponseStep:
        """See `Source`. In "dense", every turn that has a context is a response."""
        distinct = self.form != "plain"
        width = None if distinct else self.longest
        token_ids = samples["token_ids"].merge_dims(0, 1).to_tensor(shape=[None, width])
        turns = samples["utterances"]
        owner = find_rows(turns)
        places = tf.range(tf.size(owner))
        around = places[:, None] + tf.constant(self.context.offsets)[None, :]
        inside = tf.clip_by_value(around, 0, tf.size(owner) - 1)
        turn_mask = (around == inside) & (tf.gather(owner, inside) == owner[:, None])
        if self.form == "dense":
            responses = tf.boolean_mask(places, tf.reduce_any(turn_mask, axis=1))
        else:
            responses = tf.cast(turns.row_starts(), tf.int32) + samples["response"]
        owner = tf.gather(owner, responses)
        splits = tf.searchsorted(owner, splits)
        drawn = (token_ids, turns.values, responses, splits, seed, number)
        step = ResponseStep(*drawn, distinct=distinct)
        step.session = tf.gather(samples["session"], owner)
        step.turn_mask = tf.gather(turn_mask, responses)
        if self.same_place:
            # Turns of the session before and after each; from seven on all are in one place.
            ends = (tf.gather(samples[name].values, responses) for name in ("before", "after"))
            before, after = (tf.minimum(turns, 7) for turns in ends)
            step.near = (before[:, None] == before) | (after[:, None] == after)
        # An empty slot repeats the response.
        step.context = tf.where(step.turn_mask, tf.gather(inside, responses), responses[:, None])
        return step


class UtteranceSource:
    """The utterances of all sessions, each a sample of its own."""

    samples = "utterances"

    def draw(self, element: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"token_ids": element}

    def make_step(self, samples: dict, splits: tf.Tensor, seed: int, number: tf.Tensor) -> Step:
        token_ids = samples["token_ids"].to_tensor()
        every = tf.range(tf.shape(token_ids)[0])
        return Step(token_ids, fingerprint_rows(token_ids), every, splits, seed, number)


def prefer(allowed: tf.Tensor, better: tf.Tensor) -> tf.Tensor:
    """Leaves each row of bool `[rows, places]` only its better places, if it has any of them."""
    found = allowed & better
    return tf.where(tf.reduce_any(found, axis=1, keepdims=True), found, allowed)


def sample_negatives(
    session: tf.Tensor,
    response: tf.Tensor,
    negatives: int,
    seed: tf.Tensor,
    better: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws negatives for every sample from the responses of the other samples (paper, section 3).

    A response can be a negative of a row if it is from another session and its text is no response
    in the row's own session, nor already a negative of the row. "ok" is everywhere in customer
    service, and a text that repeats the true response would be a false negative. The draw is
    uniform, without replacement.

    Args:
        session, response: int64 `[batch]`, fingerprints of sessions and of the responses' texts.
        negatives: number of negatives to draw per row; 0 for all, in `batch` columns.
        seed: int `[2]`; it alone determines the draw.
        better: bool `[batch, batch]`, the responses to draw alone for a row that has any of them.

    Returns:
        rows: int32 `[batch, 1 + negatives]`, the sample whose response is the candidate. Column 0
            is the row itself, as is every column for which no negative is left.
        mask: bool `[batch, 1 + negatives]`, True = a candidate.
    """
    batch = tf.shape(session)[0]
    sessions, (distinct, text_numbers) = tf.unique(session), tf.unique(response)
    texts = tf.size(distinct)
    first_rows = tf.math.unsorted_segment_min(tf.range(batch), text_numbers, texts)
    first_of_text = tf.gather(first_rows, text_numbers) == tf.range(batch)
    # A response text of the row's own session is no negative, even if another session has it too.
    pairs = tf.stack([sessions.idx, text_numbers], axis=1)
    said = tf.scatter_nd(pairs, tf.ones([batch], tf.int32), [tf.size(sessions.y), texts])
    in_own_session = tf.gather(tf.gather(said > 0, sessions.idx), text_numbers, axis=1)
    allowed = ~in_own_session & first_of_text[None, :]
    if better is not None:
        allowed = prefer(allowed, better)

    own = tf.range(batch)[:, None]
    if negatives:
        order = tf.random.stateless_uniform([batch, batch], seed)
        order, drawn = tf.math.top_k(tf.where(allowed, order, -1.0), k=tf.minimum(negatives, batch))
        drawn_mask = order >= 0.0
    else:
        drawn, drawn_mask = tf.tile(tf.range(batch)[None, :], [batch, 1]), allowed

    rows = tf.concat([own, tf.where(drawn_mask, drawn, own)], axis=1)
    return rows, tf.concat([tf.ones_like(own, tf.bool), drawn_mask], axis=1)


def draw_candidates(step: ResponseStep, negatives: int, numbers: tf.Tensor | None = None) -> Rows:
    """Rows of responses in their contexts, each with negatives from the global batch's other
    sessions, 0 for all.

    `numbers`, int32 `[turns + samples]`, are the texts of the step's turns, and a text for each
    sample that is its context in place of the turns around, if these have been added.

    Texts: context, int32 `[samples, slots]`; candidates, int32 `[samples, 1 + negatives]`, of which
    column 0 is the response. Targets: turn_mask and candidate_mask, bool of these shapes; weights,
    0 for a row without a negative.
    """
    if numbers is None:
        numbers = step.add(step.token_ids, step.fingerprints)
        context, turn_mask = tf.gather(numbers, step.context), step.turn_mask
    else:
        context = numbers[tf.shape(step.token_ids)[0] :][:, None]
        turn_mask = tf.ones_like(context, tf.bool)
    said = tf.gather(step.fingerprints, step.responses)
    chosen, mask = sample_negatives(step.session, said, negatives, step.seed(ROWS), step.near)
    candidates = tf.gather(tf.gather(numbers, step.responses), chosen)
    texts = {"context": context, "candidates": candidates}
    return Rows(texts, _mask_targets(turn_mask, mask), splits=step.splits)


def draw_joined_contexts(
    step: ResponseStep, negatives: int, turns_before: int, max_tokens: int
) -> Rows:
    """`draw_candidates` with each context joined to one sequence: [CLS] a [SEP] b [SEP] and so on.

    `turns_before` slots are before the response. Of a sequence of more than `max_tokens`, the
    tokens farthest from the response are cut; of two equally far ones, the one after the response
    is cut first. [CLS] and the last [SEP] are kept.
    """
    # The turns without their [CLS]. The sequence begins with the [CLS] of its response.
    words = tf.gather(step.token_ids[:, 1:], step.context)
    is_real = (words != 0) & step.turn_mask[..., None]
    before = tf.math.count_nonzero(is_real[:, :turns_before], [1, 2], dtype=tf.int32)[:, None]
    joined = [tf.shape(words)[0], tf.reduce_prod(tf.shape(words)[1:])]
    real = tf.reshape(is_real, joined)
    # Rank tokens by the number of real tokens between them and the response. Ranks are even before
    # the response and odd after it, so that no two tokens of a row have the same rank. The last
    # token of the row, which is kept, is the first.
    count = tf.cumsum(tf.cast(real, tf.int32), axis=1)  # of real tokens, up to each
    distance = tf.where(count <= before, 2 * (before - count), 2 * (count - before) - 1)
    distance = tf.where(count == count[:, -1:], -1, distance)
    distance = tf.where(real, distance, tf.int32.max)
    nearest = tf.sort(distance, axis=1)[:, : max_tokens - 1]
    kept = real & (distance <= nearest[:, -1:])
    sequences = tf.ragged.boolean_mask(tf.reshape(words, joined), kept)
    first = tf.gather(step.token_ids[:, :1], step.responses)
    sequences = tf.concat([tf.RaggedTensor.from_tensor(first), sequences], axis=1).to_tensor()

    # Records have no fingerprints of such sequences, so all are computed from the tokens.
    return draw_candidates(step, negatives, step.add(join_tables(step.token_ids, sequences)))


def draw_views(step: Step) -> Rows:
    """Rows that pair every utterance with itself (Gao et al. 2021, unsupervised).

    An utterance is in the table twice, and dropout makes the two embeddings differ. The context of
    a row is its utterance; its candidates are the second entries of all. A row that repeats the
    text of an earlier row has no candidates, and is no negative.
    """
    first = step.add(step.token_ids, step.fingerprints)
    second = step.add(step.token_ids, tf.bitwise.invert(step.fingerprints))
    count = tf.size(first)
    rows, seed = tf.range(count, dtype=tf.int64), step.seed(ROWS)
    chosen, mask = sample_negatives(rows, step.fingerprints, 0, seed)
    same = step.fingerprints[:, None] == step.fingerprints[None, :]
    is_first = tf.argmax(same, axis=1, output_type=tf.int32) == tf.range(count)
    texts = {"context": first[:, None], "candidates": tf.gather(second, chosen)}
    return Rows(texts, _mask_targets(tf.ones([count, 1], tf.bool), mask & is_first[:, None]))


def _mask_targets(turn_mask: tf.Tensor, mask: tf.Tensor) -> dict[str, tf.Tensor]:
    weights = tf.cast(mask[:, 0] & tf.reduce_any(mask[:, 1:], axis=1), tf.float32)
    return {"turn_mask": turn_mask, "candidate_mask": mask, "weights": weights}


@dataclasses.dataclass(frozen=True)
class MaskingRule:
    """How tokens are masked."""

    mask_rate: float  # share of the ordinary tokens to predict
    max_predictions: int  # the most in a text
    vocabulary: Vocabulary  # whose special tokens are neither predicted nor drawn as replacements
    prefix_tokens: int = 0  # after [CLS]; they are not predicted


def _is_kept(token_ids: tf.Tensor, kept_ids: Sequence[int], prefix_tokens: int) -> tf.Tensor:
    """Whether tokens are of some ids, or [CLS] or of the prefix after it."""
    kept = tf.constant(kept_ids, token_ids.dtype)
    is_first = tf.range(tf.shape(token_ids)[1]) <= prefix_tokens
    return tf.reduce_any(token_ids[..., None] == kept, axis=-1) | is_first


def mask_tokens(
    token_ids: tf.Tensor, rule: MaskingRule, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws tokens of texts, int32 `[texts, tokens]`, to predict, at least one of each: 80% become
    [MASK], 10% a random token, 10% stay (Devlin et al. 2019, section 3.1). The seed alone decides.

    Returns the texts with the masked tokens replaced, and where a token is to be predicted, bool.
    """
    seeds, special_ids = tf.random.split(seed, 3), rule.vocabulary.special_ids
    special = _is_kept(token_ids, special_ids, rule.prefix_tokens)
    order = tf.random.stateless_uniform(tf.shape(token_ids), seeds[0])
    # Rows may be shorter than max_predictions, so pad them with positions that are never drawn.
    order = tf.where(special, -1.0, order)
    order = tf.pad(order, [[0, 0], [0, rule.max_predictions]], constant_values=-1.0)
    drawn, positions = tf.math.top_k(order, k=rule.max_predictions)
    maskable = tf.reduce_sum(tf.cast(~special, tf.float32), axis=1, keepdims=True)
    wanted = tf.maximum(1.0, tf.round(maskable * rule.mask_rate))
    rank = tf.range(rule.max_predictions, dtype=tf.float32)[None, :]
    chosen = (drawn >= 0.0) & (rank < wanted)
    positions = tf.where(chosen, positions, 0)
    true_ids = tf.gather(token_ids, positions, batch_dims=1)
    ordinary = [i for i in range(len(rule.vocabulary.tokens)) if i not in special_ids]
    shape = tf.shape(true_ids)
    pick = tf.random.stateless_uniform(shape, seeds[1], 0, len(ordinary), tf.int32)
    random_ids = tf.gather(tf.constant(ordinary, true_ids.dtype), pick)
    fate = tf.random.stateless_uniform(shape, seeds[2])
    hidden = tf.where(fate < 0.8, tf.cast(rule.vocabulary.mask_id, true_ids.dtype), random_ids)
    hidden = tf.where(fate < 0.9, hidden, true_ids)

    places = tf.where(chosen)
    updates = tf.stack([places[:, 0], tf.cast(tf.gather_nd(positions, places), tf.int64)], axis=1)
    masked = tf.tensor_scatter_nd_update(token_ids, updates, tf.gather_nd(hidden, places))
    nothing, every = tf.zeros_like(token_ids, tf.bool), tf.ones_like(places[:, 0], tf.bool)
    return masked, tf.tensor_scatter_nd_update(nothing, updates, every)


# Probability that an ordinary token of a text is replaced.
GARBLED_SHARE = 0.5


def garble(token_ids: tf.Tensor, vocabulary: Vocabulary, seed: tf.Tensor) -> tf.Tensor:
    """Replaces each ordinary token of zero-padded texts, int32 `[texts, tokens]`, with probability
    `GARBLED_SHARE`, by a whole word or, where no entry begins one, by any ordinary token, drawn
    uniformly. The seed, int `[2]`, alone determines the draw. Special tokens, such as [PAD] and
    [CLS], and the prefix after it are never replaced.
    """
    special = vocabulary.special_ids
    ordinary = [i for i in range(len(vocabulary.tokens)) if i not in special]
    words = [i for i in ordinary if vocabulary.begins_word(vocabulary.tokens[i])] or ordinary
    seeds, shape = tf.random.split(seed, 2), tf.shape(token_ids)
    stays = _is_kept(token_ids, special, vocabulary.count_prefix())
    chosen = ~stays & (tf.random.stateless_uniform(shape, seeds[0]) < GARBLED_SHARE)
    drawn = tf.random.stateless_uniform(shape, seeds[1], 0, len(words), tf.int32)
    return tf.where(chosen, tf.gather(tf.constant(words, token_ids.dtype), drawn), token_ids)
