"""Runs sentences through a backend: each distinct one once, in batches of similar lengths."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from dcse_tf.bert.blanks import NO_CANDIDATE, is_blank
from dcse_tf.matching.head_files import HeadMaps

BATCH_TOKENS = 2048
_BYTES_PER_TOKEN = 4

# Called with (tokens done, tokens in all).
Progress = Callable[[int, int], object]
# A function from the texts of contexts and of their candidates, the same number for each context,
# to similarities float32 `[contexts, candidates]`.
Match = Callable[[list[list[str]], list[list[str]]], np.ndarray]


class Backend(Protocol):
    """Computes the embeddings of a `SentenceEncoder`.

    Attributes:
        batch_tokens: most tokens in a batch, including padding.
        settings: the model's settings, where known: max_sequence_length in tokens, pooling,
            compute_dtype, matching, a prefix if there is one, and unit_norm if every embedding has
            length 1.
        match: the model's own similarity; None if it has only sentence embeddings.
        heads: the projection heads that the model was trained with, by side; empty without any.
    """

    batch_tokens: int

    @property
    def settings(self) -> Mapping[str, Any]: ...

    @property
    def match(self) -> Match | None: ...

    @property
    def heads(self) -> HeadMaps: ...

    def read(self, sentences: list[str]) -> tuple[Any, np.ndarray, np.ndarray]:
        """The sentences in the form that `embed` takes, which an array of row numbers selects from,
        such as an array or `TokenRows`; the length in tokens to which each must be padded at
        least, int `[sentences]`; and whether each was truncated, bool `[sentences]`, False where
        the backend cannot tell.
        """

    def embed(self, inputs: Any, tokens: int) -> Any:
        """Embeds n inputs from `read`, none longer than `tokens`, to float `[n, dim]`: an array or
        a tensor.
        """

    def fingerprint(self) -> str:
        """A hash of everything the embeddings depend on; equal means equal up to rounding."""


def match_texts(match: Match, contexts: list[list[str]], candidates: list[list[str]]) -> np.ndarray:
    """Computes similarities without blank texts: they are no turns, and no candidates.

    Args:
        match: computes the similarities of other texts.
        contexts, candidates: as for `match`.

    Returns:
        float32 `[contexts, candidates]`, `NO_CANDIDATE` for a blank candidate; 0 for others of a
        context without turns.
    """
    contexts = [[turn for turn in turns if not is_blank(turn)] for turns in contexts]
    blank = np.array([[is_blank(text) for text in group] for group in candidates])
    return np.where(blank, np.float32(NO_CANDIDATE), match(contexts, candidates))


def count_by_bytes(sentences: list[str]) -> np.ndarray:
    """Estimates the number of tokens of sentences, including [CLS] and [SEP]; int `[sentences]`.

    For backends that tokenize internally, or not at all.
    """
    lengths = np.array([len(text.encode()) for text in sentences])
    return 2 + -(-lengths // _BYTES_PER_TOKEN)


def split_by_length(
    lengths: np.ndarray, batch_tokens: int, batch_size: int | None = None
) -> Iterator[tuple[int, int]]:
    """Splits sentences that are sorted by length, the shortest first, into batches.

    Args:
        lengths: tokens of each sentence, int `[sentences]`, ascending.
        batch_tokens: most tokens in a batch, rows x longest row; a longer row is a batch alone.
        batch_size: most rows in a batch; None for no such limit.

    Yields:
        The range of each batch: (first row, one past the last).
    """
    most = batch_size or len(lengths)
    start = 0
    while start < len(lengths):
        # First an upper bound, as if all rows were as short as the first; then the largest number
        # of rows that fit when padded to the last of them.
        rows = min(max(1, batch_tokens // max(1, int(lengths[start]))), most)
        stop = min(start + rows, len(lengths))
        counts = np.arange(1, stop - start + 1)
        fits = np.flatnonzero(counts * lengths[start:stop] <= batch_tokens)
        stop = start + (int(fits[-1]) + 1 if len(fits) else 1)
        yield start, stop
        start = stop


def embed_inputs(
    backend: Backend,
    inputs: Any,
    lengths: np.ndarray,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Embeds inputs from `backend.read`, or from elsewhere in the same form.

    Args:
        backend: computes the embeddings.
        inputs: at least one, in the form that `backend.embed` takes. Their order decides which
            inputs of equal length share a batch, and so affects the last bits of the embeddings.
        lengths: tokens of each input, int `[inputs]`.
        batch_size: see `split_by_length`.
        progress: called after each batch.

    Returns:
        float32 `[inputs, dim]`.
    """
    order = np.argsort(lengths, kind="stable")
    lengths = lengths[order]
    done, total = 0, int(lengths.sum())
    embeddings = None

    for start, stop in split_by_length(lengths, backend.batch_tokens, batch_size):
        rows = order[start:stop]
        batch = np.asarray(backend.embed(inputs[rows], int(lengths[stop - 1])))
        if embeddings is None:
            embeddings = np.empty([len(lengths), batch.shape[1]], np.float32)
        embeddings[rows] = batch
        done += int(lengths[start:stop].sum())
        if progress:
            progress(done, total)

    assert embeddings is not None
    return embeddings


def embed_texts(
    backend: Backend,
    texts: list[str],
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Embeds texts, each distinct one once; see `embed_inputs`.

    Returns:
        float32 `[texts, dim]` in the order given; `[0, dim]` for no texts.
    """
    return embed_and_measure(backend, texts, batch_size, progress)[0]


def embed_and_measure(
    backend: Backend,
    texts: list[str],
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Like `embed_texts`, and also returns what `Backend.read` says of each text.

    Returns:
        float32 `[texts, dim]`; the lengths in tokens, int `[texts]`; and whether the text was
        truncated, bool `[texts]`.
    """
    # Sorted, so that the batches, and so the last bits, depend only on the set of texts. If there
    # are none, an empty text is embedded to find the number of dimensions.
    distinct = sorted(set(texts)) or [""]
    inputs, lengths, truncated = backend.read(distinct)
    embeddings = embed_inputs(backend, inputs, lengths, batch_size, progress)

    row = {text: index for index, text in enumerate(distinct)}
    rows = np.array([row[text] for text in texts], np.int64)
    return embeddings[rows], lengths[rows], truncated[rows]
