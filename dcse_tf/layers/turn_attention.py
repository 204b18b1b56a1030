"""Turn attention I1: how much each turn counts, by what it sees of the response."""

import keras
from keras import ops

from dcse_tf.layers.masked_mean_pooling import masked_mean

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
