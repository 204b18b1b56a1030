"""Runs the server's models on batches of one kind of work."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dcse_tf.encoder.batching import embed_and_measure
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.serving import metrics

# Kinds of work. EMBED: a text to (embedding, tokens, whether it was truncated). MATCH: (turns of a
# context, response) to a similarity. RERANK: (turns of a context, response) to the re-ranker's
# logit.
EMBED, MATCH, RERANK = "embed", "match", "rerank"
_BYTES_PER_TOKEN = 4

Pair = tuple[tuple[str, ...], str]


class ServedModel:
    """An encoder and optionally a re-ranker, used by one thread.

    Args:
        encoder: the encoder.
        reranker: the re-ranker; None if rerank requests use the encoder's cosine.
        name: the model's name in requests.
        unit_norm: whether embeddings are scaled to length 1.
    """

    def __init__(
        self, encoder: SentenceEncoder, reranker: Reranker | None, name: str, unit_norm: bool
    ):
        self.encoder = encoder
        self.reranker = reranker
        self.name = name
        self._unit_norm = unit_norm
        self._longest = encoder.settings.get("max_sequence_length") or 512
        self._kinds: dict[str, Callable[[list[Any]], tuple[Sequence[Any], int]]] = {
            EMBED: self._embed,
            MATCH: self._match,
            RERANK: self._rerank,
        }

    def estimate_tokens(self, text: str) -> int:
        """A quick estimate of the number of tokens of a text, after truncation."""
        return min(2 + len(text.encode()) // _BYTES_PER_TOKEN, self._longest)

    def compute(self, kind: str, items: list[Any]) -> Sequence[Any]:
        """Computes the results of items of one kind, in their order."""
        results, tokens = self._kinds[kind](items)
        metrics.TEXTS.labels(kind).inc(len(items))
        metrics.TOKENS.labels(kind).inc(tokens)
        metrics.BATCH_TEXTS.labels(kind).observe(len(items))
        return results

    def _embed(self, texts: list[str]) -> tuple[list[tuple[np.ndarray, int, bool]], int]:
        rows, tokens, truncated = embed_and_measure(self.encoder.backend, texts)
        metrics.TRUNCATED.labels(EMBED).inc(int(truncated.sum()))
        rows = self.encoder.finish(rows, self._unit_norm)
        results = zip(rows, tokens.tolist(), truncated.tolist(), strict=True)
        return list(results), int(tokens.sum())

    def _match(self, pairs: list[Pair]) -> tuple[list[float], int]:
        return self._score(
            pairs,
            lambda contexts, groups: [
                self.encoder.similarity(context, group)
                for context, group in zip(contexts, groups, strict=True)
            ],
        )

    def _rerank(self, pairs: list[Pair]) -> tuple[list[float], int]:
        assert self.reranker
        reranker = self.reranker
        return self._score(
            pairs, lambda contexts, groups: reranker.score(contexts, groups, show_progress=False)
        )

    def _score(
        self,
        pairs: list[Pair],
        score: Callable[[list[list[str]], list[list[str]]], Sequence[np.ndarray]],
    ) -> tuple[list[float], int]:
        """Scores pairs with a function from contexts and their lists of responses to scores."""
        places: dict[tuple[str, ...], list[int]] = {}
        for place, (context, _) in enumerate(pairs):
            places.setdefault(context, []).append(place)
        groups = [[pairs[place][1] for place in each] for each in places.values()]
        found = score([list(context) for context in places], groups)
        results = np.empty([len(pairs)], np.float64)
        for each, scores in zip(places.values(), found, strict=True):
            results[each] = scores
        texts = [*(text for context in places for text in context), *(r for g in groups for r in g)]
        return results.tolist(), sum(map(self.estimate_tokens, texts))
