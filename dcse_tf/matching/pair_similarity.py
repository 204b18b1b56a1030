"""Similarities of all contexts and utterances of a table, and the Siamese baselines' network."""

from collections.abc import Sequence

import keras
from keras import ops

from dcse_tf.matching.equations import TurnAttention, inverse_root, masked_mean, unit, zero_padding
from dcse_tf.matching.heads import ProjectionHead


class GramSimilarity(keras.layers.Layer):
    """The cosine of R_tilde (equations 3 to 7) and the pooled R for every pair, exactly.

    The mean over a turn's tokens is linear. So let ubar_i be the mean of U_i, and c the mean of
    the turns' ubar_i: R_tilde pools to c G / sqrt(d), and the cosine ignores the scale:

        similarity = c G . r / (|c G| |r|),

    which needs neither M nor R_hat: a pair costs tokens^2, the equations' layers turns x tokens^2 x
    4 dim, and memory grows as contexts x tokens. Utterances that are no candidate of a row are
    scored too, which costs less than a hundredth of encoding them.

    With attention (equations 5 and 6), c is the sum of the weighted ubar_i. The pooled refined
    embedding of a turn u and a response, ubar G / sqrt(d), depends only on the two texts, so the
    attention's network runs once for each pair of texts in the table. Memory grows as
    utterances^2 x dim and contexts x turns x tokens of the table.
    """

    def __init__(self, attention=None, **kwargs):
        super().__init__(**kwargs)
        self.attention = attention

    def call(self, token_embeddings, padding_mask, context_index, turn_mask):
        """Scores every row's context with every utterance of a table: float `[batch, utterances]`,
        for the arguments see `build_matching`.
        """
        tokens = zero_padding(token_embeddings, padding_mask)
        means = masked_mean(tokens, padding_mask)
        # With the axes [utterances, batch, tokens], every product is a plain batched one.
        if self.attention is None:
            context = masked_mean(ops.take(means, context_index, axis=0), turn_mask)
            scores = ops.einsum("bd,ntd->nbt", context, tokens)
        else:
            # [utterances as responses, utterances as turns, tokens of the response]
            of_turns = ops.einsum("ud,ntd->nut", means, tokens)
            refined = ops.einsum("nut,ntd->nud", of_turns, tokens) * float(tokens.shape[-1]) ** -0.5
            turn_scores = ops.take(self.attention.score(refined), context_index, axis=1)
            weights = self.attention.weigh(turn_scores, turn_mask)
            of_context = ops.take(of_turns, context_index, axis=1)
            scores = ops.einsum("nbi,nbit->nbt", weights, of_context)
        # With s_t = c . h_t for the response's tokens h_t, c G . r = sum_t s_t (h_t . r) and
        # |c G|^2 = s (R R^T) s^T.
        toward = ops.einsum("nbt,nt->nb", scores, ops.einsum("ntd,nd->nt", tokens, means))
        gram = ops.einsum("ntd,nud->ntu", tokens, tokens)
        seen = ops.sum(ops.einsum("nbt,ntu->nbu", scores, gram) * scores, axis=-1)
        response = ops.sum(means * means, axis=-1, keepdims=True)
        return ops.transpose(toward * inverse_root(seen * response))


class MeanCosineSimilarity(keras.layers.Layer):
    """Cosine of a context's mean sentence embedding and an utterance's embedding, for all pairs:
    not in the paper, an ablation of its matching.

    It compares the `first_dims` leading dimensions, or all, behind the `ProjectionHead` of contexts
    and that of responses if there are `heads`. Arguments and result are those of `GramSimilarity`.
    """

    def __init__(self, first_dims=None, heads=(), **kwargs):
        super().__init__(**kwargs)
        self.first_dims = first_dims
        self.heads = list(heads)

    def call(self, token_embeddings, padding_mask, context_index, turn_mask):
        means = masked_mean(token_embeddings[..., : self.first_dims], padding_mask)
        context = masked_mean(ops.take(means, context_index, axis=0), turn_mask)
        if self.heads:
            context, means = (head(x) for head, x in zip(self.heads, (context, means), strict=True))
        return ops.matmul(unit(context), ops.transpose(unit(means)))


def build_pair_similarity(
    kind: str,
    attention: TurnAttention | None = None,
    heads: Sequence[ProjectionHead] = (),
    first_dims: int = 0,
) -> keras.layers.Layer:
    """The layer of a similarity, see `GramSimilarity` for its inputs and its output: "matching",
    with an attention (I1) or the mean of the turns (I2); "cosine", of the first dimensions or with
    0 of all; or "projected", the cosine behind the heads of contexts and of responses.
    """
    if kind == "matching":
        return GramSimilarity(attention, dtype="float32", name="similarity")
    if kind == "projected":
        return MeanCosineSimilarity(heads=heads, dtype="float32", name="projected")
    name = f"cosine_{first_dims}" if first_dims else "cosine"
    return MeanCosineSimilarity(first_dims or None, dtype="float32", name=name)


class PairScore(keras.layers.Layer):
    """Scores pairs with a two-layer network on [u, v, |u - v|] (paper, SiameseBERT).

    The first layer, as wide as the embeddings and with a ReLU, is linear in its three inputs before
    the ReLU. So W_u u and W_v v are computed once for each sentence, and only |u - v| for each
    pair. `by_row` computes the pairs of one context at a time, and again for the gradient: memory
    then grows as candidates x dim instead of batch x candidates x dim.
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
        """Scores the candidates of every row, and no other pairs: float `[batch, candidates]` from
        the u of every row, float `[batch, dim]`, the embeddings of all sentences, float
        `[sentences, dim]`, and each row's v among them, int32 `[batch, candidates]`.
        """
        from_context = ops.matmul(context, self.context_kernel) + self.bias
        from_sentence = ops.matmul(sentences, self.candidate_kernel)
        # Passed as arguments, because `remat` does not track what a function closes over.
        kernels = map(ops.convert_to_tensor, (self.difference_kernel, self.output_kernel))
        table = (sentences, from_sentence, *kernels)
        if not self.by_row:
            return _score(candidate_index, context, from_context, *table) + self.output_bias

        def score_row(row):
            index, *own = row
            # The index is in the closure, because `remat` differentiates all its arguments.
            return keras.remat(lambda *tensors: _score(index, *tensors))(*own, *table)

        return ops.map(score_row, (candidate_index, context, from_context)) + self.output_bias


def _score(index, context, from_context, sentences, from_sentence, kernel, output_kernel):
    """Scores contexts `[..., dim]` with their candidates, int32 `[..., candidates]`."""
    pairs = ops.abs(ops.expand_dims(context, -2) - ops.take(sentences, index, axis=0))
    linear = ops.expand_dims(from_context, -2) + ops.take(from_sentence, index, axis=0)
    hidden = ops.relu(linear + ops.matmul(pairs, kernel))
    return ops.squeeze(ops.matmul(hidden, output_kernel), -1)
