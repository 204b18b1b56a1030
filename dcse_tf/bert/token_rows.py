"""Token ids of texts in NumPy arrays: made without TensorFlow, counted, and joined to pairs."""

import dataclasses
import itertools
from typing import Self

import numpy as np
from absl import logging

from dcse_tf.bert.vocabulary import END_OF_TURN, Vocabulary


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """Rows of token ids of different lengths. Like an array, `rows[numbers]` selects rows."""

    values: np.ndarray  # the ids of all rows, int32 [tokens]
    splits: np.ndarray  # where each row begins, and where the last one ends, int [rows + 1]

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens in each row, int `[rows]`."""
        return np.diff(self.splits)

    def __len__(self) -> int:
        return len(self.splits) - 1

    def __getitem__(self, numbers: np.ndarray) -> "TokenRows":
        lengths = self.lengths[numbers]
        splits = np.concatenate([[0], np.cumsum(lengths)])
        shifts = self.splits[numbers] - splits[:-1]
        return TokenRows(self.values[np.arange(splits[-1]) + np.repeat(shifts, lengths)], splits)

    def to_table(self, columns: int) -> np.ndarray:
        """The rows padded with 0, int32 `[rows, columns]`, enough columns for the longest row."""
        table = np.zeros([len(self), columns], np.int32)
        table[np.arange(columns) < self.lengths[:, None]] = self.values
        return table


class TextTokenizer:
    """Tokenises texts as the graph's tokenizers do, see `dcse_tf.bert.graph_tokenizers`."""

    def __init__(self, vocabulary: Vocabulary, max_sequence_length: int):
        self._ends = vocabulary.cls_id, vocabulary.sep_id
        self._prefix = vocabulary.prefix
        self._room = max_sequence_length - 2
        self._split = vocabulary.make_split()

    def tokenize(self, texts: list[str]) -> tuple[TokenRows, np.ndarray]:
        """Token ids with prefix, [CLS] and [SEP], at most `max_sequence_length`; and whether each
        text was truncated, bool `[texts]`.
        """
        found = self._split([self._prefix + text for text in texts] if self._prefix else texts)
        whole = np.array([len(ids) for ids in found], np.int64)
        splits = np.concatenate([[0], np.cumsum(np.minimum(whole, self._room) + 2)])
        begin, end = self._ends
        rows = ((begin, *ids[: self._room], end) for ids in found)
        values = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(splits[-1]))
        return TokenRows(values, splits), whole > self._room


# Dialogues in the language of their vocabulary have at most 0.3% unknown tokens, Chinese ones with
# BERT's English vocabulary 58 to 75%.
_SHARE = 0.05
_LEAST = 5  # unknown tokens; fewer may be a few emoji in a few texts


def warn_of_unknown(unknown: int, tokens: int, name: str) -> bool:
    """Logs a warning if too many tokens, without those that every text has, such as [CLS], are
    unknown, which the vocabulary writes as `name`; returns whether it did.
    """
    found = unknown >= _LEAST and unknown > _SHARE * tokens
    if found:
        logging.warning(
            "%d of the %d tokens read are %s (%.1f%%): the model does not know their characters; "
            "is its vocabulary of another language?",
            *(unknown, tokens, name, 100 * unknown / tokens),
        )
    return found


class UnknownTokens:
    """Counts the unknown tokens, `name`, of all texts that a model reads, and warns of them once.
    Every text has `ends` more tokens: [CLS], [SEP] and those of the prefix.
    """

    def __init__(self, unk_id: int, name: str, ends: int = 0):
        self._unk_id, self._name, self._ends = unk_id, name, ends
        self._unknown = self._tokens = 0
        self._warned = False

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Self:
        return cls(vocabulary.unk_id, vocabulary.special.unk, 2 + vocabulary.count_prefix())

    def add(self, token_ids: np.ndarray, texts: int) -> None:
        """Counts the tokens of texts, int `[tokens]`, all texts concatenated."""
        self._unknown += int(np.count_nonzero(token_ids == self._unk_id))
        self._tokens += len(token_ids) - self._ends * texts
        self._warned = self._warned or warn_of_unknown(self._unknown, self._tokens, self._name)


@dataclasses.dataclass(frozen=True)
class PairRule:
    """How two segments become one sequence, [CLS] first [SEP] second [SEP]."""

    cls_id: int
    sep_id: int
    end_of_turn_id: int
    # The largest number of tokens in the first segment, including [CLS] and [SEP]. It is truncated
    # at its start, since the tokens next to the second segment matter most.
    first_tokens: int
    second_tokens: int  # that in the second segment, including [SEP]; it is truncated at its end
    # How many tokens of a prefix stand before each text of a corpus. They are left out: "query: "
    # before every turn would only shorten the dialogue.
    prefix_tokens: int = 0

    @property
    def marks(self) -> tuple[int, int, int, int]:
        """The marks of token ids, see `dcse_tf.bert.pairs.Places.fill`."""
        return self.cls_id, self.sep_id, self.sep_id, 0

    def divided_evenly(self) -> "PairRule":
        """The same total in equal halves, for two similar segments such as pieces of a dialogue."""
        total = self.first_tokens + self.second_tokens
        half = total // 2
        return dataclasses.replace(self, first_tokens=total - half, second_tokens=half)


def make_rule(
    vocabulary: Vocabulary, first_tokens: int, second_tokens: int, prefix_tokens: int = 0
) -> PairRule:
    """The rule for a vocabulary that has [EOT], see `Vocabulary.with_end_of_turn`."""
    ids = vocabulary.cls_id, vocabulary.sep_id, vocabulary.tokens.index(END_OF_TURN)
    return PairRule(*ids, first_tokens, second_tokens, prefix_tokens)
