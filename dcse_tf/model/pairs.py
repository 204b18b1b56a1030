"""Sequences of two segments: [CLS] first [SEP] second [SEP], as a cross-encoder reads them.

In a segment of dialogue every turn ends with [EOT] ("end of turn", Xu et al. 2020, section 2.2).
"""

import dataclasses

import tensorflow as tf

from dcse_tf.model.tokenizer import END_OF_TURN, Vocabulary


@dataclasses.dataclass(frozen=True)
class PairRule:
    """How two segments become one sequence.

    Attributes:
        cls_id, sep_id, end_of_turn_id: of the vocabulary.
        first_tokens: most tokens of the first segment with its [CLS] and [SEP]; it is cut in front,
            since what is nearest to the second matters most.
        second_tokens: most tokens of the second segment with its [SEP]; it is cut at its end.
    """

    cls_id: int
    sep_id: int
    end_of_turn_id: int
    first_tokens: int
    second_tokens: int

    def divided_evenly(self) -> "PairRule":
        """For two segments of one kind, such as two pieces of a dialogue: as many tokens each."""
        half = (self.first_tokens + self.second_tokens) // 2
        rest = self.first_tokens + self.second_tokens - half
        return dataclasses.replace(self, first_tokens=rest, second_tokens=half)


def make_rule(vocabulary: Vocabulary, first_tokens: int, second_tokens: int) -> PairRule:
    """The rule for a vocabulary that has [EOT], see `Vocabulary.with_end_of_turn`."""
    cls_id, sep_id, end_id = map(vocabulary.index, ("[CLS]", "[SEP]", END_OF_TURN))
    return PairRule(cls_id, sep_id, end_id, first_tokens, second_tokens)


def strip_ends(token_ids: tf.RaggedTensor) -> tf.RaggedTensor:
    """Tokens of texts without their [CLS] and [SEP]: int32 `[texts, (tokens)]`."""
    return token_ids[:, 1:-1]


def end_turns(turns: tf.RaggedTensor, end: tf.Tensor | int) -> tf.RaggedTensor:
    """Adds an end to every turn and joins those of a row.

    Args:
        turns: `[rows, (turns), (tokens)]`, without [CLS] and [SEP].
        end: what to add: the id of [EOT], or what a figure of the turns' tokens has there, a scalar
            or one value a turn, `[turns of all rows]`.

    Returns:
        `[rows, (tokens)]`.
    """
    flat = turns.values  # [turns of all rows, (tokens)]
    ends = tf.cast(tf.broadcast_to(end, [flat.nrows()]), flat.dtype)
    flat = tf.concat([flat, tf.RaggedTensor.from_tensor(ends[:, None])], axis=1)
    return turns.with_values(flat).merge_dims(1, 2)


def join_segments(
    first: tf.RaggedTensor,
    second: tf.RaggedTensor | None,
    rule: PairRule,
    cls: int,
    sep: int,
) -> tf.RaggedTensor:
    """Cuts and joins two segments, their token ids or anything else that each token has.

    Args:
        first: int `[rows, (tokens)]`.
        second: the same; None for a sequence of one segment.
        rule: the lengths.
        cls, sep: what stands at the places of [CLS] and [SEP].

    Returns:
        int `[rows, (tokens)]`.
    """
    # A negative start would give all of it for a length of 0.
    kept = first[:, -(rule.first_tokens - 2) :] if rule.first_tokens > 2 else first[:, :0]
    ones = tf.ones([first.nrows(), 1], first.dtype)
    parts = [ones * cls, kept, ones * sep]
    if second is not None:
        parts += [second[:, : rule.second_tokens - 1], ones * sep]
    return tf.concat(parts, axis=1)


def join_pairs(
    first: tf.RaggedTensor, second: tf.RaggedTensor | None, rule: PairRule
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """The token ids of sequences, and the segment of each token.

    Args:
        first: int32 `[rows, (tokens)]`, see `end_turns`.
        second: the same; None for sequences of one segment.
        rule: ids and lengths.

    Returns:
        int32 `[rows, (tokens)]`, and of that shape 0 up to the first [SEP], which it has too, 1
        after it.
    """
    token_ids = join_segments(first, second, rule, rule.cls_id, rule.sep_id)
    ends = None if second is None else tf.ones_like(second)
    # The last [SEP] belongs to the second segment; that of the first is told from it by its place.
    ones = join_segments(tf.zeros_like(first), ends, rule, 0, 0)
    behind = tf.cumsum(ones.to_tensor(), axis=1)  # 0 in the first segment
    segment_ids = tf.cast(behind > 0, token_ids.dtype)
    if second is not None:
        # An empty second segment has its [SEP] alone.
        lengths = tf.cast(token_ids.row_lengths(), token_ids.dtype)
        last = tf.range(tf.shape(segment_ids)[1])[None, :] >= lengths[:, None] - 1
        segment_ids = tf.maximum(segment_ids, tf.cast(last, token_ids.dtype))
    return token_ids, tf.RaggedTensor.from_tensor(segment_ids, lengths=token_ids.row_lengths())
