"""Rehearses what the encoder knew, so that learning one domain costs less in others."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dcse_tf.options import option
from dcse_tf.tasks.options import TermOptions
from dcse_tf.tasks.spec import Term

if TYPE_CHECKING:
    import keras

    from dcse_tf.data.table import Rows, Step
    from dcse_tf.tasks.objective import Encoded


@dataclasses.dataclass(frozen=True)
class RehearsalOptions(TermOptions):
    """Options of `Rehearse`."""

    rehearsal_weight: float = option(
        0.0,
        "Weight of a loss that keeps the embeddings of garbled texts close to those of the "
        "starting encoder, so that learning the domain costs less in others: 1 - cosine, for "
        "utterances in which half of the tokens are replaced by random ones of the "
        "vocabulary. 0: none. A copy of the encoder then also reads every batch.",
        minimum=0.0,
    )
    rehearsal_texts: int = option(
        64, "With `rehearsal_weight`: garbled texts in each step, over all devices.", minimum=1
    )

    @property
    def divided(self) -> tuple[str, ...]:
        texts = ("rehearsal_texts",) if self.rehearsal_weight else ()
        return (*super().divided, *texts)

    def check(self) -> None:
        super().check()
        self.check_needed("rehearsal_weight", "rehearsal_texts")
        self.check_start_of("rehearsal_weight")


class Rehearse(Term):
    """1 - cosine of garbled texts' mean embeddings and those by the starting encoder.

    The texts are responses of the step with half of their tokens replaced by random words: texts of
    no domain, which need no additional corpus (Robins 1995, "Catastrophic Forgetting, Rehearsal and
    Pseudorehearsal").
    """

    name = "rehearsal"
    options = RehearsalOptions
    needs_start = True

    def draw(self, step: "Step") -> "Rows":
        import tensorflow as tf

        from dcse_tf.data.masking import GarblingRule, garble
        from dcse_tf.data.table import GARBLED, Rows

        vocabulary, count = self.setup.vocabulary, self.setup.options.rehearsal_texts
        # Whole words, not pieces, take the place of ordinary tokens.
        special = vocabulary.special_ids
        words = (
            i
            for i, token in enumerate(vocabulary.tokens)
            if i not in special and vocabulary.begins_word(token)
        )
        rule = GarblingRule(special, tuple(words), vocabulary.count_prefix())
        seeds = tf.random.split(step.seed(GARBLED), 2)
        responses = tf.size(step.responses)
        drawn = tf.random.stateless_uniform([count], seeds[0], 0, responses, tf.int32)
        texts = tf.gather(step.token_ids, tf.gather(step.responses, drawn))
        return Rows(
            {"text": step.add(garble(texts, rule, seeds[1]))}, {"weights": tf.ones([count])}
        )

    def compute(
        self, encoded: "Encoded", rows: "Mapping[str, keras.KerasTensor]"
    ) -> "dict[str, keras.KerasTensor]":
        from keras import ops

        from dcse_tf.matching.matching import masked_mean, unit

        assert encoded.before
        now, before = (
            unit(ops.take(masked_mean(each.table, encoded.padding_mask), rows["text"], axis=0))
            for each in (encoded, encoded.before)
        )
        return {"loss": 1.0 - ops.sum(now * before, axis=-1)}
