"""Terms that compare the encoder with the one that training started from."""

import tensorflow as tf
from keras import ops

from dcse_tf.data.responses import ResponseStep, draw_candidates, garble
from dcse_tf.data.table import GARBLED, Rows, Step
from dcse_tf.matching.equations import masked_mean, unit
from dcse_tf.matching.heads import ContextPrediction
from dcse_tf.tasks.objective import Encoded
from dcse_tf.tasks.spec import KerasTensors, Term

# The learning rate of the heads, as a multiple of the encoder's: they begin at random.
_RATE = 25.0


class Predict(Term):
    """1 - cosine of the starting encoder's embeddings of the turns around a response and those that
    heads predict from the response's embedding, see `ContextPrediction`.

    The rows are those of the contrast.
    """

    name, rows = "prediction", "responses"
    needs_start = True

    def draw(self, step: ResponseStep) -> Rows:
        return draw_candidates(step, self.setup.options.negatives)

    def compute(self, encoded: Encoded, rows: KerasTensors) -> KerasTensors:
        options, before = self.setup.options, encoded.before
        assert before
        near = [slot for slot, offset in enumerate(options.context.offsets) if abs(offset) == 1]
        predict = ContextPrediction(near, _RATE, dtype="float32", name="context_prediction")
        around = (rows["context"], rows["turn_mask"])
        tables = (encoded.table, before.table, encoded.padding_mask)
        return {"loss": predict(*tables, rows["candidates"][:, 0], *around)}


class Rehearse(Term):
    """1 - cosine of garbled texts' mean embeddings and those by the starting encoder.

    The texts are responses of the step with half of their tokens replaced by random words: texts of
    no domain, which need no additional corpus (Robins 1995, "Catastrophic Forgetting, Rehearsal and
    Pseudorehearsal").
    """

    name = "rehearsal"
    needs_start = True

    def draw(self, step: Step) -> Rows:
        count = self.setup.options.rehearsal_texts
        seeds = tf.random.split(step.seed(GARBLED), 2)
        drawn = tf.random.stateless_uniform([count], seeds[0], 0, tf.size(step.responses), tf.int32)
        texts = tf.gather(step.token_ids, tf.gather(step.responses, drawn))
        number = step.add(garble(texts, self.setup.vocabulary, seeds[1]))
        return Rows({"text": number}, {"weights": tf.ones([count])})

    def compute(self, encoded: Encoded, rows: KerasTensors) -> KerasTensors:
        assert encoded.before
        now, before = (
            unit(ops.take(masked_mean(each.table, encoded.padding_mask), rows["text"], axis=0))
            for each in (encoded, encoded.before)
        )
        return {"loss": 1.0 - ops.sum(now * before, axis=-1)}
