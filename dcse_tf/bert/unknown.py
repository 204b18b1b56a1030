"""Warns if a vocabulary does not fit the texts, by the share of unknown tokens."""

import numpy as np
from absl import logging

# Dialogues in the language of their vocabulary have at most 0.3% unknown tokens, Chinese ones with
# BERT's English vocabulary 58 to 75%.
SHARE = 0.05
_LEAST = 5  # unknown tokens; fewer may be a few emoji in a few texts


def warn_of_unknown(unknown: int, tokens: int, name: str) -> bool:
    """Logs a warning if too many tokens are unknown, and returns whether it did.

    Args:
        unknown: number of unknown tokens.
        tokens: number of tokens, without those that every text has, such as [CLS].
        name: how the vocabulary writes the unknown token.
    """
    found = unknown >= _LEAST and unknown > SHARE * tokens
    if found:
        logging.warning(
            "%d of the %d tokens read are %s (%.1f%%): the model does not know their characters; "
            "is its vocabulary of another language?",
            *(unknown, tokens, name, 100 * unknown / tokens),
        )
    return found


class UnknownTokens:
    """Counts the unknown tokens of all texts that a model reads, and warns of them once.

    Args:
        unk_id, name: the unknown token.
        ends: number of tokens that every text has: [CLS], [SEP] and those of the prefix.
    """

    def __init__(self, unk_id: int, name: str, ends: int = 0):
        self._unk_id, self._name, self._ends = unk_id, name, ends
        self._unknown = self._tokens = 0
        self._warned = False

    def add(self, token_ids: np.ndarray, texts: int) -> None:
        """Counts the tokens of texts, int `[tokens]`, all texts concatenated."""
        self._unknown += int(np.count_nonzero(token_ids == self._unk_id))
        self._tokens += len(token_ids) - self._ends * texts
        self._warned = self._warned or warn_of_unknown(self._unknown, self._tokens, self._name)
