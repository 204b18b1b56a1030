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
    prediction_turns: int = option(
        1,
        "With `prediction_weight`: turns to predict on each side, at most, among those given "
        "by `context_turns` and `context_side`.",
        minimum=1,
    )
    prediction_rate: float = option(
        25.0,
        "With `prediction_weight`: learning rate of its heads, as a multiple of `learning_rate`.",
        minimum=1e-3,
    )

    def check(self) -> None:
        super().check()
        self.check_needed("prediction_weight", "prediction_turns", "prediction_rate")
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
        offsets, most = options.context.offsets, options.prediction_turns
        near = [slot for slot, offset in enumerate(offsets) if abs(offset) <= most]
        predict = ContextPrediction(
            near, options.prediction_rate, dtype="float32", name="context_prediction"
        )
        around = (rows["context"], rows["turn_mask"])
        tables = (encoded.table, before.table, encoded.padding_mask)
        return {"loss": predict(*tables, rows["candidates"][:, 0], *around)}
