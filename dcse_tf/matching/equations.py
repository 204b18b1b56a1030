"""The matching of a response with its context and its loss as Keras layers (equations 3 to 8), and
the files of an encoder's matching.

matching.json says that the encoder was trained with the paper's matching;
turn_attention.safetensors contains the weights of the turns' attention, if there is one.
"""

import pathlib

import keras
import safetensors
from keras import ops

from dcse_tf.bert.bert import initialize_weights
from dcse_tf.bert.checkpoints import ATTENTION_FILE, MATCHING_FILE
from dcse_tf.bert.tensor_files import write_tensor_file
from dcse_tf.errors import InputError, name_input
from dcse_tf.files import write_json
from dcse_tf.input_files import read_json_object


def zero_padding(inputs, is_real):
    """Float `[..., n, dim]` with zeros, even for NaN, wherever bool `[..., n]` is False."""
    return ops.where(ops.expand_dims(is_real, -1), inputs, ops.zeros((), inputs.dtype))


def masked_mean(inputs, is_real):
    """Mean over the axis n of float `[..., n, dim]`, of the entries that bool `[..., n]` marks."""
    total = ops.sum(zero_padding(inputs, is_real), axis=-2)
    count = ops.sum(ops.cast(ops.expand_dims(is_real, -1), inputs.dtype), axis=-2)
    return total / ops.maximum(count, ops.ones((), inputs.dtype))


@keras.saving.register_keras_serializable("dcse_tf")
class MaskedMeanPooling(keras.layers.Layer):
    """`masked_mean` (paper, 4.3; released code); zero without real entries."""

    def call(self, inputs, is_real):
        return masked_mean(inputs, is_real)


def inverse_root(squares):
    """1 / sqrt(x) for products of squared lengths x, finite at x = 0.

    The lower bound on x, 1e-24, keeps the gradient finite there too. R_tilde is cubic in the
    embeddings, so nonzero products are far above the bound.
    """
    return ops.rsqrt(ops.maximum(squares, ops.full((), 1e-24, squares.dtype)))


def unit(vectors):
    """Float `[..., dim]` scaled to length 1; a zero vector stays zero."""
    return vectors * inverse_root(ops.sum(vectors * vectors, axis=-1, keepdims=True))


@keras.saving.register_keras_serializable("dcse_tf")
class CosineSimilarity(keras.layers.Layer):
    """Cosine along the last axis; a zero vector has cosine 0 with everything.

    Under mixed precision, give it dtype="float32": in bfloat16 a cosine has two or three digits.
    """

    def call(self, first, second):
        """The cosine of two tensors, float `[..., dim]`: float `[...]`."""
        product = ops.sum(first * second, axis=-1)
        squares = ops.sum(first * first, axis=-1) * ops.sum(second * second, axis=-1)
        return product * inverse_root(squares)


@keras.saving.register_keras_serializable("dcse_tf")
class MatchingGuidedEmbedding(keras.layers.Layer):
    """Refines candidate responses by their matching matrices with context utterances.

    M = U R^T / sqrt(d) and R_hat = M R (paper, equations 3 and 4), without a softmax. The sum
    leaves out a candidate's padding; the rows of padded context tokens are zero.
    """

    def call(self, context, candidates, context_padding_mask, candidate_padding_mask):
        """R_hat of every context utterance and candidate of a row: from U, float `[batch, turns,
        context_tokens, dim]`, and R, float `[batch, candidates, tokens, dim]`, with their masks of
        real tokens, to float `[batch, candidates, turns, context_tokens, dim]`.
        """
        context = zero_padding(context, context_padding_mask)
        candidates = zero_padding(candidates, candidate_padding_mask)
        scale = float(context.shape[-1]) ** -0.5
        matching = ops.einsum("btid,bcjd->bctij", context, candidates) * scale
        return ops.einsum("bctij,bcjd->bctid", matching, candidates)


@keras.saving.register_keras_serializable("dcse_tf")
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
        width, activation = (256, "tanh") if additive else (dim, "relu")
        policy = {"dtype": self.dtype_policy}
        self.hidden = keras.layers.Dense(width, activation, name="hidden", **policy)
        self.output_ = keras.layers.Dense(1, use_bias=not additive, name="output", **policy)
        self.hidden.build((None, dim))
        self.output_.build((None, width))

    def score(self, refined):
        """The network's output for pooled R_hat: maps float `[..., dim]` to `[...]`."""
        return ops.squeeze(self.output_(self.hidden(refined)), -1)

    def weigh(self, scores, turn_mask):
        """Weights of the turns, float `[..., turns]`, from scores of that shape; zero where bool
        `[..., turns]` is False.
        """
        scores = ops.where(turn_mask, scores, ops.full((), -1e9, scores.dtype))
        # ops.softmax warns about an axis of one entry, which a context of one turn has. A constant
        # 1 would give the network no gradients at all, while an optimizer expects zeros.
        alone = scores.shape[-1] == 1
        alpha = ops.exp(scores - scores) if alone else ops.softmax(scores, axis=-1)
        weights = 1.0 + alpha if self.kind == "additive_attention" else alpha
        return ops.where(turn_mask, weights, ops.zeros((), weights.dtype))

    def call(self, refined, turn_mask):
        """Weights of the turns, float `[..., turns]`, from R_hat pooled over its tokens, float
        `[..., turns, dim]`, and bool `[..., turns]`, True = real turn.
        """
        return self.weigh(self.score(refined), turn_mask)


@keras.saving.register_keras_serializable("dcse_tf")
class TurnAggregation(keras.layers.Layer):
    """Averages refined embeddings over their tokens, then over the real turns (equation 7, I2), or
    sums the weighted turns (equation 5, I1).

    The paper averages matrices over turns and pools the result. Since utterances differ in length,
    each turn is pooled over its own real tokens first, so that all turns have equal weight. The
    `TurnAttention` is already built, possibly shared with other layers; None for the mean.
    """

    def __init__(self, attention=None, **kwargs):
        super().__init__(**kwargs)
        self.attention = attention

    def get_config(self):
        attention = keras.saving.serialize_keras_object(self.attention)
        return {**super().get_config(), "attention": attention}

    @classmethod
    def from_config(cls, config):
        attention = keras.saving.deserialize_keras_object(config["attention"])
        return super().from_config({**config, "attention": attention})

    def call(self, refined, context_padding_mask, turn_mask):
        """The pooled R_tilde, float `[batch, candidates, dim]`, from R_hat, float `[batch,
        candidates, turns, context_tokens, dim]`, bool `[batch, turns, context_tokens]`, True = real
        token, and bool `[batch, turns]`, True = real turn.
        """
        # The masks get an axis for the candidates, for all of which they are the same.
        turns = masked_mean(refined, ops.expand_dims(context_padding_mask, 1))
        turn_mask = ops.expand_dims(turn_mask, 1)
        if self.attention is None:
            return masked_mean(turns, turn_mask)
        return ops.sum(turns * ops.expand_dims(self.attention(turns, turn_mask), -1), axis=-2)


@keras.saving.register_keras_serializable("dcse_tf")
class NTXent(keras.layers.Layer):
    """-log softmax of the positive's similarity among the candidates', each divided by the
    temperature (paper, equation 8).
    """

    def __init__(self, temperature=0.1, **kwargs):
        super().__init__(**kwargs)
        self.temperature = temperature

    def call(self, similarity, candidate_mask):
        """The loss of every row, float `[batch]`, from float `[batch, candidates]`, in which column
        0 is the positive, and bool `[batch, candidates]`, True = a candidate.
        """
        # So far below every real logit, a cosine divided by the temperature, that exp gives 0.
        masked = ops.full((), -1e9, similarity.dtype)
        logits = ops.where(candidate_mask, similarity / self.temperature, masked)
        return ops.logsumexp(logits, axis=-1) - logits[:, 0]


def build_matching(dim: int, attention: TurnAttention | None = None) -> keras.Model:
    """The similarity of contexts and candidates from encoded utterances, equation by equation
    (paper, sections 4.2 to 4.4), with an attention to weight the turns (I1) or their mean (I2).

    Returns:
        A functional model from
            token_embeddings: float `[utterances, tokens, dim]`, the encoded table;
            padding_mask: bool `[utterances, tokens]`, True = real token;
            context_index: int32 `[batch, turns]` and candidate_index: int32
                `[batch, candidates]`, both into the table;
            turn_mask: bool `[batch, turns]`, True = real turn;
        to the similarity of each context and candidate, float32 `[batch, candidates]`.
    """
    kinds = {"padding_mask": "bool", "turn_mask": "bool"}
    kinds |= {"context_index": "int32", "candidate_index": "int32"}
    inputs = {x: keras.Input((None,), dtype=kind, name=x) for x, kind in kinds.items()}
    inputs["token_embeddings"] = keras.Input((None, dim), dtype="float32", name="token_embeddings")
    (context, context_mask), (candidates, candidate_mask) = (
        [ops.take(inputs[x], inputs[index], axis=0) for x in ("token_embeddings", "padding_mask")]
        for index in ("context_index", "candidate_index")
    )
    refine = MatchingGuidedEmbedding(dtype="float32", name="matching_guided_embedding")
    refined = refine(context, candidates, context_mask, candidate_mask)
    aggregate = TurnAggregation(attention, dtype="float32", name="turn_aggregation")
    context_aware = aggregate(refined, context_mask, inputs["turn_mask"])
    context_free = MaskedMeanPooling(dtype="float32", name="pooling")(candidates, candidate_mask)
    similarity = CosineSimilarity(dtype="float32", name="similarity")(context_aware, context_free)
    return keras.Model(inputs, similarity, name="matching")


def build_turn_attention(kind: str, dim: int, seed: int) -> TurnAttention:
    """A `TurnAttention` with weights drawn by (seed, position)."""
    attention = TurnAttention(kind, dtype="float32", name="turn_attention")
    attention.build((None, dim))
    initialize_weights(attention.trainable_variables, seed)
    return attention


def has_matching(folder: pathlib.Path) -> bool:
    """Whether an encoder's folder has files of its matching."""
    return any((folder / name).is_file() for name in (MATCHING_FILE, ATTENTION_FILE))


def write_matching(folder: pathlib.Path, attention: TurnAttention | None) -> None:
    """Writes into an encoder's folder that it learnt the matching, with the turns' attention."""
    write_json(folder / MATCHING_FILE, {"kind": "paper"})
    if attention:
        tensors = {variable.path: variable.numpy() for variable in attention.variables}
        settings = {"kind": attention.kind, "dim": str(attention.hidden.kernel.shape[0])}
        write_tensor_file(folder / ATTENTION_FILE, tensors, settings)


def read_attention(folder: pathlib.Path) -> TurnAttention | None:
    """The attention of an encoder's matching, None for the mean of the turns; InputError if a file
    is damaged, or names a matching that was removed.
    """
    path = folder / MATCHING_FILE
    if path.is_file() and (kind := read_json_object(path).get("kind")) != "paper":
        raise InputError(
            f"{path}: trained with the matching {kind!r:.40}, which was removed; expected 'paper' "
            "(docs/tried.md names the commit that has it)"
        )
    path = folder / ATTENTION_FILE
    if not path.is_file():
        return None
    wrong = OSError, KeyError, ValueError, TypeError, safetensors.SafetensorError
    named = name_input(f"{path}: expected the weights of a turn attention", *wrong)
    with named, safetensors.safe_open(path, framework="numpy") as file:
        settings = file.metadata()
        attention = build_turn_attention(settings["kind"], int(settings["dim"]), 0)
        for variable in attention.variables:
            variable.assign(file.get_tensor(variable.path))
    return attention
