"""Predicts the turns around a response from the response alone."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dcse_tf.options import option
from dcse_tf.tasks.options import TermOptions
from dcse_tf.tasks.spec import Setup, Term

if TYPE_CHECKING:
    import keras

    from dcse_tf.data.responses import ResponseStep
    from dcse_tf.data.table import Rows
    from dcse_tf.tasks.objective import Encoded


# The learning rate of the heads, as a multiple of the encoder's: they begin at random.
_RATE = 25.0


@dataclasses.dataclass(frozen=True)
class PredictionOptions(TermOptions):
    """Options of `Predict`."""

    prediction_weight: float = option(
        0.0,
        "Share of the loss for predicting, from each response alone, the starting encoder's "
        "embeddings of the turns around it; the rest is the contrast. The prediction uses "
        "heads, one for each position, which are discarded after training. 0: none; 1: "
        "nothing else. A copy of the encoder then also reads every batch.",
        minimum=0.0,
        maximum=1.0,
    )

    def check(self) -> None:
        super().check()
        self.check_start_of("prediction_weight")


class Predict(Term):
    """1 - cosine of the starting encoder's embeddings of the turns around a response and those that
    heads predict from the response's embedding, see `ContextPrediction`.

    The rows are those of the contrast.
    """

    name = "prediction"
    options = PredictionOptions
    needs_start = True

    def __init__(self, setup: Setup[Any]):
        super().__init__(setup)
        self.rows = "responses"

    def draw(self, step: "ResponseStep") -> "Rows":
        from dcse_tf.data.responses import draw_candidates

        return draw_candidates(step, self.setup.options.negatives)

    def compute(
        self, encoded: "Encoded", rows: "Mapping[str, keras.KerasTensor]"
    ) -> "dict[str, keras.KerasTensor]":
        from dcse_tf.matching.heads import ContextPrediction

        options, before = self.setup.options, encoded.before
        assert before
        near = [slot for slot, offset in enumerate(options.context.offsets) if abs(offset) == 1]
        predict = ContextPrediction(near, _RATE, dtype="float32", name="context_prediction")
        around = (rows["context"], rows["turn_mask"])
        tables = (encoded.table, before.table, encoded.padding_mask)
        return {"loss": predict(*tables, rows["candidates"][:, 0], *around)}
