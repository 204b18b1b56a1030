"""Masked language modelling (paper, section 5.3; Devlin et al. 2019), of single texts."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from dcse_tf.bert import bert
from dcse_tf.data.dialogue_step import Segments
from dcse_tf.data.masking import MaskingRule, mask_tokens
from dcse_tf.data.table import ROWS, Rows
from dcse_tf.reading.cross_encoder import Reader, predict_tokens
from dcse_tf.tasks.objective import Encoded
from dcse_tf.tasks.spec import KerasTensors, Setup, Term


class MaskedLm(Term):
    """Cross entropy of masked tokens of the step's texts. Metrics: accuracy.

    BERT's prediction head is initialised from the checkpoint, or at random if it has none.

    Args:
        setup: the training's setup, with `MaskingOptions`.
    """

    name = "masked_lm"

    def build(self, reader: Reader) -> None:
        options, tensors = self.setup.options, self.setup.tensors
        self.head = bert.build_masked_lm_head(reader.token_embedding, self.setup.backbone)
        self.head.build((None, None, reader.dim))
        source = options.encoder or options.encoder_size
        if not bert.load_masked_lm_head(self.head, tensors, source):
            bert.initialize_weights(bert.own_variables(self.head), options.seed + 1)

    def draw(self, step: Any) -> Rows | Segments:
        # Each text has the corpus' prefix, whose tokens are not predicted.
        rule = make_masking_rule(self.setup, self.setup.vocabulary.count_prefix())
        hidden, asked = mask_tokens(step.token_ids, rule, step.seed(ROWS))
        weights = tf.ones_like(hidden, tf.float32)
        tokens = {"asked": asked, "ids": step.token_ids, "weights": weights}
        return Rows({"text": step.add_apart(hidden)}, tokens=tokens)

    def compute(self, encoded: Encoded, rows: KerasTensors) -> KerasTensors:
        return choose(predict_tokens(self.head, encoded.tokens, rows["places"]), rows["ids"])

    def find_chance(self, arrays: Mapping[str, np.ndarray]) -> float | None:
        return share_of_most_frequent(arrays["ids"], arrays["weights"])


def make_masking_rule(setup: Setup, prefix_tokens: int = 0) -> MaskingRule:
    """How tokens are masked; those of a prefix and special tokens never are."""
    return MaskingRule(
        mask_rate=setup.options.mask_rate,
        max_predictions=setup.options.max_predictions,
        mask_id=setup.vocabulary.mask_id,
        special_ids=setup.vocabulary.special_ids,
        vocabulary_size=len(setup.vocabulary.tokens),
        prefix_tokens=prefix_tokens,
    )


def choose(logits: keras.KerasTensor, answers: keras.KerasTensor) -> KerasTensors:
    """The answer's cross entropy, and whether its logit is the largest.

    Args:
        logits: float `[rows, classes]`.
        answers: int32 `[rows]`, the right classes.

    Returns:
        loss and accuracy, float32 `[rows]`.
    """
    right = ops.take_along_axis(logits, ops.expand_dims(answers, -1), axis=-1)[:, 0]
    hits = ops.equal(ops.argmax(logits, axis=-1), ops.cast(answers, "int32"))
    return {"loss": ops.logsumexp(logits, axis=-1) - right, "accuracy": ops.cast(hits, "float32")}


def share_of_most_frequent(answers: np.ndarray, weights: np.ndarray) -> float:
    """The accuracy of always giving the most frequent answer."""
    shares = np.bincount(answers, weights)
    return float(shares.max() / max(shares.sum(), 1e-9))
