"""The matching of a response and its context as Keras layers (paper, equations 3 to 7)."""

import keras
from keras import ops


def zero_padding(inputs, is_real):
    """Float `[..., n, dim]` with zeros for what bool `[..., n]` does not mark, whatever it held."""
    return ops.where(ops.expand_dims(is_real, -1), inputs, ops.zeros((), inputs.dtype))


def masked_mean(inputs, is_real):
    """Mean over the last axis but one of float `[..., n, dim]`, of what bool `[..., n]` marks."""
    total = ops.sum(zero_padding(inputs, is_real), axis=-2)
    count = ops.sum(ops.cast(ops.expand_dims(is_real, -1), inputs.dtype), axis=-2)
    return total / ops.maximum(count, ops.ones((), inputs.dtype))


@keras.saving.register_keras_serializable(package="dcse_tf")
class MaskedMeanPooling(keras.layers.Layer):
    """Mean over an axis of what a mask marks as real (paper, 4.3; released code).

    Padded places count for nothing, whatever they hold. Where nothing is real the mean is zero.
    """

    def call(self, inputs, is_real):
        """Pools the last axis but one.

        Args:
            inputs: float `[..., tokens, dim]`.
            is_real: bool `[..., tokens]`, True = real.

        Returns:
            float `[..., dim]`.
        """
        return masked_mean(inputs, is_real)

    def compute_output_shape(self, inputs_shape, is_real_shape):
        return (*inputs_shape[:-2], inputs_shape[-1])


def inverse_root(squares):
    """One over the root of products of squared lengths, finite where one is zero.

    The floor keeps the gradient finite there too. R_tilde is cubic in the embeddings, so honest
    squares are far above it.
    """
    return ops.rsqrt(ops.maximum(squares, ops.full((), 1e-24, squares.dtype)))


@keras.saving.register_keras_serializable(package="dcse_tf")
class CosineSimilarity(keras.layers.Layer):
    """Cosine along the last axis; a zero vector has cosine 0 with everything.

    Give it dtype="float32" under mixed precision: in bfloat16 a cosine has two or three digits.
    """

    def call(self, first, second):
        """Args: first, second: float `[..., dim]`. Returns: float `[...]`."""
        product = ops.sum(first * second, axis=-1)
        squares = ops.sum(first * first, axis=-1) * ops.sum(second * second, axis=-1)
        return product * inverse_root(squares)

    def compute_output_shape(self, first_shape, second_shape):
        return first_shape[:-1]


@keras.saving.register_keras_serializable(package="dcse_tf")
class MatchingGuidedEmbedding(keras.layers.Layer):
    """Refines candidate responses by their matching matrices with context utterances.

    M = U R^T / sqrt(d) and R_hat = M R (paper, equations 3 and 4), without a softmax. Padded
    tokens of the candidate take no part in the sum; the rows of padded context tokens are zero.
    """

    def call(self, context, candidates, context_padding_mask, candidate_padding_mask):
        """Computes R_hat for every context utterance and candidate of a row.

        Args:
            context: float `[batch, turns, context_tokens, dim]`, U.
            candidates: float `[batch, candidates, tokens, dim]`, R.
            context_padding_mask: bool `[batch, turns, context_tokens]`, True = real token.
            candidate_padding_mask: bool `[batch, candidates, tokens]`, True = real token.

        Returns:
            float `[batch, candidates, turns, context_tokens, dim]`, a row for every token of the
            context utterance.
        """
        context = zero_padding(context, context_padding_mask)
        candidates = zero_padding(candidates, candidate_padding_mask)
        scale = float(context.shape[-1]) ** -0.5
        matching = ops.einsum("btid,bcjd->bctij", context, candidates) * scale
        return ops.einsum("bctij,bcjd->bctid", matching, candidates)

    def compute_output_shape(
        self,
        context_shape,
        candidates_shape,
        context_padding_mask_shape,
        candidate_padding_mask_shape,
    ):
        batch, turns, tokens, dim = context_shape
        return (batch, candidates_shape[1], turns, tokens, dim)


# Width of the released code's attention.
_ADDITIVE_WIDTH = 256
_MASKED = -1e9


def _softmax(scores):
    """Softmax over the last axis."""
    if scores.shape[-1] == 1:
        # ops.softmax warns of one entry, which is what a context of one turn has. A constant 1
        # would leave the network without gradients, where an optimizer expects zeros.
        return ops.exp(scores - scores)
    return ops.softmax(scores, axis=-1)


@keras.saving.register_keras_serializable(package="dcse_tf")
class TurnAttention(keras.layers.Layer):
    """Weights of the turns from their pooled refined embeddings (equations 5 and 6, I1).

    Args:
        kind: "attention", the paper's: a softmax over the turns of a two-layer network (as wide
            as the embeddings, ReLU, one output); or "additive_attention", the released code's:
            256 wide, tanh, no bias at the output, and one plus the softmax as the weight.
    """

    def __init__(self, kind="attention", **kwargs):
        super().__init__(**kwargs)
        if kind not in ("attention", "additive_attention"):
            raise ValueError(f"kind {kind!r}, expected attention or additive_attention")
        self.kind = kind

    def build(self, refined_shape, turn_mask_shape=None):
        dim, additive = refined_shape[-1], self.kind == "additive_attention"
        self.hidden = keras.layers.Dense(
            _ADDITIVE_WIDTH if additive else dim,
            activation="tanh" if additive else "relu",
            dtype=self.dtype_policy,
            name="hidden",
        )
        self.output_ = keras.layers.Dense(
            1, use_bias=not additive, dtype=self.dtype_policy, name="output"
        )
        self.hidden.build((None, dim))
        self.output_.build((None, self.hidden.units))

    def score(self, refined):
        """The network's output for pooled R_hat, float `[..., dim]` to `[...]`."""
        return ops.squeeze(self.output_(self.hidden(refined)), -1)

    def weigh(self, scores, turn_mask):
        """Weights of the turns, absent ones zero.

        Args:
            scores: float `[..., turns]`.
            turn_mask: bool `[..., turns]`, True = real turn.

        Returns:
            float `[..., turns]`.
        """
        masked = ops.full((), _MASKED, scores.dtype)
        alpha = _softmax(ops.where(turn_mask, scores, masked))
        weights = 1.0 + alpha if self.kind == "additive_attention" else alpha
        return ops.where(turn_mask, weights, ops.zeros((), weights.dtype))

    def call(self, refined, turn_mask):
        """Args: refined: float `[..., turns, dim]`, R_hat pooled over its tokens; turn_mask: bool
        `[..., turns]`. Returns: float `[..., turns]`."""
        return self.weigh(self.score(refined), turn_mask)

    def compute_output_shape(self, refined_shape, turn_mask_shape):
        return refined_shape[:-1]

    def get_config(self):
        return {**super().get_config(), "kind": self.kind}


class WithTurnAttention(keras.layers.Layer):
    """A layer that turns are weighed in.

    Args:
        attention: gives the weights, a `TurnAttention`; it may be another layer's too.
    """

    def __init__(self, attention, **kwargs):
        super().__init__(**kwargs)
        self.attention = attention

    def build_attention(self, dim):
        """Makes the attention's weights, unless another layer has."""
        if not self.attention.built:
            self.attention.build((None, dim))

    def get_config(self):
        attention = keras.saving.serialize_keras_object(self.attention)
        return {**super().get_config(), "attention": attention}

    @classmethod
    def from_config(cls, config):
        attention = keras.saving.deserialize_keras_object(config.pop("attention"))
        return cls(attention, **config)


@keras.saving.register_keras_serializable(package="dcse_tf")
class AttentiveTurnAggregation(WithTurnAttention):
    """Refined embeddings pooled over their tokens and summed by the turns' weights (equation 5)."""

    def build(self, refined_shape, context_padding_mask_shape, turn_mask_shape):
        self.build_attention(refined_shape[-1])

    def call(self, refined, context_padding_mask, turn_mask):
        """Computes the pooled R_tilde; arguments and result as in `TurnAggregation`."""
        turns = masked_mean(refined, ops.expand_dims(context_padding_mask, 1))
        weights = self.attention(turns, ops.expand_dims(turn_mask, 1))
        return ops.sum(turns * ops.expand_dims(weights, -1), axis=-2)

    def compute_output_shape(self, refined_shape, context_padding_mask_shape, turn_mask_shape):
        batch, candidates, _, _, dim = refined_shape
        return (batch, candidates, dim)


@keras.saving.register_keras_serializable(package="dcse_tf")
class TurnAggregation(keras.layers.Layer):
    """Averages refined embeddings over their tokens, then over the real turns (equation 7, I2).

    The paper averages matrices over turns and pools the result; with utterances of different
    lengths every turn is pooled over its own real tokens first, so that each counts the same.
    """

    def call(self, refined, context_padding_mask, turn_mask):
        """Computes the pooled R_tilde.

        Args:
            refined: float `[batch, candidates, turns, context_tokens, dim]`, R_hat.
            context_padding_mask: bool `[batch, turns, context_tokens]`, True = real token.
            turn_mask: bool `[batch, turns]`, True = real turn.

        Returns:
            float `[batch, candidates, dim]`.
        """
        # Masks get the axes of the candidates, over which they do not differ.
        turns = masked_mean(refined, ops.expand_dims(context_padding_mask, 1))
        return masked_mean(turns, ops.expand_dims(turn_mask, 1))

    def compute_output_shape(self, refined_shape, context_padding_mask_shape, turn_mask_shape):
        batch, candidates, _, _, dim = refined_shape
        return (batch, candidates, dim)


class PairSimilarity(keras.layers.Layer):
    """Scores every row's context with every utterance of a table.

    `call` takes
        token_embeddings: float `[utterances, tokens, dim]`, the encoded table;
        padding_mask: bool `[utterances, tokens]`, True = real token;
        context_index: int32 `[batch, turns]` into the table;
        turn_mask: bool `[batch, turns]`, True = real turn;
    and gives float `[batch, utterances]`.
    """

    def compute_output_shape(
        self,
        token_embeddings_shape,
        padding_mask_shape,
        context_index_shape,
        turn_mask_shape,
    ):
        return (context_index_shape[0], token_embeddings_shape[0])


@keras.saving.register_keras_serializable(package="dcse_tf")
class GramSimilarity(PairSimilarity):
    """The cosine of R_tilde (equations 3, 4, 7) and the pooled R for every pair, exactly.

    The mean over a turn's tokens is linear, so with ubar_i the mean of U_i and c the mean of the
    turns' ubar_i, R_tilde pools to c R^T R / sqrt(d), and the cosine leaves the scale out. With
    s_t = c . h_t for the candidate's tokens h_t, rbar their mean, g_t = h_t . rbar and
    K = H H^T:

        similarity = sum_t s_t g_t / (sqrt(s K s^T) |rbar|)

    Neither M nor R_hat exists: a pair costs tokens^2 where the layers of the equations pay
    turns x tokens^2 x 4 dim, and memory grows as contexts x tokens of the table. Utterances that
    no row asks for are scored too: that is less than a hundredth of encoding them.
    """

    def call(self, token_embeddings, padding_mask, context_index, turn_mask):
        """Arguments and result as `PairSimilarity` says."""
        tokens = zero_padding(token_embeddings, padding_mask)
        means = masked_mean(tokens, padding_mask)
        # [utterances, batch, tokens] keeps every product a plain batched one.
        scores = self._score_tokens(tokens, means, context_index, turn_mask)
        toward = ops.einsum("ntd,nd->nt", tokens, means)
        gram = ops.einsum("ntd,nud->ntu", tokens, tokens)
        numerator = ops.einsum("nbt,nt->nb", scores, toward)
        refined = ops.sum(ops.einsum("nbt,ntu->nbu", scores, gram) * scores, axis=-1)
        squares = refined * ops.sum(means * means, axis=-1, keepdims=True)
        return ops.transpose(numerator * inverse_root(squares))

    def _score_tokens(self, tokens, means, context_index, turn_mask):
        """s_t of every context and token, float `[utterances, batch, tokens]`, 0 at padding.

        Args:
            tokens: float `[utterances, tokens, dim]`, 0 at padding.
            means: float `[utterances, dim]`, of the real tokens.
            context_index, turn_mask: as in `call`.
        """
        context = masked_mean(ops.take(means, context_index, axis=0), turn_mask)
        return ops.einsum("bd,ntd->nbt", context, tokens)


@keras.saving.register_keras_serializable(package="dcse_tf")
class AttentiveGramSimilarity(WithTurnAttention, GramSimilarity):
    """`GramSimilarity` with weighted turns (equations 3 to 6), exactly.

    What a turn u sees of a response r, pooled: ubar R^T R / sqrt(d), depends only on the two texts,
    so the attention's network runs once for every pair of the table. With the weights of a row's
    turns the score of a token is s_t = sum_i alpha_i ubar_i . h_t, and the rest is as without.
    Memory grows as utterances^2 x dim and contexts x turns x tokens of the table.

    Args:
        attention: gives the weights, a `TurnAttention`.
    """

    def build(self, token_embeddings_shape, *shapes):
        self.build_attention(token_embeddings_shape[-1])

    def _score_tokens(self, tokens, means, context_index, turn_mask):
        scale = float(tokens.shape[-1]) ** -0.5
        # [utterances as responses, utterances as turns, tokens of the response]
        of_turns = ops.einsum("ud,ntd->nut", means, tokens)
        refined = ops.einsum("nut,ntd->nud", of_turns, tokens) * scale
        turn_scores = ops.take(self.attention.score(refined), context_index, axis=1)
        weights = self.attention.weigh(turn_scores, turn_mask)
        of_context = ops.take(of_turns, context_index, axis=1)
        return ops.einsum("nbi,nbit->nbt", weights, of_context)


@keras.saving.register_keras_serializable(package="dcse_tf")
class MeanCosineSimilarity(PairSimilarity):
    """Cosine of the mean of a context's sentence embeddings and an utterance's, for all pairs.

    Not in the paper: the ablation of its matching.
    """

    def call(self, token_embeddings, padding_mask, context_index, turn_mask):
        """Arguments and result as `PairSimilarity` says."""
        means = masked_mean(token_embeddings, padding_mask)
        context = masked_mean(ops.take(means, context_index, axis=0), turn_mask)
        return ops.matmul(_unit(context), ops.transpose(_unit(means)))


def _unit(vectors):
    return vectors * inverse_root(ops.sum(vectors * vectors, axis=-1, keepdims=True))
