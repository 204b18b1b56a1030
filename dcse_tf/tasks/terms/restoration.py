"""Utterance restoration: which tokens did a masked turn have? (Xu et al. 2020, section 2.3.2)"""

from typing import TYPE_CHECKING, Any

from dcse_tf.tasks.terms.masked_lm import MaskedLm

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from dcse_tf.data.dialogue_step import Segments
    from dcse_tf.reading.cross_encoder import Reader


class Restore(MaskedLm):
    """Cross entropy of the tokens of a turn of which all are masked. Metrics: accuracy.

    Token embeddings that are not a BERT's are larger, so the head on them starts smaller.
    """

    name = "restoration"

    def build(self, reader: "Reader") -> None:
        from dcse_tf.bert.masked_lm import shrink_logits

        super().build(reader)
        if not self.setup.backbone:
            shrink_logits(self.head, reader.dim**-0.5)

    def draw(self, step: Any) -> "Segments":
        from dcse_tf.data.dialogue_tasks import draw_restoration

        return draw_restoration(step, self.setup.vocabulary.mask_id)

    def find_chance(self, arrays: "Mapping[str, np.ndarray]") -> float | None:
        return None
