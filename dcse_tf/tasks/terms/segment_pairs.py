"""Post-training's two terms: the relation of two segments, and masked tokens of both."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dcse_tf.tasks.spec import Setup, Term
from dcse_tf.tasks.terms.answers import choose, share_of_most_frequent
from dcse_tf.tasks.terms.masked_lm import MaskedLm, make_masking_rule

if TYPE_CHECKING:
    import keras
    import numpy as np

    from dcse_tf.data.dialogue_step import DialogueStep, Segments
    from dcse_tf.reading.cross_encoder import Reader
    from dcse_tf.tasks.objective import Encoded


class SegmentPairs(Term):
    """Cross entropy of the relation of two segments, as in BERT's pre-training. Metrics: accuracy.

    Args:
        setup: the training's setup, with `PostTrainingOptions`.
    """

    name = "pairs"

    def build(self, reader: "Reader") -> None:
        from dcse_tf.data.dialogue_tasks import PAIRS
        from dcse_tf.reading.cross_encoder import build_pair_head

        setup, sizes = self.setup, (reader.vector_dim, reader.vector_dim)
        classes, seed = PAIRS[setup.options.pairs], setup.options.seed + 11
        self.head = build_pair_head("pairs", sizes, classes, seed, setup.tensors)

    def draw(self, step: "DialogueStep") -> "Segments":
        from dcse_tf.data.dialogue_tasks import draw_pairs

        return draw_pairs(step, self.setup.options.pairs, make_masking_rule(self.setup))

    def compute(
        self, encoded: "Encoded", rows: "Mapping[str, keras.KerasTensor]"
    ) -> "dict[str, keras.KerasTensor]":
        return choose(self.head(encoded.take_vectors(rows["text"])), rows["labels"])

    def find_chance(self, arrays: "Mapping[str, np.ndarray]") -> float | None:
        return share_of_most_frequent(arrays["labels"], arrays["weights"])


class MaskedLmOfPairs(MaskedLm):
    """Cross entropy of masked tokens of the pairs' sequences. Metrics: accuracy."""

    def __init__(self, setup: Setup[Any], weight: float | None = None):
        super().__init__(setup, weight)
        self.rows = SegmentPairs.name

    def compute(
        self, encoded: "Encoded", rows: "Mapping[str, keras.KerasTensor]"
    ) -> "dict[str, keras.KerasTensor]":
        weights = {"weights": rows["token_weights"], "total": rows["token_weights_total"]}
        return {**super().compute(encoded, rows), **weights}

    def find_chance(self, arrays: "Mapping[str, np.ndarray]") -> float | None:
        return share_of_most_frequent(arrays["ids"], arrays["token_weights"])
