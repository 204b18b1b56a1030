"""Contrasts a response with responses of other sessions, given its context (the paper's loss)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dcse_tf.tasks.spec import Setup, Term

if TYPE_CHECKING:
    import keras

    from dcse_tf.data.responses import ResponseStep
    from dcse_tf.data.table import Rows, Step
    from dcse_tf.tasks.objective import Encoded

KerasTensors = Mapping[str, "keras.KerasTensor"]


class Contrast(Term):
    """NT-Xent over the similarities of a context with its response and negatives (equation 8).

    Args:
        setup: the training's setup, with `ContrastOptions` and `BatchOptions`.
        weight: see `Term`.
        similarity: "matching", the paper's; "cosine", that of the response's embedding and the mean
            of its context's; "projected", the same behind the projection heads.
        first_dims: cosine: only this many leading dimensions are compared; 0 for all.

    Metrics of the main contrast, which has no label: accuracy (the positive is strictly above every
    negative), positive_similarity and negative_similarity (the mean over a row's negatives).
    """

    name = "contrast"

    def __init__(
        self, setup: Setup[Any], weight: float, similarity: str = "matching", first_dims: int = 0
    ):
        super().__init__(setup, weight)
        self.rows = "responses"
        self.similarity, self.first_dims = similarity, first_dims
        self.label = f"{similarity}_{first_dims}" if first_dims else similarity

    def draw(self, step: "ResponseStep") -> "Rows":
        from dcse_tf.data.responses import draw_candidates

        return draw_candidates(step, self.setup.options.negatives)

    def compare(self, encoded: "Encoded", rows: KerasTensors) -> "keras.KerasTensor":
        """The similarities of each row's candidates, float32 `[rows, 1 + negatives]`."""
        from keras import ops

        from dcse_tf.matching.pair_similarity import build_pair_similarity

        parts = self.setup.parts
        attention = parts.matching.attention if parts.matching else None
        compare = build_pair_similarity(self.similarity, attention, parts.heads, self.first_dims)
        context = (rows["context"], rows["turn_mask"])
        of_all = compare(encoded.table, encoded.padding_mask, *context)
        return ops.take_along_axis(of_all, rows["candidates"], axis=1)

    def compute(self, encoded: "Encoded", rows: KerasTensors) -> dict[str, "keras.KerasTensor"]:
        similarity, temperature = self.compare(encoded, rows), self.setup.options.temperature
        values = contrast(similarity, rows["candidate_mask"], temperature, "similarity")
        return {"loss": values["loss"]} if self.label else values

    def count(self, rows: KerasTensors) -> KerasTensors:
        return {} if self.label else count_without_negatives(rows)


class ViewContrast(Contrast):
    """Contrasts an utterance under another dropout with other utterances (Gao et al. 2021).

    The similarity is the cosine.
    """

    def __init__(self, setup: Setup[Any]):
        super().__init__(setup, 1.0, "cosine")
        self.label = ""

    def draw(self, step: "Step") -> "Rows":
        from dcse_tf.data.responses import draw_views

        return draw_views(step)


def contrast(
    values: "keras.KerasTensor", mask: "keras.KerasTensor", temperature: float, name: str
) -> dict[str, "keras.KerasTensor"]:
    """The loss of equation 8 and metrics of each row.

    Args:
        values: float `[rows, candidates]`, similarities or scores; column 0 is the positive.
        mask: bool `[rows, candidates]`, True = a candidate.
        temperature: divisor of the values.
        name: what the values are.

    Returns:
        loss, accuracy, positive_NAME and negative_NAME, each float32 `[rows]`.
    """
    from keras import ops

    from dcse_tf.matching.matching import NTXent

    loss = NTXent(temperature, dtype="float32")(values, mask)
    positive, negatives, real = values[:, 0], values[:, 1:], mask[:, 1:]
    count = ops.sum(ops.cast(real, "float32"), axis=1)
    hardest = ops.max(ops.where(real, negatives, -3e38), axis=1)
    return {
        "loss": loss,
        "accuracy": ops.cast(positive > hardest, "float32"),
        f"positive_{name}": positive,
        f"negative_{name}": ops.sum(ops.where(real, negatives, 0.0), axis=1)
        / ops.maximum(count, 1.0),
    }


def count_without_negatives(rows: KerasTensors) -> KerasTensors:
    """The number of rows that have no negative, and so teach nothing."""
    from keras import ops

    return {"without_negatives": ops.sum(1.0 - rows["weights"])}
