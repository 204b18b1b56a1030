"""Incoherence detection: which turn is from another session? (Xu et al. 2020, section 2.3.3)"""

from typing import TYPE_CHECKING

from dcse_tf.tasks.spec import Term
from dcse_tf.tasks.terms.answers import choose

if TYPE_CHECKING:
    from collections.abc import Mapping

    import keras

    from dcse_tf.data.dialogue_step import DialogueStep, Segments
    from dcse_tf.reading.cross_encoder import Reader
    from dcse_tf.tasks.objective import Encoded


class Incoherence(Term):
    """Cross entropy of scores of a dialogue's turns, see `TurnScores`.

    Metrics: accuracy, and chance, that of guessing.
    """

    name = "incoherence"

    def build(self, reader: "Reader") -> None:
        from dcse_tf.bert.bert import initialize_weights
        from dcse_tf.reading.cross_encoder import TurnScores

        options = self.setup.options
        self.head = TurnScores(options.context_turns + 1, dtype="float32", name=self.name)
        self.head.build((None, reader.dim), (None,), (None,))
        initialize_weights(self.head.trainable_variables, options.seed + 14)

    def draw(self, step: "DialogueStep") -> "Segments":
        from dcse_tf.data.dialogue_tasks import draw_incoherence

        return draw_incoherence(step)

    def compute(
        self, encoded: "Encoded", rows: "Mapping[str, keras.KerasTensor]"
    ) -> "dict[str, keras.KerasTensor]":
        from keras import ops

        tokens = ops.take(encoded.tokens, rows["places"], axis=0)
        turn_ids = rows["rows"] * self.head.turns + rows["turns"]
        scores = self.head(tokens, turn_ids, rows["labels"])
        turns = ops.sum(ops.cast(scores > -1e8, "float32"), axis=1)
        return {**choose(scores, rows["labels"]), "chance": 1.0 / ops.maximum(turns, 1.0)}
