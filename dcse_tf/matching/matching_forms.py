"""Layers of the matching's other forms, written like their equations in docs/matching.md.

None is in the paper. The paper's refined embedding M R is one step of power iteration towards the
response, whatever the context was; each of these forms keeps more of the context.
"""

import math

import keras
from keras import ops

from dcse_tf.matching.matching import WithTurnAttention, masked_mean, unit, zero_padding

# Less than every cosine.
_NO_COSINE = -2.0
# How many times faster than other weights log lambda is trained.
_SPEEDUP = 100.0


@keras.saving.register_keras_serializable(package="dcse_tf")
class ResidualWeight(keras.layers.Layer):
    """lambda, the weight of the context's own embedding U in lambda U + M R.

    The trained weight is a scalar x with lambda = exp(100 x), so lambda is always positive and
    changes in proportion to itself. An optimizer such as Adam moves a weight by about the learning
    rate in each step. With the factor 100, a step at 5e-5 changes lambda by up to half a percent;
    without it, lambda would hardly change in a run. The gradient of x leaves the factor out (it is
    that of log lambda), so that clipping by the global gradient norm is not affected.

    Args:
        initial: the initial value of lambda, above 0.
    """

    def __init__(self, initial=1.0, **kwargs):
        super().__init__(**kwargs)
        if not 0.0 < initial < math.inf:
            raise ValueError(f"lambda {initial!r}, expected a number above 0")
        self.initial = initial
        start = keras.initializers.Constant(math.log(initial) / _SPEEDUP)
        self.position = self.add_weight(shape=(), initializer=start, name="position")
        self.built = True

    def value(self):
        """lambda, float `[]`."""
        position = ops.convert_to_tensor(self.position)
        return ops.exp(position + ops.stop_gradient((_SPEEDUP - 1.0) * position))

    def get_config(self):
        return {**super().get_config(), "initial": self.initial}


class WithResidualWeight(keras.layers.Layer):
    """Base of layers that add the context's own embedding.

    Args:
        residual: the embedding's weight, a `ResidualWeight`, possibly shared with other layers.
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
    """Computes lambda U + M R, which replaces M R of equation 4."""

    def call(self, refined, context, context_padding_mask):
        """Adds the weighted context token to every refined token.

        Args:
            refined: float `[batch, candidates, turns, context_tokens, dim]`, M R.
            context: float `[batch, turns, context_tokens, dim]`, U.
            context_padding_mask: bool `[batch, turns, context_tokens]`, True = real token.

        Returns:
            Float in the shape of `refined`.
        """
        own = zero_padding(context, context_padding_mask)
        return refined + self.residual.value() * ops.expand_dims(own, 1)

    def compute_output_shape(self, refined_shape, context_shape, context_padding_mask_shape):
        return refined_shape


@keras.saving.register_keras_serializable(package="dcse_tf")
class ContextAggregation(WithTurnAttention):
    """Aggregates the refined embedding M R and the context U itself, each to one vector.

    Both are pooled over tokens and then summed over turns with the same weights: equal ones (I2)
    or, with attention (I1), weights from each turn's refined embedding. With attention, the context
    therefore has a different embedding for every candidate.
    """

    def build(self, refined_shape, *shapes):
        self.build_attention(refined_shape[-1])

    def call(self, refined, context, context_padding_mask, turn_mask):
        """Computes both vectors.

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
        is_real: bool `[..., tokens]`, True = real token.
        among: bool, broadcast to `[..., others]`, True = real token of the other text.

    Returns:
        float `[...]`.
    """
    none = ops.full((), _NO_COSINE, cosines.dtype)
    best = ops.max(ops.where(ops.expand_dims(among, -2), cosines, none), axis=-1, keepdims=True)
    return ops.squeeze(masked_mean(best, is_real), -1)


@keras.saving.register_keras_serializable(package="dcse_tf")
class LateInteraction(keras.layers.Layer):
    """MaxSim in both directions, averaged over the real turns (Khattab and Zaharia 2020, ColBERT).

    For a turn and a response, take the mean over the turn's tokens of the largest cosine with a
    token of the response, and the same in the other direction, and average the two. Token
    embeddings are scaled to length 1: otherwise the longest one of a text would be the best match
    of nearly all tokens of the other, and the similarity would have no bounds by which to choose a
    temperature. Means replace ColBERT's sums, so that long texts do not score higher.
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
            float `[batch, candidates]`, from -1 to 1; 0 for a context without turns.
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
