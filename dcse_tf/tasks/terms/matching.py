"""Response matching: does a response follow a context? (Xu et al. 2020, section 2.2)"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dcse_tf.tasks.spec import Setup, Term
from dcse_tf.tasks.terms.answers import decide, score_best_rule

if TYPE_CHECKING:
    import keras
    import numpy as np

    from dcse_tf.data.dialogue_step import DialogueStep, Segments
    from dcse_tf.reading.cross_encoder import PairHead, Reader
    from dcse_tf.tasks.objective import Encoded


class Match(Term):
    """Binary cross entropy of a head on the vector of [CLS] context [SEP] response [SEP].

    Metrics: accuracy.

    Args:
        setup: the training's setup, with `ResponseSelectionOptions`.
    """

    name = "matching"

    def build(self, reader: "Reader") -> None:
        self.head = build_selection_head(self.setup, reader, self.name, 0)

    def draw(self, step: "DialogueStep") -> "Segments":
        from dcse_tf.data.dialogue_tasks import draw_matching

        return draw_matching(step, self.setup.options.negatives)

    def compute(
        self, encoded: "Encoded", rows: "Mapping[str, keras.KerasTensor]"
    ) -> "dict[str, keras.KerasTensor]":
        return decide(self.head(encoded.take_vectors(rows["text"])), rows["labels"])

    def find_chance(self, arrays: "Mapping[str, np.ndarray]") -> float | None:
        return score_best_rule(arrays)


def build_selection_head(setup: Setup[Any], reader: "Reader", name: str, number: int) -> "PairHead":
    """A head of response selection on sequence vectors, with weights drawn by its number."""
    from dcse_tf.reading.cross_encoder import build_pair_head

    options = setup.options
    hidden = setup.backbone.hidden_dim if setup.backbone else options.lstm_units
    if name == "matching" and options.architecture == "dual_lstm":
        hidden = 0  # its vectors are products, whose sum is the score
    sizes = (reader.vector_dim, hidden)
    return build_pair_head(name, sizes, 1, options.seed + 11 + number, setup.tensors)
