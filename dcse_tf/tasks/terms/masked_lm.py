"""Masked language modelling (paper, section 5.3; Devlin et al. 2019)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dcse_tf.tasks.spec import Setup, Term
from dcse_tf.tasks.terms.answers import choose, share_of_most_frequent

if TYPE_CHECKING:
    import keras
    import numpy as np

    from dcse_tf.data.dialogue_step import Segments
    from dcse_tf.data.masking import MaskingRule
    from dcse_tf.data.table import Rows
    from dcse_tf.reading.cross_encoder import Reader
    from dcse_tf.tasks.objective import Encoded


class MaskedLm(Term):
    """Cross entropy of masked tokens of the step's texts. Metrics: accuracy.

    BERT's prediction head is initialised from the checkpoint, or at random if it has none.

    Args:
        setup: the training's setup, with `MaskingOptions`.
    """

    name = "masked_lm"

    def build(self, reader: "Reader") -> None:
        from dcse_tf.tasks.writing import build_prediction_head

        self.head = build_prediction_head(self.setup, reader)

    def draw(self, step: Any) -> "Rows | Segments":
        import tensorflow as tf

        from dcse_tf.data.masking import mask_tokens
        from dcse_tf.data.table import ROWS, Rows

        # Each text has the corpus' prefix, whose tokens are not predicted.
        rule = make_masking_rule(self.setup, self.setup.vocabulary.count_prefix())
        hidden, asked = mask_tokens(step.token_ids, rule, step.seed(ROWS))
        weights = tf.ones_like(hidden, tf.float32)
        tokens = {"asked": asked, "ids": step.token_ids, "weights": weights}
        return Rows({"text": step.add_apart(hidden)}, tokens=tokens)

    def compute(
        self, encoded: "Encoded", rows: "Mapping[str, keras.KerasTensor]"
    ) -> "dict[str, keras.KerasTensor]":
        from dcse_tf.reading.cross_encoder import predict_tokens

        return choose(predict_tokens(self.head, encoded.tokens, rows["places"]), rows["ids"])

    def find_chance(self, arrays: "Mapping[str, np.ndarray]") -> float | None:
        return share_of_most_frequent(arrays["ids"], arrays["weights"])


def make_masking_rule(setup: Setup[Any], prefix_tokens: int = 0) -> "MaskingRule":
    """How tokens are masked; those of a prefix and special tokens never are."""
    from dcse_tf.data.masking import MaskingRule

    return MaskingRule(
        mask_rate=setup.options.mask_rate,
        max_predictions=setup.options.max_predictions,
        mask_id=setup.vocabulary.mask_id,
        special_ids=setup.vocabulary.special_ids,
        vocabulary_size=len(setup.vocabulary.tokens),
        prefix_tokens=prefix_tokens,
    )
