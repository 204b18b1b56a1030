"""The terms of response selection (BERT-SL, Xu et al. 2020) and of its post-training."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from dcse_tf.bert.bert import initialize_weights, shrink_logits
from dcse_tf.data import dialogue_tasks
from dcse_tf.data.dialogue_step import DialogueStep, Segments
from dcse_tf.reading.cross_encoder import Reader, TurnScores, build_pair_head
from dcse_tf.tasks.objective import Encoded
from dcse_tf.tasks.spec import KerasTensors, Setup, Term
from dcse_tf.tasks.terms.tokens import (
    MaskedLm,
    choose,
    make_masking_rule,
    share_of_most_frequent,
)


class Match(Term):
    """Does a response follow a context? Binary cross entropy of a head on the vector of
    [CLS] context [SEP] response [SEP] (section 2.2). Metrics: accuracy.

    Args:
        setup: the training's setup, with `ResponseSelectionOptions`.
    """

    name = "matching"
    number = 0  # by which the head's initial weights differ from another term's

    def build(self, reader: Reader) -> None:
        options, backbone = self.setup.options, self.setup.backbone
        hidden = backbone.hidden_dim if backbone else options.lstm_units
        if self.name == "matching" and options.architecture == "dual_lstm":
            hidden = 0  # its vectors are products, whose sum is the score
        sizes, seed = (reader.vector_dim, hidden), options.seed + 11 + self.number
        self.head = build_pair_head(self.name, sizes, self._classes, seed, self.setup.tensors)

    @property
    def _classes(self) -> int:
        return 1

    def draw(self, step: DialogueStep) -> Segments:
        return dialogue_tasks.draw_matching(step, self.setup.options.negatives)

    def compute(self, encoded: Encoded, rows: KerasTensors) -> KerasTensors:
        logits, labels = self.head(encoded.take_vectors(rows["text"])), rows["labels"]
        hits = ops.cast(ops.equal(logits > 0.0, labels > 0.5), "float32")
        return {"loss": ops.softplus(logits) - labels * logits, "accuracy": hits}

    def find_chance(self, arrays: Mapping[str, np.ndarray]) -> float | None:
        return score_best_rule(arrays)


class NextSession(Match):
    """Are two pieces of dialogue consecutive? (section 2.3.1) Otherwise as `Match`."""

    name, number = "next_session", 1

    def draw(self, step: DialogueStep) -> Segments:
        return dialogue_tasks.draw_next_session(step)


class Consistency(Match):
    """Are two turns by one speaker? A turn with another turn of its speaker must score higher, by a
    margin, than with a turn of another session (section 2.3.4, equation 9): a hinge loss of pairs
    of rows. Metrics: accuracy, how often it scores higher at all.
    """

    name, number = "consistency", 2

    def draw(self, step: DialogueStep) -> Segments:
        return dialogue_tasks.draw_consistency(step)

    def compute(self, encoded: Encoded, rows: KerasTensors) -> KerasTensors:
        logits = self.head(encoded.take_vectors(rows["text"]))
        scores = ops.reshape(ops.sigmoid(logits), (-1, 2))
        losses = ops.relu(self.setup.options.consistency_margin - scores[:, 0] + scores[:, 1])
        hits = ops.cast(scores[:, 0] > scores[:, 1], "float32")
        # Both rows of a pair have its loss.
        return {"loss": ops.repeat(losses, 2), "accuracy": ops.repeat(hits, 2)}


class Incoherence(Term):
    """Which turn is from another session? (section 2.3.3) Cross entropy of scores of a dialogue's
    turns, see `TurnScores`. Metrics: accuracy, and chance, that of guessing.
    """

    name = "incoherence"

    def build(self, reader: Reader) -> None:
        options = self.setup.options
        self.head = TurnScores(options.context_turns + 1, dtype="float32", name=self.name)
        self.head.build((None, reader.dim), (None,), (None,))
        initialize_weights(self.head.trainable_variables, options.seed + 14)

    def draw(self, step: DialogueStep) -> Segments:
        return dialogue_tasks.draw_incoherence(step)

    def compute(self, encoded: Encoded, rows: KerasTensors) -> KerasTensors:
        tokens = ops.take(encoded.tokens, rows["places"], axis=0)
        turn_ids = rows["rows"] * self.head.turns + rows["turns"]
        scores = self.head(tokens, turn_ids, rows["labels"])
        turns = ops.sum(ops.cast(scores > -1e8, "float32"), axis=1)
        return {**choose(scores, rows["labels"]), "chance": 1.0 / ops.maximum(turns, 1.0)}


class Restore(MaskedLm):
    """Which tokens did a turn have of which all are masked? (section 2.3.2) Metrics: accuracy.

    Token embeddings that are not a BERT's are larger, so the head on them starts smaller.
    """

    name = "restoration"

    def build(self, reader: Reader) -> None:
        super().build(reader)
        if not self.setup.backbone:
            shrink_logits(self.head, reader.dim**-0.5)

    def draw(self, step: Any) -> Segments:
        return dialogue_tasks.draw_restoration(step, self.setup.vocabulary.mask_id)

    def find_chance(self, arrays: Mapping[str, np.ndarray]) -> float | None:
        return None


AUXILIARY: tuple[type[Term], ...] = (NextSession, Restore, Incoherence, Consistency)


class SegmentPairs(Match):
    """Post-training: cross entropy of the relation of two segments, as in BERT's pre-training.
    Metrics: accuracy.

    Args:
        setup: the training's setup, with `PostTrainingOptions`.
    """

    name = "pairs"

    @property
    def _classes(self) -> int:
        return dialogue_tasks.PAIRS[self.setup.options.pairs]

    def draw(self, step: DialogueStep) -> Segments:
        rule = make_masking_rule(self.setup)
        return dialogue_tasks.draw_pairs(step, self.setup.options.pairs, rule)

    def compute(self, encoded: Encoded, rows: KerasTensors) -> KerasTensors:
        return choose(self.head(encoded.take_vectors(rows["text"])), rows["labels"])

    def find_chance(self, arrays: Mapping[str, np.ndarray]) -> float | None:
        return share_of_most_frequent(arrays["labels"], arrays["weights"])


class MaskedLmOfPairs(MaskedLm):
    """Post-training: masked tokens of the pairs' sequences. Metrics: accuracy."""

    def __init__(self, setup: Setup, weight: float | None = None):
        super().__init__(setup, weight)
        self.rows = SegmentPairs.name

    def compute(self, encoded: Encoded, rows: KerasTensors) -> KerasTensors:
        weights = {"weights": rows["token_weights"], "total": rows["token_weights_total"]}
        return {**super().compute(encoded, rows), **weights}

    def find_chance(self, arrays: Mapping[str, np.ndarray]) -> float | None:
        return share_of_most_frequent(arrays["ids"], arrays["token_weights"])


def score_best_rule(arrays: Mapping[str, np.ndarray]) -> float | None:
    """How far examples of two classes can be told apart without reading them.

    Args:
        arrays: labels, 0 or 1, weights and hints of all examples.

    Returns:
        The accuracy of the rule that answers by the more frequent label among the examples with the
        same hint. Each half of the examples is answered by the rule made from the other half, so
        that a rule does not gain from what is chance. None without any example.
    """
    labels, weights, hints = (arrays[name] for name in ("labels", "weights", "hints"))
    if not weights.any():
        return None
    votes = (2.0 * labels - 1.0) * weights
    first, right = np.arange(len(hints)) < len(hints) // 2, 0.0
    for own in (first, ~first):
        table = np.bincount(hints[~own], votes[~own], minlength=hints.max() + 1)
        right += weights[own] @ ((table[hints[own]] > 0.0) == (labels[own] > 0.5))
    return float(right / weights.sum())
