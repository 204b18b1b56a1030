"""A term that was tried beside `in_domain`: a teacher's vectors of the corpus' texts.

Declare this module as a plug-in of `dcse_tf` (docs/extending.md), then

    dcse embed --model=TEACHER --input=texts.txt --output=vectors.npy
    dcse train --preset=in_domain --steps=150 --teacher_weight=0.3 --teacher_texts=texts.txt \\
        --teacher_vectors=vectors.npy [--teacher_compares=cosines] ...
"""

import hashlib
import pathlib

import numpy as np
import tensorflow as tf
from keras import ops

from dcse_tf import register_term
from dcse_tf.data.table import Rows
from dcse_tf.matching.equations import masked_mean, unit
from dcse_tf.options import option
from dcse_tf.tasks.spec import Term, TermOptions

_TEMPERATURE = 0.05


class TeacherOptions(TermOptions):
    teacher_weight: float = option(0.0, "Weight of the teacher.", minimum=0.0)
    teacher_texts: str = option("", "A text a line.", path="files")
    teacher_vectors: str = option("", "Their vectors, of any width.", path="files")
    teacher_compares: str = option("rows", "Of cosines.", choices=("rows", "cosines"))


class VectorTeacher(Term):
    """Distance of the cosines of a step's responses and of those of the teacher's vectors.

    "rows" is the cross entropy of softmaxes of rows, less its least value; "cosines" ten times the
    mean squared difference. Texts without a vector are left out.
    """

    name, options = "teacher", TeacherOptions

    def __init__(self, setup):
        super().__init__(setup, setup.options.teacher_weight)
        if not self.weight:
            return
        texts = pathlib.Path(setup.options.teacher_texts).read_text("utf-8").split("\n")[:-1]
        vectors = np.load(setup.options.teacher_vectors)
        tokenize = setup.vocabulary.make_tokenizer().as_graph(setup.manifest.max_sequence_length)
        prints = []
        for begin in range(0, len(texts), 512):
            for ids in tokenize(tf.constant(texts[begin : begin + 512]))[0].to_list():
                digest = hashlib.blake2b(np.array(ids, "<i4").tobytes(), digest_size=8).digest()
                prints.append(np.frombuffer(digest, "<i8")[0])
        self._prints, places = np.unique(np.array(prints), return_index=True)
        self._vectors = vectors[places].astype(np.float16)

    def draw(self, step):
        places = np.arange(len(self._prints))
        known = tf.lookup.KeyValueTensorInitializer(self._prints, places)
        numbers = step.add(step.token_ids, step.fingerprints)
        said = tf.gather(step.fingerprints, step.responses)
        place = tf.lookup.StaticHashTable(known, -1).lookup(said)

        def find(place):
            return self._vectors[np.maximum(place, 0)].astype(np.float32)

        found = tf.numpy_function(find, [place], tf.float32)
        found.set_shape([None, self._vectors.shape[1]])
        has = place >= 0
        targets = {
            "vectors": found,
            "other": (said[:, None] != said[None, :]) & has[:, None] & has[None, :],
            "weights": tf.cast(has, tf.float32),
        }
        return Rows({"text": tf.gather(numbers, step.responses)}, targets, splits=step.splits)

    def compute(self, encoded, rows):
        student = masked_mean(encoded.table, encoded.padding_mask)
        student = unit(ops.take(student, rows["text"], axis=0))
        other = rows["other"]
        taught, learnt = (ops.matmul(x, ops.transpose(x)) for x in (unit(rows["vectors"]), student))
        if self.setup.options.teacher_compares == "cosines":
            apart = ops.where(other, ops.square(taught - learnt), 0.0)
            count = ops.maximum(ops.sum(ops.cast(other, "float32"), axis=1), 1.0)
            return {"loss": 10.0 * ops.sum(apart, axis=1) / count}
        taught, learnt = (
            ops.log_softmax(ops.where(other, x / _TEMPERATURE, -1e9), axis=-1)
            for x in (taught, learnt)
        )
        apart = ops.where(other, ops.exp(taught) * (taught - learnt), 0.0)
        return {"loss": ops.sum(apart, axis=1)}


register_term(VectorTeacher, ["dialogue_cse"])
