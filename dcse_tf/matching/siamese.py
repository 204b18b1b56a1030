"""The Siamese baselines: a network scores pairs of embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from dcse_tf.bert.bert import TokenCentering, initialize_weights
from dcse_tf.bert.layout import Layout, build_table_encoder, index_inputs, table_inputs
from dcse_tf.matching.losses import NTXent
from dcse_tf.matching.matching import MaskedMeanPooling

if TYPE_CHECKING:
    import keras_hub


@keras.saving.register_keras_serializable(package="dcse_tf")
class PairScore(keras.layers.Layer):
    """Scores pairs with a two-layer network on [u, v, |u - v|] (paper, SiameseBERT).

    The first layer, as wide as the embeddings and with a ReLU, is linear in its three inputs before
    the ReLU. So W_u u and W_v v are computed once for each sentence, and only |u - v| for each
    pair.

    Args:
        by_row: whether to compute the pairs of one context at a time, and again for the gradient:
            memory then grows as candidates x dim instead of batch x candidates x dim.
    """

    def __init__(self, by_row=False, **kwargs):
        super().__init__(**kwargs)
        self.by_row = by_row

    def build(self, context_shape, sentences_shape, candidate_index_shape):
        dim = context_shape[-1]
        kernel = {"shape": (dim, dim), "initializer": keras.initializers.TruncatedNormal(0.0, 0.02)}
        self.context_kernel = self.add_weight(name="context_kernel", **kernel)
        self.candidate_kernel = self.add_weight(name="candidate_kernel", **kernel)
        self.difference_kernel = self.add_weight(name="difference_kernel", **kernel)
        self.bias = self.add_weight(name="bias", shape=(dim,), initializer="zeros")
        self.output_kernel = self.add_weight(name="output_kernel", **{**kernel, "shape": (dim, 1)})
        self.output_bias = self.add_weight(name="output_bias", shape=(1,), initializer="zeros")

    def call(self, context, sentences, candidate_index):
        """Scores the candidates of every row, and no other pairs.

        Args:
            context: float `[batch, dim]`, the u of every row.
            sentences: float `[sentences, dim]`, the embeddings of all sentences.
            candidate_index: int32 `[batch, candidates]`, indices of each row's v in `sentences`.

        Returns:
            float `[batch, candidates]`.
        """
        from_context = ops.matmul(context, self.context_kernel) + self.bias
        from_sentence = ops.matmul(sentences, self.candidate_kernel)
        # Passed as arguments, because `remat` does not track what a function closes over.
        kernels = (ops.convert_to_tensor(self.difference_kernel),
                   ops.convert_to_tensor(self.output_kernel))  # fmt: skip
        table = (sentences, from_sentence, *kernels)
        if not self.by_row:
            return _score(candidate_index, context, from_context, *table) + self.output_bias

        def score_row(row):
            index, *own = row
            # The index is in the closure, because `remat` differentiates all its arguments.
            return keras.remat(lambda *tensors: _score(index, *tensors))(*own, *table)

        return ops.map(score_row, (candidate_index, context, from_context)) + self.output_bias

    def compute_output_shape(self, context_shape, sentences_shape, candidate_index_shape):
        return tuple(candidate_index_shape)

    def get_config(self):
        return {**super().get_config(), "by_row": self.by_row}


def _score(index, context, from_context, sentences, from_sentence, kernel, output_kernel):
    """Scores contexts `[..., dim]` with their candidates, int32 `[..., candidates]`."""
    pairs = ops.abs(ops.expand_dims(context, -2) - ops.take(sentences, index, axis=0))
    linear = ops.expand_dims(from_context, -2) + ops.take(from_sentence, index, axis=0)
    hidden = ops.relu(linear + ops.matmul(pairs, kernel))
    return ops.squeeze(ops.matmul(hidden, output_kernel), -1)


def build_siamese(
    backbone: keras_hub.models.BertBackbone,
    layout: Layout,
    temperature: float,
    seed: int,
    by_row: bool = False,
    centering: TokenCentering | None = None,
) -> keras.Model:
    """The training model: maps a batch of `dcse_tf.data.batch` to scores and losses.

    A context is one entry of the table: a turn (SiameseBERT_S), or turns joined to one sequence
    (SiameseBERT_M). Its embedding u and a candidate's v are means over their tokens.

    Args:
        backbone: the BERT.
        layout: the layout of the input tables.
        temperature: temperature of the loss, which is equation 8 with scores as similarities.
        seed: seed of the network's initial weights.
        by_row: see `PairScore`.
        centering: applied to the token embeddings, if given.

    Returns:
        A functional model from the tensors of `lay_out`, context_index `[batch, 1]`, turn_mask,
        candidate_index and candidate_mask to {"score": float32 `[batch, candidates]`, "loss":
        float32 `[batch]`}.
    """
    inputs, index = table_inputs(layout), index_inputs()
    table = build_table_encoder(backbone, layout, centering)(dict(inputs))
    sentences = MaskedMeanPooling(dtype="float32", name="pooling")(table, inputs["padding_mask"])
    context = ops.take(sentences, index["context_index"][:, 0], axis=0)
    head = PairScore(by_row, dtype="float32", name="pair_score")
    score = head(context, sentences, index["candidate_index"])
    initialize_weights(head.trainable_variables, seed)
    loss = NTXent(temperature, dtype="float32", name="nt_xent")(score, index["candidate_mask"])
    return keras.Model({**inputs, **index}, {"score": score, "loss": loss}, name="siamese")
