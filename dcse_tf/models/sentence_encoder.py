"""Strings to sentence embeddings, tokenisation in the graph: what is evaluated and served."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from dcse_tf.data.tokenization import Tokenizer, Vocabulary
from dcse_tf.layers import MaskedMeanPooling

EmbedBatch = Callable[[tf.Tensor], tf.Tensor]
Progress = Callable[[int, int], None]


class SentenceEncoder(tf.Module):
    """Tokenizer, encoder and pooling as one graph.

    Args:
        encoder: see `build_bert_encoder`.
        vocabulary: of the encoder.
        max_sequence_length: longest sentence in tokens; the rest is cut.
        pooling: "mean" over the last layer's real tokens, [CLS] and [SEP] among them, or "cls".
    """

    def __init__(
        self, encoder: keras.Model, vocabulary: Vocabulary, max_sequence_length: int, pooling: str
    ):
        super().__init__()
        self.tokenizer = Tokenizer(vocabulary)
        self.encoder = encoder
        self.max_sequence_length = max_sequence_length
        self._pooling = MaskedMeanPooling(dtype="float32") if pooling == "mean" else None
        # Given here, and not by a decorator, so that every instance has its own graph.
        self.embed = tf.function(
            self._embed, input_signature=[tf.TensorSpec([None], tf.string, name="sentences")]
        )

    def token_embeddings(self, sentences: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Encodes strings `[n]` to float32 `[n, tokens, dim]` and a mask `[n, tokens]`."""
        token_ids = self.tokenizer.tokenize(sentences, self.max_sequence_length).to_tensor()
        padding_mask = token_ids != 0
        inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
        return tf.cast(self.encoder(inputs, training=False), tf.float32), padding_mask

    def _embed(self, sentences: tf.Tensor) -> dict[str, tf.Tensor]:
        """Embeds strings `[n]`; returns {"embeddings": float32 `[n, dim]`}, not normalised."""
        embeddings, padding_mask = self.token_embeddings(sentences)
        if self._pooling is None:
            return {"embeddings": embeddings[:, 0]}
        return {"embeddings": self._pooling(embeddings, padding_mask)}

    def encode(self, sentences: list[str]) -> np.ndarray:
        """Embeds a list of sentences; float32 `[n, dim]` in its order."""
        return embed_all(lambda batch: self.embed(batch)["embeddings"], sentences)


def embed_all(
    embed: EmbedBatch,
    sentences: list[str],
    batch_size: int = 64,
    progress: Progress | None = None,
) -> np.ndarray:
    """Embeds many sentences: each distinct one once, those of a length together.

    Args:
        embed: strings `[n]` to float `[n, dim]`.
        sentences: the sentences.
        batch_size: sentences at a time.
        progress: told (sentences done, distinct sentences) after a batch.

    Returns:
        float32 `[sentences, dim]`.
    """
    distinct = sorted(set(sentences), key=lambda text: (len(text.encode()), text))
    row = {text: index for index, text in enumerate(distinct)}
    parts = []
    for start in range(0, len(distinct), batch_size):
        batch = distinct[start : start + batch_size]
        parts.append(np.asarray(embed(tf.constant(batch)), np.float32))
        if progress:
            progress(start + len(batch), len(distinct))
    if not parts:  # the width is still owed
        return np.asarray(embed(tf.constant([""])), np.float32)[:0]
    return np.concatenate(parts)[[row[text] for text in sentences]]
