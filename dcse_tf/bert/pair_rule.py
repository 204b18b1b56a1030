"""The rule by which two segments become one sequence, see `dcse_tf.bert.pairs`. No TensorFlow."""

import dataclasses

from dcse_tf.bert.vocabulary import END_OF_TURN, Vocabulary

# The values at [CLS], at the first [SEP], at the last [SEP], and after the end.
Marks = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True)
class PairRule:
    """How two segments become one sequence.

    Attributes:
        cls_id, sep_id, end_of_turn_id: ids in the vocabulary.
        first_tokens: the largest number of tokens in the first segment, including [CLS] and [SEP].
            It is truncated at its start, since the tokens next to the second segment matter most.
        second_tokens: the largest number of tokens in the second segment, including [SEP]. It is
            truncated at its end.
        prefix_tokens: how many tokens of a prefix stand before each text of a corpus. They are left
            out: "query: " before every turn would only shorten the dialogue.
    """

    cls_id: int
    sep_id: int
    end_of_turn_id: int
    first_tokens: int
    second_tokens: int
    prefix_tokens: int = 0

    @property
    def marks(self) -> "Marks":
        """The marks of token ids, see `Places.fill`."""
        return self.cls_id, self.sep_id, self.sep_id, 0

    def divided_evenly(self) -> "PairRule":
        """The same total in equal halves, for two similar segments such as pieces of a dialogue."""
        half = (self.first_tokens + self.second_tokens) // 2
        rest = self.first_tokens + self.second_tokens - half
        return dataclasses.replace(self, first_tokens=rest, second_tokens=half)


def make_rule(
    vocabulary: Vocabulary, first_tokens: int, second_tokens: int, prefix_tokens: int = 0
) -> PairRule:
    """The rule for a vocabulary that has [EOT], see `Vocabulary.with_end_of_turn`."""
    ids = vocabulary.cls_id, vocabulary.sep_id, vocabulary.index(END_OF_TURN)
    return PairRule(*ids, first_tokens, second_tokens, prefix_tokens)
