"""Many sentences through an encoder: each distinct one once, those of a length together."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import numpy as np
import tensorflow as tf


def read_texts(values: Any, name: str) -> list[str]:
    """The strings of anything that has them in an order.

    Args:
        values: what was given.
        name: what the caller calls it, for messages.

    Raises:
        TypeError: it is no list of strings, or something in it is no string.
        ValueError: a string is no text: it has half of a surrogate pair.
    """
    # A dict would give its keys, a table the names of its columns.
    refused = isinstance(values, str | bytes | Mapping | AbstractSet)
    if refused or not isinstance(values, Iterable) or getattr(values, "ndim", 1) != 1:
        shape = f" of shape {values.shape}" if hasattr(values, "shape") else ""
        raise TypeError(f"{name}: expected a list of strings, found {_describe(values)}{shape}")
    texts = []
    for place, text in enumerate(values):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{place}]: expected a string, found {_describe(text)}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{name}[{place}]: not a text: {error}") from None
        texts.append(str(text))
    return texts


def read_text_lists(values: Any, name: str) -> list[list[str]]:
    """The lists of strings in a list; see `read_texts`."""
    return [read_texts(group, f"{name}[{place}]") for place, group in enumerate(values)]


def is_list_of_lists(values: object) -> bool:
    """Whether the first of what was given is itself a list, and not a text."""
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
        return False
    return len(values) > 0 and isinstance(values[0], list | tuple | np.ndarray)


def _describe(value: object) -> str:
    kind = type(value).__name__
    return f"{kind} {value!r}" if isinstance(value, int | float) else kind


Progress = Callable[[int, int], None]

BATCH_TOKENS = 2048


class BatchEncoder(Protocol):
    """What `embed_distinct` needs of an encoder.

    Attributes:
        batch_tokens: most tokens of a batch, padding counted.
    """

    batch_tokens: int

    def read(self, sentences: list[str]) -> tuple[Any, np.ndarray]:
        """The sentences as the encoder takes them, and how many tokens each will be padded to at
        least, int `[sentences]`.
        """

    def embed(self, inputs: Any, tokens: int) -> tf.Tensor:
        """Embeds some of what `read` gave, none longer than `tokens`; float `[n, dim]`."""


def split_by_length(lengths: np.ndarray, batch_tokens: int) -> Iterator[tuple[int, int]]:
    """Batches of sentences that are sorted by length, the shortest first.

    Args:
        lengths: tokens of each, int `[sentences]`, ascending.
        batch_tokens: rows x longest row of a batch stays within it, unless one row is longer.

    Yields:
        (first, behind the last).
    """
    start = 0
    while start < len(lengths):
        # All that may fit if they were no longer than the first; cut until the last one fits.
        stop = min(start + max(1, batch_tokens // max(1, int(lengths[start]))), len(lengths))
        rows = np.arange(1, stop - start + 1)
        fits = np.flatnonzero(rows * lengths[start:stop] <= batch_tokens)
        stop = start + (int(fits[-1]) + 1 if len(fits) else 1)
        yield start, stop
        start = stop


def embed_distinct(
    encoder: BatchEncoder, sentences: list[str], progress: Progress | None = None
) -> np.ndarray:
    """Embeds sentences that differ from each other.

    Args:
        encoder: the encoder.
        sentences: the sentences; their order decides which of a length share a batch, and so
            the last bits of the embeddings.
        progress: told (tokens done, tokens in all) after a batch.

    Returns:
        float32 `[sentences, dim]`.
    """
    if not sentences:  # the width is still owed
        return embed_distinct(encoder, [""])[:0]
    return embed_inputs(encoder, *encoder.read(sentences), progress)


def embed_inputs(
    encoder: BatchEncoder, inputs: Any, lengths: np.ndarray, progress: Progress | None = None
) -> np.ndarray:
    """Embeds what `encoder.read` gave, or what was read elsewhere in the same form.

    Args:
        encoder, progress: see `embed_distinct`.
        inputs: one at least, in the form that `encoder.embed` takes.
        lengths: tokens of each, int `[inputs]`.

    Returns:
        float32 `[inputs, dim]`.
    """
    order = np.argsort(lengths, kind="stable")
    inputs, lengths = tf.gather(inputs, order), lengths[order]
    done, total = 0, int(lengths.sum())
    embeddings = None
    for start, stop in split_by_length(lengths, encoder.batch_tokens):
        batch = np.asarray(encoder.embed(inputs[start:stop], int(lengths[stop - 1])), np.float32)
        if embeddings is None:
            embeddings = np.empty([len(lengths), batch.shape[1]], np.float32)
        embeddings[order[start:stop]] = batch
        done += int(lengths[start:stop].sum())
        if progress:
            progress(done, total)
    assert embeddings is not None
    return embeddings


def embed_all(
    encoder: BatchEncoder, sentences: list[str], progress: Progress | None = None
) -> np.ndarray:
    """Embeds sentences, repeated ones once; see `embed_distinct`."""
    row = {text: index for index, text in enumerate(sorted(set(sentences)))}
    return embed_distinct(encoder, list(row), progress)[[row[text] for text in sentences]]
