"""Projection heads: they move the contrast to a separate space.

That a response follows a context does not make the two similar in meaning. With one head for
contexts and one for responses, the encoder need not embed a question and its answer alike (Chen et
al. 2020, "SimCLR"; Zhou et al. 2022, "DSE"). These works discard the heads after training; here
they are kept, see `dcse_tf.matching.head_files`, because responses are ranked best behind them.
"""

import keras
from keras import ops

from dcse_tf.bert.bert import initialize_weights
from dcse_tf.matching.matching import masked_mean, unit
from dcse_tf.matching.pair_similarity import PairSimilarity


@keras.saving.register_keras_serializable(package="dcse_tf")
class ProjectionHead(keras.layers.Layer):
    """Two dense layers; the first is as wide as the embeddings and has a ReLU.

    Args:
        units: width of the output.
        rate: the head's learning rate as a multiple of the optimizer's. The stored weights are the
            effective ones divided by `rate`. So an optimizer whose steps do not depend on the
            gradient's size, such as Adam, changes the effective weights `rate` times as fast.
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

    def compute_output_shape(self, inputs_shape):
        return (*inputs_shape[:-1], self.units)

    def get_config(self):
        return {**super().get_config(), "units": self.units, "rate": self.rate}


def build_heads(dim: int, units: int, rate: float, seed: int) -> list[ProjectionHead]:
    """The heads of contexts and of responses, with weights drawn by (seed, position).

    Args:
        dim: width of the sentence embeddings.
        units, rate: see `ProjectionHead`.
        seed: seed of the initial weights.
    """
    heads = []
    for place, name in enumerate(("context_head", "response_head")):
        head = ProjectionHead(units, rate, dtype="float32", name=name)
        head.build((None, dim))
        # The effective weights have variance 1 / dim, which preserves the lengths of vectors.
        initialize_weights(head.trainable_variables, seed + place, dim**-0.5 / rate)
        heads.append(head)
    return heads


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
