"""Heads on sentence embeddings, trained by some objectives; not in the paper.

Projection heads, of contexts and of responses, move the contrast to a separate space: the encoder
need not embed a question and its answer alike (Chen et al. 2020, "SimCLR"; Zhou et al. 2022,
"DSE"). They are kept after training, see `dcse_tf.matching.head_files`, to rank responses.

Prediction heads predict the turns around an utterance from its embedding, which must tell what it
answers and what follows (compare Kiros et al. 2015, "Skip-Thought Vectors"). They are discarded.
"""

from collections.abc import Sequence

import keras
from keras import ops

from dcse_tf.bert.bert import initialize_weights
from dcse_tf.bert.sentence_modules import AffineMap
from dcse_tf.matching.equations import masked_mean, unit


class ProjectionHead(keras.layers.Layer):
    """Two dense layers; the first is as wide as the embeddings and has a ReLU.

    `rate` is the head's learning rate as a multiple of the optimizer's. The stored weights are the
    effective ones divided by it. So an optimizer whose steps do not depend on the gradient's size,
    such as Adam, changes the effective weights `rate` times as fast.
    """

    def __init__(self, units, rate=1.0, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.rate = rate

    def build(self, inputs_shape):
        dim = inputs_shape[-1]
        self.hidden_kernel = self.add_weight(shape=(dim, dim), name="hidden_kernel")
        self.hidden_bias = self.add_weight(shape=(dim,), initializer="zeros", name="hidden_bias")
        self.output_kernel = self.add_weight(shape=(dim, self.units), name="output_kernel")

    def call(self, inputs):
        """Maps float `[..., dim]` to float `[..., units]`."""
        hidden = ops.matmul(inputs, self.rate * self.hidden_kernel) + self.rate * self.hidden_bias
        return ops.matmul(ops.relu(hidden), self.rate * self.output_kernel)


def build_heads(dim: int, units: int, rate: float, seed: int) -> list[ProjectionHead]:
    """The heads of contexts and of responses on embeddings `[n, dim]`, with weights drawn by
    (seed, position); see `ProjectionHead`.
    """
    heads = []
    for place, name in enumerate(("context_head", "response_head")):
        head = ProjectionHead(units, rate, dtype="float32", name=name)
        head.build((None, dim))
        # The effective weights have variance 1 / dim, which preserves the lengths of vectors.
        initialize_weights(head.trainable_variables, seed + place, dim**-0.5 / rate)
        heads.append(head)
    return heads


class ContextPrediction(keras.layers.Layer):
    """1 - cosine of the predicted and the actual embeddings of the turns around an utterance: those
    of `slots`, counted from 0, each with a head of its own; for `rate` see `ProjectionHead`.

    Under mixed precision, give it dtype="float32".
    """

    def __init__(self, slots: Sequence[int], rate=1.0, **kwargs):
        super().__init__(**kwargs)
        self.slots = list(slots)
        self.rate = rate

    def build(self, table_shape):
        dim = table_shape[-1]

        def identities(shape, dtype=None):
            # Initially, each turn is predicted to have the utterance's own embedding.
            return ops.broadcast_to(ops.eye(dim, dtype=dtype) / self.rate, shape)

        shape = (len(self.slots), dim)
        self.kernel = self.add_weight((*shape, dim), initializer=identities, name="kernel")
        self.bias = self.add_weight(shape, initializer="zeros", name="bias")

    def call(self, table, table_before, padding_mask, response, context_index, turn_mask):
        """The loss of every utterance, float `[batch]`: the mean over the real turns among `slots`,
        from 0 to 2; 0 without any.

        Args:
            table, table_before: float `[utterances, tokens, dim]`, encoded by the trained encoder
                and by the initial one.
            padding_mask, context_index, turn_mask: see `build_matching`.
            response: int32 `[batch]`, places of the utterances in the table.
        """
        predicted = unit(ops.take(masked_mean(table, padding_mask), response, axis=0))
        predicted = ops.einsum("bd,sde->bse", predicted, self.rate * self.kernel)
        predicted = unit(predicted + self.rate * self.bias)
        there = unit(masked_mean(table_before, padding_mask))
        turns = ops.take(context_index, self.slots, axis=1)
        cosine = ops.sum(predicted * ops.take(there, turns, axis=0), axis=-1)
        real = ops.cast(ops.take(turn_mask, self.slots, axis=1), cosine.dtype)
        # A row may have none of these turns.
        return ops.sum((1.0 - cosine) * real, axis=1) / ops.maximum(ops.sum(real, axis=1), 1.0)


class AffineMaps(keras.layers.Layer):
    """Applies affine maps to embeddings `[..., dim]`, one after another, each in the dtype of its
    matrix: sentence-transformers' Dense modules, projection heads, whitening.
    """

    def __init__(self, maps: Sequence[AffineMap], **kwargs):
        super().__init__(trainable=False, autocast=False, **kwargs)
        self.maps = tuple(maps)
        self.dim = self.maps[-1].matrix.shape[1]  # of the results

    def call(self, embeddings, padding_mask=None):
        for step in self.maps:
            embeddings = ops.cast(embeddings, step.matrix.dtype.name)
            embeddings = unit(embeddings) if step.unit else embeddings
            embeddings = ops.matmul(embeddings - step.shift, step.matrix) + step.bias
            if step.activation:
                embeddings = getattr(ops, step.activation)(embeddings)
        return embeddings
