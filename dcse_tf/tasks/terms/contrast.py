"""Contrasts a response with responses of other sessions, given its context (the paper's loss)."""

from typing import TYPE_CHECKING, Any

from dcse_tf.tasks.spec import KerasTensors, Setup, Term

if TYPE_CHECKING:
    import keras

    from dcse_tf.data.table import Rows
    from dcse_tf.reading.cross_encoder import Reader
    from dcse_tf.tasks.objective import Encoded


class Contrast(Term):
    """NT-Xent over the similarities of a context with its response and negatives (equation 8).

    Args:
        setup, weight: see `Term`; its options are `ContrastOptions` and `BatchOptions`.
        similarity: "matching", the paper's; "cosine", that of the response's embedding and the mean
            of its context's; "projected", the same behind the projection heads.
        first_dims: cosine: only this many leading dimensions are compared; 0 for all.

    Metrics of the main contrast, which has no label: accuracy (the positive is strictly above every
    negative), positive_similarity and negative_similarity (the mean over a row's negatives).
    """

    name, rows = "contrast", "responses"

    def __init__(
        self, setup: Setup, weight: float, similarity: str = "matching", first_dims: int = 0
    ):
        super().__init__(setup, weight)
        self.similarity, self.first_dims = similarity, first_dims
        self.label = f"{similarity}_{first_dims}" if first_dims else similarity

    def draw(self, step: Any) -> "Rows":
        from dcse_tf.data.responses import draw_candidates

        return draw_candidates(step, self.setup.options.negatives)

    def compare(self, encoded: "Encoded", rows: KerasTensors) -> "keras.KerasTensor":
        """The similarities of each row's candidates, float32 `[rows, 1 + negatives]`."""
        from keras import ops

        from dcse_tf.matching.pair_similarity import build_pair_similarity

        parts = self.setup.parts
        given = parts.attention, parts.heads, self.first_dims
        compare = build_pair_similarity(self.similarity, *given)
        of_all = compare(encoded.table, encoded.padding_mask, rows["context"], rows["turn_mask"])
        return ops.take_along_axis(of_all, rows["candidates"], axis=1)

    def compute(self, encoded: "Encoded", rows: KerasTensors) -> KerasTensors:
        values = self._contrast(self.compare(encoded, rows), rows, "similarity")
        return {"loss": values["loss"]} if self.label else values

    def count(self, rows: KerasTensors) -> KerasTensors:
        from keras import ops

        # The rows that have no negative, and so teach nothing.
        return {} if self.label else {"without_negatives": ops.sum(1.0 - rows["weights"])}

    def _contrast(self, values: "keras.KerasTensor", rows: KerasTensors, name: str) -> KerasTensors:
        """The loss of equation 8, accuracy, positive_NAME and negative_NAME of each row.

        `values`, float `[rows, candidates]`, are similarities or scores; column 0 is the positive.
        """
        from keras import ops

        from dcse_tf.matching.equations import NTXent

        mask = rows["candidate_mask"]
        loss = NTXent(self.setup.options.temperature, dtype="float32")(values, mask)
        positive, negatives, real = values[:, 0], values[:, 1:], mask[:, 1:]
        count = ops.maximum(ops.sum(ops.cast(real, "float32"), axis=1), 1.0)
        hardest = ops.max(ops.where(real, negatives, -3e38), axis=1)
        return {
            "loss": loss,
            "accuracy": ops.cast(positive > hardest, "float32"),
            f"positive_{name}": positive,
            f"negative_{name}": ops.sum(ops.where(real, negatives, 0.0), axis=1) / count,
        }


class ViewContrast(Contrast):
    """Contrasts, by cosine, an utterance under another dropout with others (Gao et al. 2021)."""

    def __init__(self, setup: Setup):
        super().__init__(setup, 1.0, "cosine")
        self.label = ""

    def draw(self, step: Any) -> "Rows":
        from dcse_tf.data.responses import draw_views

        return draw_views(step)


class ScorePairs(Contrast):
    """Equation 8 with the scores of a network on [u, v, |u - v|] as similarities (SiameseBERT).

    A context is one text of the table: a turn (SiameseBERT_S), or turns joined to one sequence
    (SiameseBERT_M) of at most `context_tokens` tokens. Its embedding u and a candidate's v are
    means over their tokens.
    """

    name = "pair_score"

    def __init__(self, setup: Setup, context_tokens: int = 0):
        super().__init__(setup, 1.0)
        self.label = ""
        self._context_tokens = context_tokens

    def build(self, reader: "Reader") -> None:
        from dcse_tf.bert.bert import initialize_weights
        from dcse_tf.matching.pair_similarity import PairScore

        options = self.setup.options
        self.network = PairScore(options.negatives == 0, dtype="float32", name="pair_score")
        vectors = None, self.setup.encoder.output_shape[-1]
        self.network.build(vectors, vectors, (None, None))
        initialize_weights(self.network.trainable_variables, options.seed + 3)

    def draw(self, step: Any) -> "Rows":
        from dcse_tf.data.responses import draw_joined_contexts

        if not self._context_tokens:
            return super().draw(step)
        options = self.setup.options
        before = options.context.turns
        return draw_joined_contexts(step, options.negatives, before, self._context_tokens)

    def compute(self, encoded: "Encoded", rows: KerasTensors) -> KerasTensors:
        from keras import ops

        from dcse_tf.matching.equations import masked_mean

        sentences = masked_mean(encoded.table, encoded.padding_mask)
        context = ops.take(sentences, rows["context"][:, 0], axis=0)
        return self._contrast(self.network(context, sentences, rows["candidates"]), rows, "score")
