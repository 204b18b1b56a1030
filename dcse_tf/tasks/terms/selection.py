"""The terms of masked language modelling (Devlin et al. 2019; section 5.3 of the paper), of
response selection (BERT-SL, Xu et al. 2020) and of its post-training.
"""

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from dcse_tf.bert import bert
from dcse_tf.data import dialogue_step
from dcse_tf.data.dialogue_step import DialogueStep, Segments
from dcse_tf.data.responses import MaskingRule, mask_tokens
from dcse_tf.data.table import ROWS, Rows
from dcse_tf.reading.cross_encoder import Reader, TurnScores, build_pair_head, predict_tokens
from dcse_tf.tasks.objective import Encoded
from dcse_tf.tasks.spec import KerasTensors, Setup, Term

_MARGIN = 0.6  # of consistency, as in the author's code; the paper's text lacks it


class MaskedLm(Term):
    """Cross entropy of masked tokens of the step's texts. Metrics: accuracy.

    BERT's prediction head is initialised from the checkpoint, or at random if it has none.
    """

    name = "masked_lm"

    def build(self, reader: Reader) -> None:
        options, tensors = self.setup.options, self.setup.tensors
        self.head = bert.build_masked_lm_head(reader.token_embedding, self.setup.backbone)
        self.head.build((None, None, reader.dim))
        source = options.encoder or options.encoder_size
        if not bert.load_masked_lm_head(self.head, tensors, source):
            tied = reader.token_embedding.embeddings
            own = [variable for variable in self.head.trainable_variables if variable is not tied]
            bert.initialize_weights(own, options.seed + 1)

    def draw(self, step: Any) -> Rows | Segments:
        # Each text has the corpus' prefix, whose tokens are not predicted.
        rule = _make_masking_rule(self.setup, self.setup.vocabulary.count_prefix())
        hidden, asked = mask_tokens(step.token_ids, rule, step.seed(ROWS))
        weights = tf.ones_like(hidden, tf.float32)
        tokens = {"asked": asked, "ids": step.token_ids, "weights": weights}
        return Rows({"text": step.add_apart(hidden)}, tokens=tokens)

    def compute(self, encoded: Encoded, rows: KerasTensors) -> KerasTensors:
        return _choose(predict_tokens(self.head, encoded.tokens, rows["places"]), rows["ids"])


class Match(Term):
    """Does a response follow a context? Binary cross entropy of a head on the vector of
    [CLS] context [SEP] response [SEP] (section 2.2). Metrics: accuracy.
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
        return dialogue_step.draw_matching(step, self.setup.options.negatives)

    def compute(self, encoded: Encoded, rows: KerasTensors) -> KerasTensors:
        return self._grade(self.head(encoded.take_vectors(rows["text"])), rows["labels"])

    def _grade(self, logits: keras.KerasTensor, labels: keras.KerasTensor) -> KerasTensors:
        """The loss and the accuracy of rows, given what the head says of them."""
        hits = ops.cast(ops.equal(logits > 0.0, labels > 0.5), "float32")
        return {"loss": ops.softplus(logits) - labels * logits, "accuracy": hits}


class NextSession(Match):
    """Are two pieces of dialogue consecutive? (section 2.3.1) Otherwise as `Match`.

    Attributes:
        teaches: the matching, if its head scores these rows too.
    """

    name, number = "next_session", 1
    teaches: Match | None = None

    def build(self, reader: Reader) -> None:
        if self.teaches:
            self.head = self.teaches.head
        else:
            super().build(reader)

    def draw(self, step: DialogueStep) -> Segments:
        return dialogue_step.draw_next_session(step)


class Consistency(Match):
    """Are two turns by one speaker? A turn with another turn of its speaker must score higher, by a
    margin, than with a turn of another session (section 2.3.4, equation 9): a hinge loss of pairs
    of rows; or the two are told apart as classes. Metrics: accuracy, how often it scores higher.
    """

    name, number = "consistency", 2

    def draw(self, step: DialogueStep) -> Segments:
        return dialogue_step.draw_consistency(step)

    def _grade(self, logits: keras.KerasTensor, labels: keras.KerasTensor) -> KerasTensors:
        own, strange = ops.unstack(ops.reshape(ops.sigmoid(logits), (-1, 2)), axis=1)
        # Both rows of a pair have its loss and its accuracy.
        values = {"accuracy": ops.repeat(ops.cast(own > strange, "float32"), 2)}
        if self.setup.options.consistency == "margin":
            values["loss"] = ops.repeat(ops.relu(_MARGIN - own + strange), 2)
        return {**super()._grade(logits, labels), **values}


class Incoherence(Term):
    """Which turn is from another session? (section 2.3.3) Cross entropy of scores of a dialogue's
    turns, see `TurnScores`. Metrics: accuracy, and chance, that of guessing.
    """

    name = "incoherence"

    def build(self, reader: Reader) -> None:
        options = self.setup.options
        self.head = TurnScores(options.context_turns + 1, dtype="float32", name=self.name)
        self.head.build((None, reader.dim), (None,), (None,))
        bert.initialize_weights(self.head.trainable_variables, options.seed + 14)

    def draw(self, step: DialogueStep) -> Segments:
        return dialogue_step.draw_incoherence(step)

    def compute(self, encoded: Encoded, rows: KerasTensors) -> KerasTensors:
        tokens = ops.take(encoded.tokens, rows["places"], axis=0)
        turn_ids = rows["rows"] * self.head.turns + rows["turns"]
        scores = self.head(tokens, turn_ids, rows["labels"])
        turns = ops.sum(ops.cast(scores > -1e8, "float32"), axis=1)
        return {**_choose(scores, rows["labels"]), "chance": 1.0 / ops.maximum(turns, 1.0)}


class Restore(MaskedLm):
    """Which tokens did a turn have of which all are masked? (section 2.3.2) Metrics: accuracy.

    Token embeddings that are not a BERT's are larger, so the head on them starts smaller.
    """

    name = "restoration"

    def build(self, reader: Reader) -> None:
        super().build(reader)
        if not self.setup.backbone:
            gamma = self.head._intermediate_layer_norm.gamma
            gamma.assign(gamma * reader.dim**-0.5)

    def draw(self, step: Any) -> Segments:
        return dialogue_step.draw_restoration(step, self.setup.vocabulary.mask_id)


AUXILIARY: tuple[type[Term], ...] = (NextSession, Restore, Incoherence, Consistency)


class SegmentPairs(Match):
    """Post-training: cross entropy of the relation of two segments, as in BERT's pre-training.
    Metrics: accuracy.
    """

    name = "pairs"

    @property
    def _classes(self) -> int:
        return dialogue_step.PAIRS[self.setup.options.pairs]

    def draw(self, step: DialogueStep) -> Segments:
        rule = _make_masking_rule(self.setup)
        return dialogue_step.draw_pairs(step, self.setup.options.pairs, rule)

    def _grade(self, logits: keras.KerasTensor, labels: keras.KerasTensor) -> KerasTensors:
        return _choose(logits, labels)


class MaskedLmOfPairs(MaskedLm):
    """Post-training: masked tokens of the pairs' sequences. Metrics: accuracy."""

    rows = SegmentPairs.name

    def compute(self, encoded: Encoded, rows: KerasTensors) -> KerasTensors:
        weights = {"weights": rows["token_weights"], "total": rows["token_weights_total"]}
        return {**super().compute(encoded, rows), **weights}


def _make_masking_rule(setup: Setup, prefix_tokens: int = 0) -> MaskingRule:
    """How tokens are masked; those of a prefix and special tokens never are."""
    options = setup.options
    return MaskingRule(options.mask_rate, options.max_predictions, setup.vocabulary, prefix_tokens)


def _choose(logits: keras.KerasTensor, answers: keras.KerasTensor) -> KerasTensors:
    """The cross entropy of the answers, int32 `[rows]`, and whether their logits, of float
    `[rows, classes]`, are the largest: loss and accuracy, float32 `[rows]`.
    """
    right = ops.take_along_axis(logits, ops.expand_dims(answers, -1), axis=-1)[:, 0]
    hits = ops.equal(ops.argmax(logits, axis=-1), ops.cast(answers, "int32"))
    return {"loss": ops.logsumexp(logits, axis=-1) - right, "accuracy": ops.cast(hits, "float32")}
