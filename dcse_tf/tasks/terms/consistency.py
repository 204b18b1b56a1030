"""Consistency discrimination: are two turns by one speaker? (Xu et al. 2020, section 2.3.4)"""

import dataclasses
from typing import TYPE_CHECKING

from dcse_tf.options import option
from dcse_tf.tasks.options import TermOptions
from dcse_tf.tasks.spec import Term
from dcse_tf.tasks.terms.answers import score_best_rule
from dcse_tf.tasks.terms.matching import build_selection_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    import keras
    import numpy as np

    from dcse_tf.data.dialogue_step import DialogueStep, Segments
    from dcse_tf.reading.cross_encoder import Reader
    from dcse_tf.tasks.objective import Encoded


@dataclasses.dataclass(frozen=True)
class ConsistencyOptions(TermOptions):
    """Options of `Consistency`."""

    consistency_margin: float = option(
        0.6,
        "By how much the consistency of two turns by one speaker, from 0 to 1, must exceed "
        "that of two turns from different sessions.",
        minimum=0.0,
        maximum=1.0,
    )


class Consistency(Term):
    """Hinge loss of pairs of rows: a turn with another turn of its speaker must score higher, by a
    margin, than with a turn of another session (equation 9).

    Metrics: accuracy, how often it scores higher at all.
    """

    name = "consistency"
    options = ConsistencyOptions

    def build(self, reader: "Reader") -> None:
        self.head = build_selection_head(self.setup, reader, self.name, 2)

    def draw(self, step: "DialogueStep") -> "Segments":
        from dcse_tf.data.dialogue_tasks import draw_consistency

        return draw_consistency(step)

    def compute(
        self, encoded: "Encoded", rows: "Mapping[str, keras.KerasTensor]"
    ) -> "dict[str, keras.KerasTensor]":
        from keras import ops

        logits = self.head(encoded.take_vectors(rows["text"]))
        scores = ops.reshape(ops.sigmoid(logits), (-1, 2))
        losses = ops.relu(self.setup.options.consistency_margin - scores[:, 0] + scores[:, 1])
        hits = ops.cast(scores[:, 0] > scores[:, 1], "float32")
        # Both rows of a pair have its loss.
        return {"loss": ops.repeat(losses, 2), "accuracy": ops.repeat(hits, 2)}

    def find_chance(self, arrays: "Mapping[str, np.ndarray]") -> float | None:
        return score_best_rule(arrays)
