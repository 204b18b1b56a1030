"""SiameseBERT: a network scores pairs of embeddings (the paper's trained baselines)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dcse_tf.tasks.spec import Setup, Term
from dcse_tf.tasks.terms.contrast import contrast, count_without_negatives

if TYPE_CHECKING:
    import keras

    from dcse_tf.data.responses import ResponseStep
    from dcse_tf.data.table import Rows
    from dcse_tf.reading.cross_encoder import Reader
    from dcse_tf.tasks.objective import Encoded


class ScorePairs(Term):
    """Equation 8 with the scores of a network on [u, v, |u - v|] as similarities.

    A context is one text of the table: a turn (SiameseBERT_S), or turns joined to one sequence
    (SiameseBERT_M). Its embedding u and a candidate's v are means over their tokens. The metrics
    are those of `Contrast`.

    Args:
        setup: the training's setup, with `SiameseSingleOptions`.
        context_tokens: the largest number of tokens of a context joined to one sequence; 0 for a
            context of one turn.
    """

    name = "pair_score"

    def __init__(self, setup: Setup[Any], context_tokens: int = 0):
        super().__init__(setup, 1.0)
        self.rows, self.label = "responses", ""
        self._context_tokens = context_tokens

    def build(self, reader: "Reader") -> None:
        from dcse_tf.bert.bert import initialize_weights
        from dcse_tf.matching.pair_similarity import PairScore

        self.network = PairScore(
            self.setup.options.negatives == 0, dtype="float32", name="pair_score"
        )
        self.network.build((None, reader.dim), (None, reader.dim), (None, None))
        initialize_weights(self.network.trainable_variables, self.setup.options.seed + 3)

    def draw(self, step: "ResponseStep") -> "Rows":
        from dcse_tf.data.responses import draw_candidates, draw_joined_contexts

        options = self.setup.options
        if not self._context_tokens:
            return draw_candidates(step, options.negatives)
        before = options.context.turns
        return draw_joined_contexts(step, options.negatives, before, self._context_tokens)

    def compute(
        self, encoded: "Encoded", rows: "Mapping[str, keras.KerasTensor]"
    ) -> "dict[str, keras.KerasTensor]":
        from keras import ops

        from dcse_tf.matching.matching import MaskedMeanPooling

        pool = MaskedMeanPooling(dtype="float32", name="pooling")
        sentences = pool(encoded.table, encoded.padding_mask)
        context = ops.take(sentences, rows["context"][:, 0], axis=0)
        scores = self.network(context, sentences, rows["candidates"])
        return contrast(scores, rows["candidate_mask"], self.setup.options.temperature, "score")

    def count(self, rows: "Mapping[str, keras.KerasTensor]") -> "Mapping[str, keras.KerasTensor]":
        return count_without_negatives(rows)
