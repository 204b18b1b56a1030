"""Strings to sentence embeddings, tokenisation in the graph: what is evaluated and served."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from dcse_tf.encoder.batching import BATCH_TOKENS, Progress, embed_all
from dcse_tf.model.matching import MaskedMeanPooling
from dcse_tf.model.tokenizer import Tokenizer, Vocabulary

# XLA compiles a program for every shape: lengths are rounded up, so that there are few.
_XLA_TOKENS = 8


class SentenceEncoder(tf.Module):
    """Tokenizer, encoder and pooling as one graph.

    Args:
        encoder: see `build_bert_encoder`; or a `FusedBert`, which cannot be exported.
        vocabulary: of the encoder.
        max_sequence_length: longest sentence in tokens; the rest is cut.
        pooling: "mean" over the last layer's real tokens, [CLS] and [SEP] among them, or "cls".
        postprocessing: a layer that was fitted to the pooled embeddings, `[n, dim]` to `[n, k]`.
    """

    def __init__(
        self,
        encoder: Callable[..., tf.Tensor],
        vocabulary: Vocabulary,
        max_sequence_length: int,
        pooling: str,
        postprocessing: keras.layers.Layer | None = None,
    ):
        super().__init__()
        self.vocabulary = vocabulary
        self.pooling = pooling
        self.tokenizer = Tokenizer(vocabulary)
        self.encoder = encoder
        self.max_sequence_length = max_sequence_length
        self._pooling = MaskedMeanPooling(dtype="float32") if pooling == "mean" else None
        self.postprocessing = postprocessing
        # Given here, and not by a decorator, so that every instance has its own graph.
        self.embed = tf.function(
            self._embed, input_signature=[tf.TensorSpec([None], tf.string, name="sentences")]
        )
        self._batches = TokenBatches(self)

    def tokenize(self, sentences: tf.Tensor) -> tf.RaggedTensor:
        """Token ids of strings `[n]`; int32 `[n, (tokens)]`."""
        return self.tokenizer.tokenize(sentences, self.max_sequence_length)

    def encode_tokens(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Encodes int32 `[n, tokens]` to float32 `[n, tokens, dim]`, and gives the mask back.

        The mask, bool `[n, tokens]`, is True for real tokens; where it is not given, 0 = padding.
        """
        padding_mask = token_ids != 0 if padding_mask is None else padding_mask
        inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
        return tf.cast(self.encoder(inputs, training=False), tf.float32), padding_mask

    def token_embeddings(self, sentences: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Encodes strings `[n]` to float32 `[n, tokens, dim]` and a mask `[n, tokens]`."""
        return self.encode_tokens(self.tokenize(sentences).to_tensor())

    def pool_tokens(self, token_ids: tf.Tensor, padding_mask: tf.Tensor | None = None) -> tf.Tensor:
        """Embeds token ids, see `encode_tokens`; float32 `[n, dim]`, not normalised."""
        return self.postprocess(self.pool_plainly(token_ids, padding_mask))

    def pool_plainly(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor | None = None
    ) -> tf.Tensor:
        """`pool_tokens` without the postprocessing."""
        embeddings, padding_mask = self.encode_tokens(token_ids, padding_mask)
        if self._pooling is None:
            # The same as [:, 0], but a batch of none has no column 0.
            return tf.reduce_sum(embeddings[:, :1], axis=1)
        return self._pooling(embeddings, padding_mask)

    def postprocess(self, pooled: tf.Tensor) -> tf.Tensor:
        """Applies the postprocessing, if there is one, to float32 `[n, dim]`."""
        if self.postprocessing is None:
            return pooled
        return tf.cast(self.postprocessing(pooled), tf.float32)

    def _embed(self, sentences: tf.Tensor) -> dict[str, tf.Tensor]:
        """Embeds strings `[n]`; returns {"embeddings": float32 `[n, dim]`}, not normalised."""
        return {"embeddings": self.pool_tokens(self.tokenize(sentences).to_tensor())}

    def encode(self, sentences: list[str], progress: Progress | None = None) -> np.ndarray:
        """Embeds a list of sentences; float32 `[n, dim]` in its order."""
        return embed_all(self._batches, sentences, progress)


class TokenBatches:
    """A sentence encoder as `embed_distinct` runs it: tokenised first, then batched by tokens.

    Args:
        encoder: the encoder.
        batch_tokens: most tokens of a batch, padding counted.
        jit_compile: whether XLA compiles the encoder: batches then have one of a few shapes.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        batch_tokens: int = BATCH_TOKENS,
        jit_compile: bool = False,
    ):
        self.batch_tokens = batch_tokens
        self._jit_compile = jit_compile
        self._tokenize = tf.function(
            encoder.tokenize, input_signature=[tf.TensorSpec([None], tf.string)]
        )
        signature = None if jit_compile else [tf.TensorSpec([None, None], tf.int32)]
        self._pool = tf.function(
            encoder.pool_tokens, input_signature=signature, jit_compile=jit_compile
        )

    def read(self, sentences: list[str]) -> tuple[tf.RaggedTensor, np.ndarray]:
        """Token ids and their number; with XLA rounded up to a multiple of 8."""
        token_ids = self._tokenize(tf.constant(sentences))
        lengths = token_ids.row_lengths().numpy()
        if self._jit_compile:
            lengths = -(-lengths // _XLA_TOKENS) * _XLA_TOKENS
        return token_ids, lengths

    def embed(self, token_ids: tf.RaggedTensor, tokens: int) -> tf.Tensor:
        """Embeds int32 `[n, (tokens)]`; float32 `[n, dim]`."""
        count = int(token_ids.nrows())
        rows = max(1, self.batch_tokens // tokens) if self._jit_compile else count
        return self._pool(token_ids.to_tensor(shape=[rows, tokens]))[:count]
