"""The encoder class that all jobs use: embeds sentences and scores responses."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from numbers import Integral
from typing import Any, Self

import numpy as np
from absl import logging

from dcse_tf.bert.encoder_options import ModelOptions
from dcse_tf.bert.vocabulary import is_blank
from dcse_tf.encoder.backend import Backend, Match, OnProgress, normalize
from dcse_tf.encoder.load import load_backend
from dcse_tf.errors import InputError
from dcse_tf.files import hash_bytes
from dcse_tf.matching.head_files import HeadMaps, project
from dcse_tf.progress import Progress

_NO_LIST = str | bytes | Mapping | AbstractSet  # what can be iterated over, but is no list of texts


@dataclasses.dataclass(eq=False, repr=False)
class SentenceEncoder:
    """An encoder of any kind: a run's, a checkpoint, an export or a fitted baseline.

        encoder = dcse_tf.SentenceEncoder.load("run")
        embeddings = encoder.encode(["where is my parcel", "it left today"])
        scores = encoder.similarity(["where is my parcel"], ["it left today", "i like coffee"])

    Raises InputError if embeddings have fewer than `truncate_dim` dimensions.
    """

    backend: Backend  # computes the embeddings
    name: str = "the encoder"  # what messages call the model
    truncate_dim: int = 0  # how many dimensions of an embedding are kept; 0 for all

    def __post_init__(self) -> None:
        if not isinstance(self.backend, Backend):
            raise TypeError("expected a backend; SentenceEncoder.load takes the name of a model")
        if (kept := self.truncate_dim) and kept > self._full_dim:
            raise InputError(f"`truncate_dim`={kept}: {self.name} has {self._full_dim} dimensions")
        # Keeping all dimensions is the same as no truncation.
        self._kept = kept if kept and kept < self._full_dim else 0

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str],
        *,
        pooling: str | None = None,
        projection: str = "",
        prefix: str = "",
        max_sequence_length: int = 0,
        compute_dtype: str = "float32",
        batch_tokens: int = 2048,
        truncate_dim: int = 0,
    ) -> Self:
        """Loads an encoder; the arguments are the options of the same names.

        Args:
            model: a run directory, a checkpoint folder, package:NAME, a hub name, an export
                (SavedModel, ONNX or static) or a fitted baseline.
            pooling: "mean" over the tokens, or "cls"; None for the model's own.
            projection: "context" or "response", to embed behind a projection head of the run; empty
                for none.
            prefix: put before every sentence, such as "query: " for E5; empty for the model's own.
            max_sequence_length: longest sentence in tokens, 3 or more; the rest is cut off. 0 for
                the length that the encoder was trained with, or 128 if that is not recorded.
            compute_dtype: "float32" or "bfloat16"; embeddings are float32 either way.
            batch_tokens: tokens encoded at a time, including padding.
            truncate_dim: number of leading dimensions of each embedding to keep; 0 for all.
                `similarity`, which compares token embeddings, always uses all.

        Raises:
            OptionError: a setting has a value that is not allowed.
            InputError: there is no such encoder, or it does not support a setting.
        """
        settings = {k: value for k, value in locals().items() if k in ModelOptions.fields()}
        settings |= {"model": os.fspath(model), "pooling": pooling or ""}
        return cls.from_options(ModelOptions(**settings))

    @classmethod
    def from_options(cls, options: ModelOptions) -> Self:
        """Loads the encoder that options name; see `load`."""
        return cls(load_backend(options), options.model, options.truncate_dim)

    @functools.cached_property
    def _full_dim(self) -> int:
        return int(self.backend.embed_texts([])[0].shape[1])

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return self._kept or self._full_dim

    @property
    def settings(self) -> Mapping[str, Any]:
        """The encoder's settings, where known: max_sequence_length in tokens, pooling,
        compute_dtype, prefix and truncate_dim.
        """
        return {**self.backend.settings, **({"truncate_dim": self._kept} if self._kept else {})}

    def fingerprint(self) -> str:
        """A hash of everything the embeddings depend on.

        A run and its export may differ only where the export is a baseline's or changes embeddings
        (`unit_norm`, `quantize`). Equal fingerprints mean equal embeddings, up to rounding.
        """
        own = self.backend.fingerprint()
        return hash_bytes(f"{own} truncate_dim={self._kept}".encode()) if self._kept else own

    def encode(
        self,
        texts: str | Iterable[str],
        batch_size: int | None = None,
        show_progress: bool | OnProgress = True,
        normalize_embeddings: bool = False,
    ) -> np.ndarray:
        """Embeds sentences; repeated ones are computed once.

        Logs how many are longer than `max_sequence_length` and therefore truncated, which an export
        as SavedModel does not tell.

        Args:
            texts: a list, tuple, iterator, NumPy array or pandas Series of n strings; or a string.
            batch_size: most sentences encoded at a time, in addition to the limit `batch_tokens`;
                None for no such limit.
            show_progress: whether to show the progress of long jobs on stderr; or a function that
                is called with (tokens done, tokens in all).
            normalize_embeddings: whether embeddings are scaled to length 1; zeros stay zeros.

        Returns:
            float32 `[n, dim]` in the order given; `[dim]` for a single string. The last bits depend
            on which sentences are encoded together, but not on their order.

        Raises:
            TypeError: an element is not a string; the message gives its position.
            ValueError: a string is not valid text: it has half of a surrogate pair.
        """
        single = isinstance(texts, str)
        sentences = read_texts([texts] if single else texts, "texts")
        if batch_size is not None and (not isinstance(batch_size, Integral) or batch_size < 1):
            raise ValueError(f"batch_size={batch_size!r}: expected a whole number of at least 1")
        progress = Progress("tokens").update if show_progress is True else show_progress or None
        found = self.encode_and_mark(sentences, progress, normalize_embeddings, batch_size)
        embeddings, truncated, _ = found
        self.warn_of_truncated(len(set(itertools.compress(sentences, truncated))), "distinct texts")
        return embeddings[0] if single else embeddings

    def encode_and_mark(
        self,
        sentences: list[str],
        progress: OnProgress | None = None,
        normalize_embeddings: bool = False,
        batch_size: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Like `encode`, without its warning of truncated sentences: float32 `[n, dim]`; whether a
        sentence was truncated, bool `[n]`, False where the backend cannot tell; and its length in
        tokens, int `[n]`.
        """
        embeddings, lengths, truncated = self.backend.embed_texts(sentences, batch_size, progress)
        if self._kept:
            embeddings = embeddings[:, : self._kept].copy()
            # That has shortened embeddings of length 1.
            normalize_embeddings |= bool(self.backend.settings.get("unit_norm"))
        if normalize_embeddings:
            embeddings = normalize(embeddings).astype(np.float32)
        return embeddings, truncated, lengths

    def encode_blocks(self, texts: list[str], size: int) -> Iterator[np.ndarray]:
        """Yields the embeddings of texts, `size` at a time: float32 `[size or fewer, dim]`. Shows
        the progress, and logs how many were truncated. InputError if a value is not finite.
        """
        cut = 0
        with Progress("texts", len(texts)) as progress:
            for start in range(0, len(texts), size):
                within = Progress("tokens").update  # a block may take minutes
                rows, truncated, _ = self.encode_and_mark(texts[start : start + size], within)
                if not np.isfinite(rows).all():
                    raise InputError("an embedding is not finite: the encoder has diverged")
                yield rows
                cut += int(truncated.sum())
                progress.update(start + len(rows))
        self.warn_of_truncated(cut, "texts")

    def warn_of_truncated(self, count: int, what: str) -> None:
        """Logs how many texts were truncated, if any; `what` they are, in the plural."""
        if count:
            told = "%d %s have more than the %d tokens of `max_sequence_length`, and are cut there"
            logging.warning(told, count, what, self.settings["max_sequence_length"])

    @property
    def heads(self) -> HeadMaps:
        """The projection heads that the encoder was trained with, by side; empty without any.

        They take whole embeddings, so there are none with `truncate_dim` either.
        """
        return {} if self._kept else self.backend.heads

    def project(self, embeddings: np.ndarray, side: str) -> np.ndarray:
        """Embeddings behind a projection head; the cosine of the two sides compares them.

            turns = encoder.encode(["hello", "where is my parcel"])
            context = encoder.project(turns.mean(axis=0, keepdims=True), "context")
            scores = context @ encoder.project(encoder.encode(responses), "response").T

        Args:
            embeddings: float `[n, dim]`, from `encode` without normalisation; for a context of
                several turns the mean of their embeddings.
            side: "context" or "response".

        Returns:
            float32 `[n, projection_dim]`, each of length 1.

        Raises:
            ValueError: there is no such head, or the embeddings have another length.
        """
        if not self.heads:
            raise ValueError(f"{self.name}: has no projection heads")
        if side not in self.heads:
            raise ValueError(f"side={side!r}: expected one of {', '.join(map(repr, self.heads))}")
        if (shape := np.shape(embeddings))[-1:] != (self.dim,):
            raise ValueError(f"embeddings: expected the shape [n, {self.dim}], found {[*shape]}")
        return normalize(project(embeddings, self.heads[side])).astype(np.float32)

    @property
    def match(self) -> Match | None:
        """The model's own similarity, see `Match`, of arguments that are not checked as those of
        `similarity` are. None if the model has only sentence embeddings.
        """
        return self.backend.match

    def similarity(
        self,
        context: Sequence[str] | Sequence[Sequence[str]],
        responses: Sequence[str] | Sequence[Sequence[str]],
    ) -> np.ndarray:
        """How well responses fit a context, by the similarity that training contrasts.

        The context is the turns around the response, the oldest first: those before it and, where
        they are known, those after it. By default training and evaluation use three on each side.
        A blank text, such as the empty string, is no turn, and as a candidate the worst.

        Args:
            context: texts of the turns; or a list of such contexts.
            responses: candidate responses. For several contexts, either one list for all, or a
                list per context, all of the same length.

        Returns:
            float32 `[responses]`, higher is better; `[contexts, responses]` for several contexts.
            -1e9 for a blank response.

        Raises:
            TypeError, ValueError: as `encode`; or a context has no turns, the lists' lengths do not
                agree, or the model has no matching, such as a fitted baseline or an export of one.
        """
        single = not _is_list_of_lists(context)
        contexts = (
            [read_texts(context, "context")] if single else read_text_lists(context, "context")
        )
        if single or not _is_list_of_lists(responses):
            candidates = [read_texts(responses, "responses")] * len(contexts)
        else:
            candidates = read_text_lists(responses, "responses")

        if empty := [place for place, own in enumerate(contexts) if all(map(is_blank, own))]:
            raise ValueError(f"context {empty[0]}: expected at least one turn that is not blank")
        lengths = [len(group) for group in candidates]
        if len(lengths) != len(contexts) or len(set(lengths)) != 1:
            raise ValueError(
                f"responses: expected a list for each of {len(contexts)} contexts, all of one "
                f"length; found {len(lengths)} lists of {min(lengths)} to {max(lengths)}"
            )
        if self.match is None:
            raise ValueError(
                f"{self.name}: has only sentence embeddings, no token embeddings to match a "
                "response by; load the run directory or the checkpoint it was made from"
            )
        none = np.zeros([len(contexts), 0], np.float32)
        scores = self.match(contexts, candidates) if lengths[0] else none
        return scores[0] if single else scores


def read_texts(values: Any, name: str) -> list[str]:
    """The strings of any ordered collection, as a list; messages call it `name`.

    Raises:
        TypeError: it is not an ordered collection, or an element is not a string.
        ValueError: a string is not valid text: it has half of a surrogate pair.
    """
    # Iterating over a dict would give its keys, over a table the names of its columns.
    refused = isinstance(values, _NO_LIST)
    if refused or not isinstance(values, Iterable) or getattr(values, "ndim", 1) != 1:
        shape = f" of shape {values.shape}" if hasattr(values, "shape") else ""
        raise TypeError(f"{name}: expected a list of strings, found {type(values).__name__}{shape}")
    texts = []
    for place, text in enumerate(values):
        if not isinstance(text, str):
            found = f"{type(text).__name__} {text!r:.20}"
            raise TypeError(f"{name}[{place}]: expected a string, found {found}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{name}[{place}]: not a text: {error}") from None
        texts.append(str(text))
    return texts


def read_text_lists(values: Any, name: str) -> list[list[str]]:
    """The lists of strings in a list; see `read_texts`."""
    return [read_texts(group, f"{name}[{place}]") for place, group in enumerate(values)]


def _is_list_of_lists(values: Any) -> bool:
    """Whether the first element is itself a list, an array or a column rather than a text."""
    some = isinstance(values, Collection) and not isinstance(values, _NO_LIST)
    first = next(iter(values), "") if some else ""
    return isinstance(first, Collection) and not isinstance(first, _NO_LIST)
