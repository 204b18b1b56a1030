"""The interface of what computes embeddings, and the batches in which texts reach it."""

import abc
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dcse_tf.bert.sentence_modules import AffineMap
from dcse_tf.matching.head_files import HeadMaps

BATCH_TOKENS = 2048
_BYTES_PER_TOKEN = 4

# Called with (tokens done, tokens in all).
OnProgress = Callable[[int, int], object]
# A function from the texts of contexts and of their candidates, the same number for each context,
# to similarities float32 `[contexts, candidates]`.
Match = Callable[[list[list[str]], list[list[str]]], np.ndarray]


class Backend(abc.ABC):
    """Computes the embeddings of a `SentenceEncoder`, at most `batch_tokens` in a batch, including
    padding.

    The settings are the model's, where known: max_sequence_length in tokens, pooling,
    compute_dtype, a prefix if there is one, and unit_norm if every embedding has length 1.
    `fingerprint` makes a hash of everything the embeddings depend on; equal means equal up to
    rounding.
    """

    def __init__(
        self, batch_tokens: int, settings: Mapping[str, Any], fingerprint: Callable[[], str]
    ):
        # The model's own similarity, and the projection heads that it was trained with, by side.
        self.match: Match | None = None
        self.heads: HeadMaps = {}
        self.batch_tokens = batch_tokens
        self.settings = settings
        self.fingerprint = fingerprint

    @abc.abstractmethod
    def read(self, texts: list[str]) -> tuple[Any, np.ndarray, np.ndarray]:
        """The texts in the form that `embed` takes, which an array of row numbers selects from,
        such as an array or `TokenRows`; the length of each in tokens, int `[texts]`; and whether
        it was truncated, bool `[texts]`, False where the backend cannot tell.
        """

    @abc.abstractmethod
    def embed(self, inputs: Any, tokens: int) -> np.ndarray:
        """Embeds n inputs from `read`, none longer than `tokens`, to float `[n, dim]`."""

    def embed_texts(
        self, texts: list[str], batch_size: int | None = None, progress: OnProgress | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Embeds texts, each distinct one once, to float32 `[texts, dim]` in the order given, `[0,
        dim]` for no texts; with the lengths in tokens, int `[texts]`, and whether a text was
        truncated, bool `[texts]`. For the other arguments see `embed_inputs`.
        """
        # Sorted, so that the batches, and so the last bits, depend only on the set of texts. If
        # there are none, an empty text is embedded to find the number of dimensions.
        distinct = sorted(set(texts)) or [""]
        inputs, lengths, truncated = self.read(distinct)
        embeddings = self.embed_inputs(inputs, lengths, batch_size, progress)

        row = {text: index for index, text in enumerate(distinct)}
        rows = np.array([row[text] for text in texts], np.int64)
        return embeddings[rows], lengths[rows], truncated[rows]

    def embed_inputs(
        self,
        inputs: Any,
        lengths: np.ndarray,
        batch_size: int | None = None,
        progress: OnProgress | None = None,
    ) -> np.ndarray:
        """Embeds inputs from `read`, at least one, of the lengths int `[inputs]`, in batches of
        similar lengths, see `batch_by_length`: float32 `[inputs, dim]`.

        Which inputs of equal length share a batch, and so the last bits, follows from their order.
        """
        embeddings = np.empty([0, 0], np.float32)
        for rows in batch_by_length(lengths, self.batch_tokens, batch_size, progress):
            batch = self.embed(inputs[rows], int(lengths[rows[-1]]))
            if not len(embeddings):
                embeddings = np.empty([len(lengths), batch.shape[1]], np.float32)
            embeddings[rows] = batch
        return embeddings


class FunctionBackend(Backend):
    """Runs a function of n texts to float `[n, dim]`. Lengths are estimated, four bytes to a token,
    and no text counts as truncated: the function tokenizes by itself, or not at all.
    """

    def __init__(
        self,
        encode: Callable[[list[str]], np.ndarray],
        fingerprint: Callable[[], str],
        batch_tokens: int,
        settings: Mapping[str, Any] | None = None,
    ):
        settings = {"max_sequence_length": None, **(settings or {})}
        super().__init__(batch_tokens, settings, fingerprint)
        self._encode = encode

    def read(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        sizes = np.array([len(text.encode()) for text in texts])
        lengths = 2 + -(-sizes // _BYTES_PER_TOKEN)  # [CLS] and [SEP] are two
        return np.array(texts, object), lengths, np.zeros(len(texts), bool)

    def embed(self, inputs: np.ndarray, tokens: int) -> np.ndarray:
        return self._encode(inputs.tolist())


def batch_by_length(
    lengths: np.ndarray,
    batch_tokens: int,
    batch_size: int | None = None,
    progress: OnProgress | None = None,
) -> Iterator[np.ndarray]:
    """Yields batches of inputs of similar lengths, the shortest first, as the places of the inputs
    by ascending length, and tells the progress after each.

    Of inputs with these lengths in tokens, int `[inputs]`, a batch has at most `batch_size`, or any
    number, and at most `batch_tokens`, rows x longest row; a longer row is a batch alone.
    """
    order = np.argsort(lengths, kind="stable")
    lengths = lengths[order]
    done, start = np.cumsum(lengths), 0
    while start < len(lengths):
        # First an upper bound, as if all rows were as short as the first; then the largest number
        # of rows that fit when padded to the last of them.
        rows = min(batch_tokens // max(1, int(lengths[start])), batch_size or len(lengths))
        own = lengths[start : start + max(1, rows)]
        fits = np.flatnonzero(own * np.arange(1, len(own) + 1) <= batch_tokens)
        stop = start + (int(fits[-1]) + 1 if len(fits) else 1)
        yield order[start:stop]
        if progress:
            progress(int(done[stop - 1]), int(done[-1]))
        start = stop


def normalize(embeddings: np.ndarray) -> np.ndarray:
    """Scales rows `[..., dim]` to length 1, as float64; a zero row stays zero."""
    embeddings = np.asarray(embeddings, np.float64)
    norms = np.linalg.norm(embeddings, axis=-1, keepdims=True)
    return embeddings / np.where(norms == 0.0, 1.0, norms)


def hash_arrays(arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> str:
    """SHA-256 over named arrays with their types and shapes, and over JSON settings."""
    digest = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def hash_maps(maps: Sequence[AffineMap]) -> str:
    """`hash_arrays` of what maps compute one after another; empty without any."""
    arrays: dict[str, np.ndarray] = {}
    marked: dict[str, list[int]] = {}  # the maps with an activation, and those with `unit`
    for place, step in enumerate(maps):
        arrays |= {f"{place}/{name}": getattr(step, name) for name in ("shift", "matrix", "bias")}
        for mark in filter(None, (step.activation, "unit" if step.unit else "")):
            marked.setdefault(mark, []).append(place)
    return hash_arrays(arrays, marked) if maps else ""
