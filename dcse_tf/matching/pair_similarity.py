"""The similarities of all contexts and utterances of a table, exact but cheaper to compute."""

from collections.abc import Sequence

import keras
from keras import ops

from dcse_tf.matching.heads import ProjectionHead
from dcse_tf.matching.matching import (
    TurnAttention,
    WithTurnAttention,
    inverse_root,
    masked_mean,
    unit,
    zero_padding,
)


class PairSimilarity(keras.layers.Layer):
    """Scores every row's context with every utterance of a table.

    `call` takes
        token_embeddings: float `[utterances, tokens, dim]`, the encoded table;
        padding_mask: bool `[utterances, tokens]`, True = real token;
        context_index: int32 `[batch, turns]`, row indices into the table;
        turn_mask: bool `[batch, turns]`, True = real turn;
    and returns float `[batch, utterances]`.
    """

    def compute_output_shape(
        self, token_embeddings_shape, padding_mask_shape, context_index_shape, turn_mask_shape
    ):
        return (context_index_shape[0], token_embeddings_shape[0])


@keras.saving.register_keras_serializable(package="dcse_tf")
class GramSimilarity(WithTurnAttention, PairSimilarity):
    """The cosine of R_tilde (equations 3 to 7) and the pooled R for every pair, exactly.

    The mean over a turn's tokens is linear. So let ubar_i be the mean of U_i, and c the mean of
    the turns' ubar_i: R_tilde pools to c G / sqrt(d), and the cosine ignores the scale:

        similarity = c G . r / (|c G| |r|),

    which needs only inner products. Neither M nor R_hat is computed: a pair costs tokens^2, where
    the equations' layers cost turns x tokens^2 x 4 dim, and memory grows as contexts x tokens of
    the table. Utterances that are no candidate of a row are scored too, which costs less than a
    hundredth of encoding them.

    With attention (equations 5 and 6), c is the sum of the weighted ubar_i. The pooled refined
    embedding of a turn u and a response, ubar G / sqrt(d), depends only on the two texts, so the
    attention's network runs once for each pair of texts in the table. Memory grows as
    utterances^2 x dim and contexts x turns x tokens of the table.

    Args:
        attention: as in `WithTurnAttention`.
    """

    def build(self, token_embeddings_shape, *shapes):
        self.build_attention(token_embeddings_shape[-1])

    def call(self, token_embeddings, padding_mask, context_index, turn_mask):
        """Arguments and result as described in `PairSimilarity`."""
        tokens = zero_padding(token_embeddings, padding_mask)
        means = masked_mean(tokens, padding_mask)
        # With the axes [utterances, batch, tokens], every product is a plain batched one.
        if self.attention is None:
            context = masked_mean(ops.take(means, context_index, axis=0), turn_mask)
            scores = ops.einsum("bd,ntd->nbt", context, tokens)
        else:
            scores = self._attend(tokens, means, context_index, turn_mask)
        # With s_t = c . h_t for the response's tokens h_t, c G . r = sum_t s_t (h_t . r) and
        # |c G|^2 = s (R R^T) s^T.
        toward = ops.einsum("nbt,nt->nb", scores, ops.einsum("ntd,nd->nt", tokens, means))
        gram = ops.einsum("ntd,nud->ntu", tokens, tokens)
        seen = ops.sum(ops.einsum("nbt,ntu->nbu", scores, gram) * scores, axis=-1)
        response = ops.sum(means * means, axis=-1, keepdims=True)
        return ops.transpose(toward * inverse_root(seen * response))

    def _attend(self, tokens, means, context_index, turn_mask):
        """s_t, with the context's turns weighted for each response.

        Args:
            tokens: float `[utterances, tokens, dim]`, 0 at padding.
            means: float `[utterances, dim]`, the means of the real tokens.
            context_index, turn_mask: as in `call`.

        Returns:
            float `[utterances, batch, tokens]`.
        """
        # [utterances as responses, utterances as turns, tokens of the response]
        of_turns = ops.einsum("ud,ntd->nut", means, tokens)
        scale = float(tokens.shape[-1]) ** -0.5
        refined = ops.einsum("nut,ntd->nud", of_turns, tokens) * scale
        turn_scores = ops.take(self.attention.score(refined), context_index, axis=1)
        weights = self.attention.weigh(turn_scores, turn_mask)
        of_context = ops.take(of_turns, context_index, axis=1)
        return ops.einsum("nbi,nbit->nbt", weights, of_context)


@keras.saving.register_keras_serializable(package="dcse_tf")
class MeanCosineSimilarity(PairSimilarity):
    """Cosine of a context's mean sentence embedding and an utterance's embedding, for all pairs.

    Not in the paper: an ablation of its matching.

    Args:
        first_dims: only this many leading dimensions are compared; None for all.
    """

    def __init__(self, first_dims=None, **kwargs):
        super().__init__(**kwargs)
        self.first_dims = first_dims

    def call(self, token_embeddings, padding_mask, context_index, turn_mask):
        """Arguments and result as described in `PairSimilarity`."""
        means = masked_mean(token_embeddings[..., : self.first_dims], padding_mask)
        context = masked_mean(ops.take(means, context_index, axis=0), turn_mask)
        return ops.matmul(unit(context), ops.transpose(unit(means)))

    def get_config(self):
        return {**super().get_config(), "first_dims": self.first_dims}


@keras.saving.register_keras_serializable(package="dcse_tf")
class ProjectedCosineSimilarity(PairSimilarity):
    """Cosine of a context's projected mean embedding and an utterance's, for all pairs.

    Args:
        context_head: `ProjectionHead` of the mean of a context's sentence embeddings.
        response_head: `ProjectionHead` of an utterance's embedding.
    """

    def __init__(self, context_head, response_head, **kwargs):
        super().__init__(**kwargs)
        self.context_head = context_head
        self.response_head = response_head

    def call(self, token_embeddings, padding_mask, context_index, turn_mask):
        """Arguments and result as described in `PairSimilarity`."""
        means = masked_mean(token_embeddings, padding_mask)
        context = masked_mean(ops.take(means, context_index, axis=0), turn_mask)
        first, second = unit(self.context_head(context)), unit(self.response_head(means))
        return ops.matmul(first, ops.transpose(second))

    def get_config(self):
        heads = {
            name: keras.saving.serialize_keras_object(getattr(self, name))
            for name in ("context_head", "response_head")
        }
        return {**super().get_config(), **heads}

    @classmethod
    def from_config(cls, config):
        for name in ("context_head", "response_head"):
            config[name] = keras.saving.deserialize_keras_object(config[name])
        return cls(**config)


def build_pair_similarity(
    kind: str,
    attention: TurnAttention | None = None,
    heads: Sequence[ProjectionHead] = (),
    first_dims: int = 0,
) -> PairSimilarity:
    """The layer of a similarity.

    Args:
        kind: "matching", "cosine" or "projected", the cosine behind projection heads.
        attention: matching: weights the turns (I1); None for their mean (I2).
        heads: projected: those of contexts and of responses.
        first_dims: cosine: see `MeanCosineSimilarity`; 0 for all.
    """
    if kind == "matching":
        return GramSimilarity(attention, dtype="float32", name="similarity")
    if kind == "projected":
        return ProjectedCosineSimilarity(*heads, dtype="float32", name="projected")
    name = f"cosine_{first_dims}" if first_dims else "cosine"
    return MeanCosineSimilarity(first_dims or None, dtype="float32", name=name)
