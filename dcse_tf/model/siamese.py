"""The Siamese baselines: a network that scores pairs of embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from dcse_tf.model.bert import TokenCentering, initialize_weights
from dcse_tf.model.layout import Layout, build_table_encoder, index_inputs, table_inputs
from dcse_tf.model.losses import NTXent
from dcse_tf.model.matching import MaskedMeanPooling

if TYPE_CHECKING:
    import keras_hub


@keras.saving.register_keras_serializable(package="dcse_tf")
class PairScore(keras.layers.Layer):
    """Scores pairs by a two-layer network on [u, v, |u - v|] (paper, SiameseBERT).

    The first layer, as wide as the embeddings and with a ReLU, is linear in its three parts, so
    W_u u and W_v v are computed once a sentence; |u - v| alone needs the pair.

    Args:
        by_row: whether the pairs of one context are computed at a time, and once more for the
            gradient: memory then grows with candidates x dim, not with batch x candidates x dim.
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
        """Scores the candidates of every row, and no other pair.

        Args:
            context: float `[batch, dim]`, u of every row.
            sentences: float `[sentences, dim]`.
            candidate_index: int32 `[batch, candidates]` into the sentences: the v.

        Returns:
            float `[batch, candidates]`.
        """
        from_context = ops.matmul(context, self.context_kernel) + self.bias
        from_sentence = ops.matmul(sentences, self.candidate_kernel)
        # Handed over as tensors, for `remat` does not see what a function closes over.
        kernels = (ops.convert_to_tensor(self.difference_kernel),
                   ops.convert_to_tensor(self.output_kernel))  # fmt: skip
        table = (sentences, from_sentence, *kernels)
        if not self.by_row:
            return _score(candidate_index, context, from_context, *table) + self.output_bias

        def score_row(row):
            index, *own = row
            # The index stays outside: `remat` differentiates whatever it is handed.
            return keras.remat(lambda *tensors: _score(index, *tensors))(*own, *table)

        return ops.map(score_row, (candidate_index, context, from_context)) + self.output_bias

    def compute_output_shape(self, context_shape, sentences_shape, candidate_index_shape):
        return tuple(candidate_index_shape)

    def get_config(self):
        return {**super().get_config(), "by_row": self.by_row}


def _score(index, context, from_context, sentences, from_sentence, kernel, output_kernel):
    """Of contexts `[..., dim]` with their candidates, int32 `[..., candidates]`."""
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
    """The training model: a batch as `dcse_tf.data.batch` makes it, to scores and losses.

    A context is one entry of the table: a turn (SiameseBERT_S), or turns in one sequence
    (SiameseBERT_M). Its embedding u and a candidate's v are means over their tokens.

    Args:
        backbone: the BERT.
        layout: of the tables that come.
        temperature: of the loss: equation 8 with the score in the place of the similarity.
        seed: of the network's first weights.
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
