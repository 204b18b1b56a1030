"""Layers of the matching's other forms, as their equations are printed in docs/matching.md.

None is in the paper. Its refined embedding M R is a step of power iteration towards the response,
whatever the context was; each form keeps more of the context.
"""

import math

import keras
from keras import ops

from dcse_tf.model.matching import WithTurnAttention, masked_mean, unit, zero_padding

# Below every cosine.
_NO_COSINE = -2.0
# How much faster than other weights the logarithm of lambda moves.
_HASTE = 100.0


@keras.saving.register_keras_serializable(package="dcse_tf")
class ResidualWeight(keras.layers.Layer):
    """lambda, how much of the context's own embedding is added to what it sees of a response.

    What is trained is a scalar x with lambda = exp(100 x), so lambda is always above 0 and moves by
    shares of itself. An optimizer such as Adam moves a weight by about the learning rate a step:
    by the factor of 100 a step at 5e-5 changes lambda by up to half a percent, where without it a
    run would leave lambda where it began. The factor is not in the gradient of x, which is that of
    log lambda, so that clipping by the norm of all gradients does not answer to it.

    Args:
        initial: lambda before the training, above 0.
    """

    def __init__(self, initial=1.0, **kwargs):
        super().__init__(**kwargs)
        if not 0.0 < initial < math.inf:
            raise ValueError(f"lambda {initial!r}, expected a number above 0")
        self.initial = initial
        start = keras.initializers.Constant(math.log(initial) / _HASTE)
        self.position = self.add_weight(shape=(), initializer=start, name="position")
        self.built = True

    def value(self):
        """lambda, float `[]`."""
        position = ops.convert_to_tensor(self.position)
        return ops.exp(position + ops.stop_gradient((_HASTE - 1.0) * position))

    def get_config(self):
        return {**super().get_config(), "initial": self.initial}


class WithResidualWeight(keras.layers.Layer):
    """A layer that adds a context's own embedding.

    Args:
        residual: how much of it, a `ResidualWeight`; it may be another layer's too.
    """

    def __init__(self, residual, **kwargs):
        super().__init__(**kwargs)
        self.residual = residual

    def get_config(self):
        residual = keras.saving.serialize_keras_object(self.residual)
        return {**super().get_config(), "residual": residual}

    @classmethod
    def from_config(cls, config):
        residual = keras.saving.deserialize_keras_object(config["residual"])
        return super().from_config({**config, "residual": residual})


@keras.saving.register_keras_serializable(package="dcse_tf")
class ResidualRefinement(WithResidualWeight):
    """lambda U + M R, in place of M R of equation 4."""

    def call(self, refined, context, context_padding_mask):
        """Adds to every refined token the context's token.

        Args:
            refined: float `[batch, candidates, turns, context_tokens, dim]`, M R.
            context: float `[batch, turns, context_tokens, dim]`, U.
            context_padding_mask: bool `[batch, turns, context_tokens]`, True = real token.

        Returns:
            As `refined`.
        """
        own = zero_padding(context, context_padding_mask)
        return refined + self.residual.value() * ops.expand_dims(own, 1)

    def compute_output_shape(self, refined_shape, context_shape, context_padding_mask_shape):
        return refined_shape


@keras.saving.register_keras_serializable(package="dcse_tf")
class ContextAggregation(WithTurnAttention):
    """What a context sees of a response, and the context itself, each as one vector.

    Both are the sum over the turns, pooled over their own tokens, by one set of weights: the mean
    (I2), or with attention (I1) the weights that come from what each turn sees of the response. So
    with attention the context has an embedding of its own for every candidate.
    """

    def build(self, refined_shape, *shapes):
        self.build_attention(refined_shape[-1])

    def call(self, refined, context, context_padding_mask, turn_mask):
        """Pools both.

        Args:
            refined: float `[batch, candidates, turns, context_tokens, dim]`, M R.
            context: float `[batch, turns, context_tokens, dim]`, U.
            context_padding_mask: bool `[batch, turns, context_tokens]`, True = real token.
            turn_mask: bool `[batch, turns]`, True = real turn.

        Returns:
            R_tilde, float `[batch, candidates, dim]`, and the context, in the same shape or,
            without attention, `[batch, 1, dim]`.
        """
        seen = masked_mean(refined, ops.expand_dims(context_padding_mask, 1))
        own = ops.expand_dims(masked_mean(context, context_padding_mask), 1)
        real = ops.expand_dims(turn_mask, 1)
        if self.attention is None:
            return masked_mean(seen, real), masked_mean(own, real)
        weights = ops.expand_dims(self.attention(seen, real), -1)
        return ops.sum(weights * seen, axis=-2), ops.sum(weights * own, axis=-2)

    def compute_output_shape(self, refined_shape, *shapes):
        batch, candidates, _, _, dim = refined_shape
        return (batch, candidates, dim), (batch, candidates if self.attention else 1, dim)


def mean_best(cosines, is_real, among):
    """The mean over real tokens of the largest cosine with a real token of the other text.

    Args:
        cosines: float `[..., tokens, others]`.
        is_real: bool `[..., tokens]`.
        among: bool `[..., others]`, or what broadcasts to it.

    Returns:
        float `[...]`.
    """
    none = ops.full((), _NO_COSINE, cosines.dtype)
    best = ops.max(ops.where(ops.expand_dims(among, -2), cosines, none), axis=-1, keepdims=True)
    return ops.squeeze(masked_mean(best, is_real), -1)


@keras.saving.register_keras_serializable(package="dcse_tf")
class LateInteraction(keras.layers.Layer):
    """MaxSim both ways, averaged over the real turns (Khattab and Zaharia 2020, ColBERT).

    Of a turn and a response, the mean over the turn's tokens of the largest cosine with a token of
    the response, and the other way round; of the two the mean. Tokens are scaled to length 1: else
    the longest token of a text would be the best match of nearly all tokens of the other, and the
    similarity would have no bounds that a temperature could be chosen for. Means, and not
    ColBERT's sums, so that long texts do not score higher.
    """

    def call(self, context, candidates, context_padding_mask, candidate_padding_mask, turn_mask):
        """Computes the similarity of every candidate of a row.

        Args:
            context: float `[batch, turns, context_tokens, dim]`.
            candidates: float `[batch, candidates, tokens, dim]`.
            context_padding_mask: bool `[batch, turns, context_tokens]`, True = real token.
            candidate_padding_mask: bool `[batch, candidates, tokens]`, True = real token.
            turn_mask: bool `[batch, turns]`, True = real turn.

        Returns:
            float `[batch, candidates]`, from -1 to 1; 0 of a context without a turn.
        """
        turns = unit(zero_padding(context, context_padding_mask))
        responses = unit(zero_padding(candidates, candidate_padding_mask))
        cosines = ops.einsum("btid,bcjd->bctij", turns, responses)
        of_turns = ops.expand_dims(context_padding_mask, 1)
        of_responses = ops.expand_dims(candidate_padding_mask, 2)
        forth = mean_best(cosines, of_turns, of_responses)
        back = mean_best(ops.swapaxes(cosines, -1, -2), of_responses, of_turns)
        both = ops.expand_dims((forth + back) / 2.0, -1)
        return ops.squeeze(masked_mean(both, ops.expand_dims(turn_mask, 1)), -1)

    def compute_output_shape(self, context_shape, candidates_shape, *mask_shapes):
        return candidates_shape[:2]
