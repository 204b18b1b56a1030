"""A term that was tried beside `in_domain`: a contextual teacher.

Declare this module as a plug-in of `dcse_tf` (docs/extending.md), then

    python experiments/domain.py --name=sgd --steps=150 --half=choose --rows untrained in_domain \\
        --row "teacher=--preset=in_domain --context_teacher_weight=0.3" \\
        --row "itself=--preset=in_domain --context_teacher_weight=0.3 --context_teacher_self" ...
"""

import tensorflow as tf
from keras import ops

from dcse_tf import register_term
from dcse_tf.data.table import Rows
from dcse_tf.matching.equations import masked_mean, unit
from dcse_tf.options import option
from dcse_tf.tasks.spec import Term, TermOptions

_TEMPERATURE = 0.05


class TeacherOptions(TermOptions):
    context_teacher_weight: float = option(0.0, "Weight of the teacher.", minimum=0.0)
    context_teacher_share: float = option(0.5, "Share of the turns around a key.", minimum=0.0)
    context_teacher_self: bool = option(False, "Keys by the trained encoder, not by its start.")


class ContextTeacher(Term):
    """Cross entropy of rows of similarities: of contextual keys, and of turns alone.

    A key is the embedding of a turn plus a share of those of the turns before and after it; rows
    are over the responses of the step's other sessions.
    """

    name, options, needs_start = "context_teacher", TeacherOptions, True

    def draw(self, step):
        numbers, offsets = step.add(step.token_ids, step.fingerprints), self._offsets()
        near = [slot for slot, offset in enumerate(offsets) if abs(offset) == 1]
        texts = {
            "text": tf.gather(numbers, step.responses),
            "around": tf.gather(tf.gather(numbers, step.context), near, axis=1),
        }
        said = tf.gather(step.fingerprints, step.responses)
        other = step.session[:, None] != step.session[None, :]
        targets = {
            "mask": tf.cast(tf.gather(step.turn_mask, near, axis=1), tf.float32),
            "other": other & (said[:, None] != said[None, :]),
            "weights": tf.ones_like(said, tf.float32),
        }
        return Rows(texts, targets, splits=step.splits)

    def _offsets(self):
        return self.setup.options.context.offsets

    def compute(self, encoded, rows):
        options = self.setup.options
        source = encoded if options.context_teacher_self else encoded.before
        teacher = unit(masked_mean(source.table, encoded.padding_mask))
        around = ops.take(teacher, rows["around"], axis=0) * rows["mask"][..., None]
        keys = ops.take(teacher, rows["text"], axis=0)
        keys = keys + options.context_teacher_share * ops.sum(around, axis=1)
        student = unit(masked_mean(encoded.table, encoded.padding_mask))
        student = ops.take(student, rows["text"], axis=0)

        def compare(vectors):
            vectors = unit(vectors - ops.mean(vectors, axis=0, keepdims=True))
            found = ops.matmul(vectors, ops.transpose(vectors)) / _TEMPERATURE
            return ops.log_softmax(ops.where(rows["other"], found, -1e9), axis=-1)

        taught, learnt = ops.stop_gradient(compare(keys)), compare(student)
        apart = ops.where(rows["other"], ops.exp(taught) * (taught - learnt), 0.0)
        return {"loss": ops.sum(apart, axis=1)}


register_term(ContextTeacher, ["dialogue_cse"])
