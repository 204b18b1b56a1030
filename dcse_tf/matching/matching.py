"""The matching of a response with its context and its loss as Keras layers (equations 3 to 8)."""

import keras
from keras import ops


def zero_padding(inputs, is_real):
    """Float `[..., n, dim]` with zeros, even for NaN, wherever bool `[..., n]` is False."""
    return ops.where(ops.expand_dims(is_real, -1), inputs, ops.zeros((), inputs.dtype))


def masked_mean(inputs, is_real):
    """Mean over the axis n of float `[..., n, dim]`, of the entries that bool `[..., n]` marks."""
    total = ops.sum(zero_padding(inputs, is_real), axis=-2)
    count = ops.sum(ops.cast(ops.expand_dims(is_real, -1), inputs.dtype), axis=-2)
    return total / ops.maximum(count, ops.ones((), inputs.dtype))


@keras.saving.register_keras_serializable(package="dcse_tf")
class MaskedMeanPooling(keras.layers.Layer):
    """Mean over the real entries of an axis (paper, 4.3; released code).

    Padding is ignored, whatever its values. Without real entries the mean is zero.
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
    """1 / sqrt(x) for products of squared lengths x, finite at x = 0.

    The lower bound on x, 1e-24, keeps the gradient finite there too. R_tilde is cubic in the
    embeddings, so nonzero products are far above the bound.
    """
    return ops.rsqrt(ops.maximum(squares, ops.full((), 1e-24, squares.dtype)))


def unit(vectors):
    """Float `[..., dim]` scaled to length 1; a zero vector stays zero."""
    return vectors * inverse_root(ops.sum(vectors * vectors, axis=-1, keepdims=True))


@keras.saving.register_keras_serializable(package="dcse_tf")
class CosineSimilarity(keras.layers.Layer):
    """Cosine along the last axis; a zero vector has cosine 0 with everything.

    Under mixed precision, give it dtype="float32": in bfloat16 a cosine has two or three digits.
    """

    def call(self, first, second):
        """The cosine of two tensors, float `[..., dim]`: float `[...]`."""
        product = ops.sum(first * second, axis=-1)
        squares = ops.sum(first * first, axis=-1) * ops.sum(second * second, axis=-1)
        return product * inverse_root(squares)

    def compute_output_shape(self, first_shape, second_shape):
        return first_shape[:-1]


@keras.saving.register_keras_serializable(package="dcse_tf")
class MatchingGuidedEmbedding(keras.layers.Layer):
    """Refines candidate responses by their matching matrices with context utterances.

    M = U R^T / sqrt(d) and R_hat = M R (paper, equations 3 and 4), without a softmax. The sum
    leaves out a candidate's padding; the rows of padded context tokens are zero.
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
        # ops.softmax warns about an axis of one entry, which a context of one turn has. A constant
        # 1 would give the network no gradients at all, while an optimizer expects zeros.
        return ops.exp(scores - scores)
    return ops.softmax(scores, axis=-1)


@keras.saving.register_keras_serializable(package="dcse_tf")
class TurnAttention(keras.layers.Layer):
    """Weights of the turns from their pooled refined embeddings (equations 5 and 6, I1).

    Args:
        kind: "attention", the paper's: a two-layer network (as wide as the embeddings, ReLU, one
            output) and a softmax over the turns; or "additive_attention", the released code's:
            256 wide, tanh, no output bias, and 1 + softmax as the weight.
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
        """The network's output for pooled R_hat: maps float `[..., dim]` to `[...]`."""
        return ops.squeeze(self.output_(self.hidden(refined)), -1)

    def weigh(self, scores, turn_mask):
        """Weights of the turns; zero for absent turns.

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
        """Weights of the turns.

        Args:
            refined: float `[..., turns, dim]`, R_hat pooled over its tokens.
            turn_mask: bool `[..., turns]`, True = real turn.

        Returns:
            float `[..., turns]`.
        """
        return self.weigh(self.score(refined), turn_mask)

    def compute_output_shape(self, refined_shape, turn_mask_shape):
        return refined_shape[:-1]

    def get_config(self):
        return {**super().get_config(), "kind": self.kind}


class WithTurnAttention(keras.layers.Layer):
    """Base of layers that weight turns.

    Args:
        attention: the `TurnAttention` that gives the weights, possibly shared with other layers;
            None for equal weights.
    """

    def __init__(self, attention=None, **kwargs):
        super().__init__(**kwargs)
        self.attention = attention

    def build_attention(self, dim):
        """Builds the attention unless another layer has built it."""
        if self.attention is not None and not self.attention.built:
            self.attention.build((None, dim))

    def get_config(self):
        attention = keras.saving.serialize_keras_object(self.attention)
        return {**super().get_config(), "attention": attention}

    @classmethod
    def from_config(cls, config):
        attention = keras.saving.deserialize_keras_object(config.pop("attention"))
        return cls(attention=attention, **config)


@keras.saving.register_keras_serializable(package="dcse_tf")
class AttentiveTurnAggregation(WithTurnAttention):
    """Pools refined embeddings over tokens, then sums the weighted turns (equation 5)."""

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

    The paper averages matrices over turns and pools the result. Since utterances differ in length,
    each turn is pooled over its own real tokens first, so that all turns have equal weight.
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
        # The masks get an axis for the candidates, for all of which they are the same.
        turns = masked_mean(refined, ops.expand_dims(context_padding_mask, 1))
        return masked_mean(turns, ops.expand_dims(turn_mask, 1))

    def compute_output_shape(self, refined_shape, context_padding_mask_shape, turn_mask_shape):
        batch, candidates, _, _, dim = refined_shape
        return (batch, candidates, dim)


@keras.saving.register_keras_serializable(package="dcse_tf")
class NTXent(keras.layers.Layer):
    """-log softmax of the positive's similarity among the candidates' (paper, equation 8).

    Args:
        temperature: divisor of the similarities.
    """

    def __init__(self, temperature=0.1, **kwargs):
        super().__init__(**kwargs)
        self.temperature = temperature

    def call(self, similarity, candidate_mask):
        """Computes the loss of every row.

        Args:
            similarity: float `[batch, candidates]`; column 0 is the positive.
            candidate_mask: bool `[batch, candidates]`, True = a candidate.

        Returns:
            float `[batch]`.
        """
        # So far below every real logit, a cosine divided by the temperature, that exp gives 0.
        masked = ops.full((), -1e9, similarity.dtype)
        logits = ops.where(candidate_mask, similarity / self.temperature, masked)
        return ops.logsumexp(logits, axis=-1) - logits[:, 0]

    def compute_output_shape(self, similarity_shape, candidate_mask_shape):
        return similarity_shape[:1]

    def get_config(self):
        return {**super().get_config(), "temperature": self.temperature}


def build_matching(dim: int, attention: TurnAttention | None = None) -> keras.Model:
    """The similarity of contexts and candidates from encoded utterances, equation by equation.

    See sections 4.2 to 4.4 of the paper.

    Args:
        dim: width of the token embeddings.
        attention: weights the turns (I1); None for their mean (I2).

    Returns:
        A functional model from
            token_embeddings: float `[utterances, tokens, dim]`, the encoded table;
            padding_mask: bool `[utterances, tokens]`, True = real token;
            context_index: int32 `[batch, turns]` and candidate_index: int32
                `[batch, candidates]`, both into the table;
            turn_mask: bool `[batch, turns]`, True = real turn;
        to the similarity of each context and candidate, float32 `[batch, candidates]`.
    """
    token_embeddings = keras.Input((None, dim), name="token_embeddings")
    padding_mask = keras.Input((None,), dtype="bool", name="padding_mask")
    context_index = keras.Input((None,), dtype="int32", name="context_index")
    turn_mask = keras.Input((None,), dtype="bool", name="turn_mask")
    candidate_index = keras.Input((None,), dtype="int32", name="candidate_index")

    context = ops.take(token_embeddings, context_index, axis=0)
    candidates = ops.take(token_embeddings, candidate_index, axis=0)
    masks = (
        ops.take(padding_mask, context_index, axis=0),
        ops.take(padding_mask, candidate_index, axis=0),
    )
    refined = MatchingGuidedEmbedding(dtype="float32", name="matching_guided_embedding")(
        context, candidates, *masks
    )
    aggregation = (
        AttentiveTurnAggregation(attention, dtype="float32", name="turn_aggregation")
        if attention
        else TurnAggregation(dtype="float32", name="turn_aggregation")
    )
    context_aware = aggregation(refined, masks[0], turn_mask)
    context_free = MaskedMeanPooling(dtype="float32", name="pooling")(candidates, masks[1])
    similarity = CosineSimilarity(dtype="float32", name="similarity")(context_aware, context_free)
    inputs = {
        "token_embeddings": token_embeddings,
        "padding_mask": padding_mask,
        "context_index": context_index,
        "turn_mask": turn_mask,
        "candidate_index": candidate_index,
    }
    return keras.Model(inputs, similarity, name="matching")
