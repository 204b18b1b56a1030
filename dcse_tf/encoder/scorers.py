"""Contexts and candidate responses as strings to the model's own similarity."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from dcse_tf.encoder.graph import SentenceEncoder
from dcse_tf.model.dialogue_cse import build_matching
from dcse_tf.model.matching import TurnAttention


class ResponseScorer:
    """Scores candidates by the matching similarity, every distinct text encoded once.

    Args:
        sentence_encoder: encodes the texts.
        attention: weights of the turns; None where each counts the same.
        chunk: samples whose token embeddings are held at a time.
        rows: samples matched at a time.
    """

    def __init__(
        self,
        sentence_encoder: SentenceEncoder,
        attention: TurnAttention | None = None,
        chunk: int = 1000,
        rows: int = 16,
    ):
        self._encoder = sentence_encoder
        self._chunk = chunk
        self._rows = rows
        text = tf.TensorSpec([None], tf.string)
        self._encode = tf.function(sentence_encoder.token_embeddings, input_signature=[text])
        embeddings, _ = self._encode.get_concrete_function().structured_outputs
        self._matching = build_matching(embeddings.shape[-1], attention)
        self._match = tf.function(self._matching, reduce_retracing=True)
        self.attention = attention

    @property
    def encoder(self) -> SentenceEncoder:
        return self._encoder

    def score(self, contexts: list[list[str]], candidates: list[list[str]]) -> np.ndarray:
        """The similarity of each sample's candidates.

        Args:
            contexts: texts of the context turns, at least one a sample.
            candidates: texts of the candidates, the same number in every sample.

        Returns:
            float32 `[samples, candidates]`.
        """
        parts = [
            self._score_chunk(
                contexts[start : start + self._chunk], candidates[start : start + self._chunk]
            )
            for start in range(0, len(contexts), self._chunk)
        ]
        return np.concatenate(parts)

    def _score_chunk(self, contexts: list[list[str]], candidates: list[list[str]]) -> np.ndarray:
        texts = {text for group in (*contexts, *candidates) for text in group}
        embeddings = self.encode_texts(sorted(texts, key=lambda text: len(text.encode())))
        return np.concatenate(
            [
                self._match_rows(
                    contexts[start : start + self._rows],
                    candidates[start : start + self._rows],
                    embeddings,
                )
                for start in range(0, len(contexts), self._rows)
            ]
        )

    def encode_texts(self, texts: list[str], batch_size: int = 64) -> dict[str, np.ndarray]:
        """Token embeddings float32 `[tokens, dim]` of each text, without padding."""
        encoded = {}
        for start in range(0, len(texts), batch_size):
            batch = texts[start : start + batch_size]
            embeddings, padding_mask = (x.numpy() for x in self._encode(tf.constant(batch)))
            for text, rows, mask in zip(batch, embeddings, padding_mask, strict=True):
                encoded[text] = rows[mask]
        return encoded

    def _match_rows(
        self,
        contexts: list[list[str]],
        candidates: list[list[str]],
        encoded: dict[str, np.ndarray],
    ) -> np.ndarray:
        texts = sorted({text for group in (*contexts, *candidates) for text in group})
        place = {text: index for index, text in enumerate(texts)}
        table = tf.ragged.stack([encoded[text] for text in texts])
        turns = tf.ragged.constant([[place[t] for t in group] for group in contexts], tf.int32)
        similarity = self._match(
            {
                "token_embeddings": table.to_tensor(),
                "padding_mask": tf.sequence_mask(table.row_lengths()),
                "context_index": turns.to_tensor(),
                "turn_mask": tf.sequence_mask(turns.row_lengths()),
                "candidate_index": tf.constant([[place[t] for t in c] for c in candidates]),
            }
        )
        return similarity.numpy()


class ExportScorer:
    """Scores candidates by the signature match.

    Args:
        match: the signature, see `ServedEncoder`.
        rows: samples matched at a time.
    """

    def __init__(self, match: Callable[..., dict[str, tf.Tensor]], rows: int = 16):
        self._match = match
        self._rows = rows

    def score(self, contexts: list[list[str]], candidates: list[list[str]]) -> np.ndarray:
        """The similarity of each sample's candidates; see `ResponseScorer.score`."""
        parts = []
        for start in range(0, len(contexts), self._rows):
            # To the signature the empty string is no turn; a space has no token either, and is one.
            texts = [
                [turn or " " for turn in turns] for turns in contexts[start : start + self._rows]
            ]
            turns = tf.ragged.constant(texts, tf.string)
            rows = tf.constant(candidates[start : start + self._rows])
            found = self._match(context=turns.to_tensor(), candidates=rows)
            parts.append(found["similarities"].numpy())
        return np.concatenate(parts)
