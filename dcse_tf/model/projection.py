"""Projection heads: the contrast in a space of its own, which is thrown away after training.

What makes a response follow a context is not what makes two sentences mean the same. With a head
for contexts and one for responses the encoder need not give a question and its answer one vector
(Chen et al. 2020, "SimCLR"; Zhou et al. 2022, "DSE").
"""

import keras
from keras import ops

from dcse_tf.model.bert import initialize_weights
from dcse_tf.model.matching import masked_mean, unit
from dcse_tf.model.pair_similarity import PairSimilarity


@keras.saving.register_keras_serializable(package="dcse_tf")
class ProjectionHead(keras.layers.Layer):
    """Two dense layers, the first as wide as the embeddings and with a ReLU.

    Args:
        units: width of what comes out.
        rate: how many times the learning rate the head learns at. Its weights are kept divided by
            it: an optimizer whose steps do not depend on the gradient's size, as Adam's do not,
            then moves what they stand for by that much more.
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
        """Args: inputs: float `[..., dim]`. Returns: float `[..., units]`."""
        hidden = ops.matmul(inputs, self.rate * self.hidden_kernel) + self.rate * self.hidden_bias
        return ops.matmul(ops.relu(hidden), self.rate * self.output_kernel)

    def compute_output_shape(self, inputs_shape):
        return (*inputs_shape[:-1], self.units)

    def get_config(self):
        return {**super().get_config(), "units": self.units, "rate": self.rate}


def build_heads(dim: int, units: int, rate: float, seed: int) -> list[ProjectionHead]:
    """The heads of contexts and of responses, with weights that (seed, position) gives.

    Args:
        dim: width of the sentence embeddings.
        units, rate: see `ProjectionHead`.
        seed: of the weights.
    """
    heads = []
    for place, name in enumerate(("context_head", "response_head")):
        head = ProjectionHead(units, rate, dtype="float32", name=name)
        head.build((None, dim))
        # Of variance 1 / dim, so that lengths stay as they are.
        initialize_weights(head.trainable_variables, seed + place, dim**-0.5 / rate)
        heads.append(head)
    return heads


@keras.saving.register_keras_serializable(package="dcse_tf")
class ProjectedCosineSimilarity(PairSimilarity):
    """Cosine of the mean of a context's sentence embeddings and an utterance's, each behind a head
    of its own, for all pairs.

    Args:
        context_head, response_head: the heads.
    """

    def __init__(self, context_head, response_head, **kwargs):
        super().__init__(**kwargs)
        self.context_head = context_head
        self.response_head = response_head

    def call(self, token_embeddings, padding_mask, context_index, turn_mask):
        """Arguments and result as `PairSimilarity` says."""
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
