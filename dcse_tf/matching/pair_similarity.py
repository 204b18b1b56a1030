"""The similarities of all contexts and utterances of a table, exact but cheaper to compute."""

from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import ops

from dcse_tf.matching.matching import (
    WithTurnAttention,
    inverse_root,
    masked_mean,
    unit,
    zero_padding,
)
from dcse_tf.matching.matching_forms import WithResidualWeight, mean_best


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
        self,
        token_embeddings_shape,
        padding_mask_shape,
        context_index_shape,
        turn_mask_shape,
    ):
        return (context_index_shape[0], token_embeddings_shape[0])


class Products(NamedTuple):
    """Inner products of a context c, a response r and the response as the context sees it, c G.

    With the response's tokens h_t as rows, G = R^T R and K = R R^T; s_t = c . h_t and
    g_t = h_t . r. All are float `[utterances, batch]`, or broadcast to it.

    Attributes:
        response: r . r.
        context: c . c.
        straight: c . r, the mean of the s_t.
        toward: c G . r = sum_t s_t g_t.
        back: c G . c = sum_t s_t^2.
        seen: c G . c G = s K s^T.
    """

    response: Any
    context: Any
    straight: Any
    toward: Any
    back: Any
    seen: Any


@keras.saving.register_keras_serializable(package="dcse_tf")
class GramSimilarity(WithTurnAttention, PairSimilarity):
    """The cosine of R_tilde (equations 3 to 7) and the pooled R for every pair, exactly.

    The mean over a turn's tokens is linear. So let ubar_i be the mean of U_i, and c the mean of
    the turns' ubar_i: R_tilde pools to c G / sqrt(d), and the cosine ignores the scale:

        similarity = c G . r / (|c G| |r|),

    which needs only `Products`. Neither M nor R_hat is computed: a pair costs tokens^2, where the
    equations' layers cost turns x tokens^2 x 4 dim, and memory grows as contexts x tokens of the
    table. Utterances that are no candidate of a row are scored too, which costs less than a
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
        turns = ops.take(means, context_index, axis=0)
        # With the axes [utterances, batch, tokens], every product is a plain batched one.
        if self.attention is None:
            context = masked_mean(turns, turn_mask)
            scores = ops.einsum("bd,ntd->nbt", context, tokens)
            squares = ops.sum(context * context, axis=-1)
        else:
            scores, squares = self._attend(tokens, means, turns, context_index, turn_mask)
        lengths = ops.sum(ops.cast(padding_mask, tokens.dtype), axis=-1, keepdims=True)
        toward = ops.einsum("ntd,nd->nt", tokens, means)
        gram = ops.einsum("ntd,nud->ntu", tokens, tokens)
        products = Products(
            response=ops.sum(means * means, axis=-1, keepdims=True),
            context=squares,
            straight=ops.sum(scores, axis=-1) / ops.maximum(lengths, 1.0),
            toward=ops.einsum("nbt,nt->nb", scores, toward),
            back=ops.sum(scores * scores, axis=-1),
            seen=ops.sum(ops.einsum("nbt,ntu->nbu", scores, gram) * scores, axis=-1),
        )
        return ops.transpose(self.compare(products, _scale(tokens)))

    def _attend(self, tokens, means, turns, context_index, turn_mask):
        """s_t and the squared length of each context with its turns weighted for each response.

        Args:
            tokens: float `[utterances, tokens, dim]`, 0 at padding.
            means: float `[utterances, dim]`, the means of the real tokens.
            turns: float `[batch, turns, dim]`, the means of the context's turns.
            context_index, turn_mask: as in `call`.

        Returns:
            float `[utterances, batch, tokens]` and `[utterances, batch]`.
        """
        # [utterances as responses, utterances as turns, tokens of the response]
        of_turns = ops.einsum("ud,ntd->nut", means, tokens)
        refined = self.refine(ops.einsum("nut,ntd->nud", of_turns, tokens) * _scale(tokens), means)
        turn_scores = ops.take(self.attention.score(refined), context_index, axis=1)
        weights = self.attention.weigh(turn_scores, turn_mask)
        of_context = ops.take(of_turns, context_index, axis=1)
        scores = ops.einsum("nbi,nbit->nbt", weights, of_context)
        between = ops.einsum("bid,bjd->bij", turns, turns)
        squares = ops.sum(ops.einsum("nbi,bij->nbj", weights, between) * weights, axis=-1)
        return scores, squares

    def refine(self, refined, means):
        """The attention's input for every pair of texts, in the shape of `refined`.

        Args:
            refined: float `[utterances as responses, utterances as turns, dim]`, pooled M R.
            means: float `[utterances as turns, dim]`, pooled U.
        """
        return refined

    def compare(self, products, scale):
        """The similarity, float `[utterances, batch]`.

        Args:
            products: see `Products`.
            scale: the factor 1 / sqrt(dim) of equation 3.
        """
        return products.toward * inverse_root(products.seen * products.response)


def _scale(tokens):
    return float(tokens.shape[-1]) ** -0.5


@keras.saving.register_keras_serializable(package="dcse_tf")
class ResidualGramSimilarity(WithResidualWeight, GramSimilarity):
    """`GramSimilarity` with lambda U + M R instead of M R: cos(r, lambda c + c G / sqrt(d)).

    With attention, the weights too are computed from the pooled lambda U + M R.

    Args:
        residual: lambda, a `ResidualWeight`.
        attention: as in `WithTurnAttention`.
    """

    def refine(self, refined, means):
        return refined + self.residual.value() * means

    def compare(self, products, scale):
        weight = self.residual.value()
        product = weight * products.straight + scale * products.toward
        # No term is negative, since G is a Gram matrix.
        squares = weight * weight * products.context + scale * scale * products.seen
        squares = squares + 2.0 * weight * scale * products.back
        return product * inverse_root(squares * products.response)


@keras.saving.register_keras_serializable(package="dcse_tf")
class ContextGramSimilarity(GramSimilarity):
    """`GramSimilarity` with the context in place of the response: cos(c, c G).

    With attention, both occurrences of c are the weighted sum of the turns. The similarity is never
    negative.
    """

    def compare(self, products, scale):
        return products.back * inverse_root(products.seen * products.context)


@keras.saving.register_keras_serializable(package="dcse_tf")
class MaxSimSimilarity(PairSimilarity):
    """`LateInteraction` for every pair, exactly.

    The similarity of a turn and a response depends only on the two texts, and needs the best
    matches in both directions. They are therefore computed once for each ordered pair of texts in
    the table, one response at a time. A response's cosines are recomputed for the gradient instead
    of stored, so memory grows as tokens of the table x tokens of an utterance, and computation as
    the square of the table's tokens x dim.
    """

    def call(self, token_embeddings, padding_mask, context_index, turn_mask):
        """Arguments and result as described in `PairSimilarity`."""
        units = unit(zero_padding(token_embeddings, padding_mask))

        @tf.recompute_grad
        def see(table, are_real, response, among):
            cosines = ops.einsum("utd,sd->uts", table, response)
            return mean_best(cosines, are_real > 0, among > 0)

        # `recompute_grad` supports only floats, and only as arguments: no closures.
        encoded = (units, ops.cast(padding_mask, units.dtype))
        seen = tf.map_fn(
            lambda response: see(*encoded, *response), encoded, fn_output_signature=units.dtype
        )
        pairs = (seen + ops.transpose(seen)) / 2.0
        return masked_mean(ops.take(pairs, context_index, axis=0), turn_mask)


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
