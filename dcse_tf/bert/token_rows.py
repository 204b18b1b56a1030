"""Token ids of texts in NumPy arrays, and the tokenizer that makes them without TensorFlow."""

import dataclasses
import itertools

import numpy as np

from dcse_tf.bert.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """Rows of token ids of different lengths. Like an array, `rows[numbers]` selects rows.

    Attributes:
        values: the ids of all rows, int32 `[tokens]`.
        splits: where each row begins, and where the last one ends, int `[rows + 1]`.
    """

    values: np.ndarray
    splits: np.ndarray

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

    def to_table(self, columns: int, rows: int = 0) -> np.ndarray:
        """The rows padded with 0, int32 `[rows, columns]`.

        Args:
            columns: at least the length of the longest row.
            rows: the number of rows, if it is more than there are.
        """
        table = np.zeros([max(rows, len(self)), columns], np.int32)
        table[: len(self)][np.arange(columns) < self.lengths[:, None]] = self.values
        return table


class TextTokenizer:
    """Tokenises texts as the graph's tokenizers do, see `dcse_tf.bert.graph_tokenizers`.

    Args:
        vocabulary: the vocabulary, with its prefix.
        max_sequence_length: the largest number of tokens, including [CLS] and [SEP].
    """

    def __init__(self, vocabulary: Vocabulary, max_sequence_length: int):
        self._ends = vocabulary.cls_id, vocabulary.sep_id
        self._prefix = vocabulary.prefix
        self._room = max_sequence_length - 2
        self._split = vocabulary.make_split()

    def tokenize(self, texts: list[str]) -> tuple[TokenRows, np.ndarray]:
        """Token ids with prefix, [CLS] and [SEP], truncated to `max_sequence_length`.

        Also returns whether each text was truncated, bool `[texts]`.
        """
        found = self._split([self._prefix + text for text in texts] if self._prefix else texts)
        whole = np.array([len(ids) for ids in found], np.int64)
        splits = np.concatenate([[0], np.cumsum(np.minimum(whole, self._room) + 2)])
        begin, end = self._ends
        rows = ((begin, *ids[: self._room], end) for ids in found)
        values = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(splits[-1]))
        return TokenRows(values, splits), whole > self._room
