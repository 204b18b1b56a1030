"""What a notebook needs: an encoder of any form, sentences to embeddings, responses to scores."""

import functools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dcse_tf.encoder.batching import (
    BATCH_TOKENS,
    BatchEncoder,
    embed_all,
    is_list_of_lists,
    read_text_lists,
    read_texts,
)
from dcse_tf.encoder.load import Execution, LoadedEncoder, load_encoder
from dcse_tf.evaluation import metrics
from dcse_tf.progress import Progress


class SentenceEncoder:
    """An encoder ready for use, made by `load`.

    Not `dcse_tf.encoder.graph.SentenceEncoder`, the graph inside a checkpoint's: this
    one is of any form that the command lines take as `model`.
    """

    def __init__(self, loaded: LoadedEncoder, name: str):
        """Args:
        loaded: the encoder.
        name: what the user calls it, for messages.
        """
        self.name = name
        self._loaded = loaded

    @classmethod
    def load(
        cls,
        path_or_name: str | os.PathLike[str],
        *,
        pooling: str = "mean",
        max_sequence_length: int = 0,
        compute_dtype: str = "float32",
        batch_tokens: int = BATCH_TOKENS,
        jit_compile: bool = False,
    ) -> "SentenceEncoder":
        """Loads an encoder; the arguments are the flags of these names.

        Args:
            path_or_name: a run directory, a checkpoint folder, package:NAME, a hub name, a
                SavedModel export or a fitted baseline.
            pooling: "mean" over the tokens, or "cls".
            max_sequence_length: longest sentence in tokens, 3 or more, the rest is cut; 0 for what
                the encoder was trained with, or else 128.
            compute_dtype: "float32" or "bfloat16"; embeddings are float32 either way.
            batch_tokens: tokens encoded at a time, padding counted.
            jit_compile: compile by XLA.

        Raises:
            ValueError: a setting is none of those allowed.
            InputError: there is no such encoder, or it is asked what it does not have.
        """
        _check_choice("pooling", pooling, ("mean", "cls"))
        _check_choice("compute_dtype", compute_dtype, ("float32", "bfloat16"))
        _check_least("max_sequence_length", max_sequence_length, 3, or_zero=True)
        _check_least("batch_tokens", batch_tokens, 1)
        name = os.fspath(path_or_name)
        execution = Execution(batch_tokens, compute_dtype, jit_compile)
        return cls(load_encoder(name, "model", max_sequence_length, pooling, execution), name)

    @functools.cached_property
    def dim(self) -> int:
        """Length of an embedding."""
        return self._loaded.encode([]).shape[1]

    def encode(
        self,
        texts: str | Iterable[str],
        batch_size: int | None = None,
        show_progress: bool = True,
        normalize_embeddings: bool = False,
    ) -> np.ndarray:
        """Embeds sentences, repeated ones once.

        Args:
            texts: a list, tuple, iterator, NumPy array or pandas Series of n strings; or a string.
            batch_size: most sentences encoded at a time, where that is less than `batch_tokens`
                holds; None for no such limit.
            show_progress: whether a long job says every ten seconds how far it is, on stderr.
            normalize_embeddings: whether embeddings are scaled to length 1.

        Returns:
            float32 `[n, dim]` in the order given; `[dim]` of a single string.

        Raises:
            TypeError: something is no string; the message says at which position.
            ValueError: a string is no text: it has half of a surrogate pair.
        """
        single = isinstance(texts, str)
        sentences = read_texts([texts] if single else texts, "texts")
        batches = self._loaded.batches
        if batch_size is not None:
            _check_least("batch_size", batch_size, 1)
            batches = _FewerRows(batches, batch_size)
        progress = Progress("tokens").update if show_progress else None
        embeddings = embed_all(batches, sentences, progress)
        if normalize_embeddings:
            embeddings = metrics.normalize(embeddings).astype(np.float32)
        return embeddings[0] if single else embeddings

    def similarity(
        self,
        context: Sequence[str] | Sequence[Sequence[str]],
        responses: Sequence[str] | Sequence[Sequence[str]],
    ) -> np.ndarray:
        """How well responses fit a context, by the model's own matching similarity.

        Training compares it, and `evaluate` scores responses by it. The context is the turns
        around the response, the oldest first: those before it, and where the turns after it are
        known (both were trained and are evaluated with, three on each side), those too.

        Args:
            context: texts of the turns; or a list of such contexts.
            responses: candidate responses; of several contexts either the same for all, or a
                list of as many lists, equally long.

        Returns:
            float32 `[responses]`, higher is better; of several contexts `[contexts, responses]`.

        Raises:
            TypeError, ValueError: as `encode`; or a context without a turn, lists that do not fit
                each other, or a model without a matching: a fitted baseline, or an export of one.
        """
        single = not is_list_of_lists(context)
        if single:
            contexts = [read_texts(context, "context")]
        else:
            contexts = read_text_lists(context, "context")
        if single or not is_list_of_lists(responses):
            candidates = [read_texts(responses, "responses")] * len(contexts)
        else:
            candidates = read_text_lists(responses, "responses")
        scores = self._match(contexts, candidates)
        return scores[0] if single else scores

    def _match(self, contexts: list[list[str]], candidates: list[list[str]]) -> np.ndarray:
        empty = [place for place, turns in enumerate(contexts) if not turns]
        if empty:
            raise ValueError(f"context {empty[0]}: expected at least one turn")
        lengths = [len(group) for group in candidates]
        if len(lengths) != len(contexts) or len(set(lengths)) != 1:
            raise ValueError(
                f"responses: expected a list for each of {len(contexts)} contexts, all of one "
                f"length; found {len(lengths)} lists of {min(lengths)} to {max(lengths)}"
            )
        match = self._loaded.match
        if match is None:
            raise ValueError(
                f"{self.name}: has sentence embeddings alone, no token embeddings to match a "
                "response by; load the run directory or the checkpoint it was made of"
            )
        if not lengths[0]:
            return np.zeros([len(contexts), 0], np.float32)
        return match(contexts, candidates)

    def as_mteb(self) -> Any:
        """This encoder as `mteb.evaluate` takes it; needs `pip install mteb`, which has PyTorch."""
        from dcse_tf.encoder.mteb import MtebEncoder

        return MtebEncoder(self.encode, self.name, self._loaded.fingerprint(), self.dim)


class _FewerRows:
    """A `BatchEncoder` that takes a batch in parts of a few rows."""

    def __init__(self, encoder: BatchEncoder, rows: int):
        self.batch_tokens = encoder.batch_tokens
        self.read = encoder.read
        self._encoder = encoder
        self._rows = rows

    def embed(self, inputs: Any, tokens: int) -> tf.Tensor:
        parts = range(0, inputs.shape[0], self._rows)
        return tf.concat(
            [self._encoder.embed(inputs[i : i + self._rows], tokens) for i in parts], axis=0
        )


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, choices))}")


def _check_least(name: str, value: object, least: int, or_zero: bool = False) -> None:
    if not isinstance(value, int) or (value < least and not (or_zero and value == 0)):
        zero = "0 or " if or_zero else ""
        raise ValueError(f"{name}={value!r}: expected {zero}a whole number of at least {least}")
