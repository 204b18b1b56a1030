"""Options that extend the contrastive objective, for retrieval in one's own domain.

None of them is in the paper, and all are off by default. This module does not import TensorFlow.
"""

import dataclasses

from dcse_tf.options import option
from dcse_tf.tasks.options import BatchOptions


@dataclasses.dataclass(frozen=True)
class LeverOptions(BatchOptions):
    """For tasks that contrast responses; a task uses it instead of its base class."""

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
    projection_dim: int = option(
        0,
        "Contrast the plain cosine behind two projection heads of this width, one for "
        "contexts and one for responses. They are kept beside the encoder, to choose responses. "
        "0: none.",
        minimum=2,
        or_zero=True,
    )
    projection_rate: float = option(
        10.0,
        "Learning rate of the projection heads, as a multiple of `learning_rate`.",
        minimum=1e-3,
    )
    projection_share: float = option(
        1.0,
        "With `projection_dim`: share of the plain cosine's contrast that lies behind the heads; "
        "the rest contrasts the embeddings themselves.",
        minimum=0.01,
        maximum=1.0,
    )
    matryoshka_dims: tuple[str, ...] = option(
        (),
        "Also contrast the plain cosine of the first dimensions, for each of these numbers "
        "(Kusupati et al. 2022); these losses and that of all dimensions have equal weight. "
        "Embeddings can then be truncated by `truncate_dim`. Default: none.",
    )

    @property
    def truncated_dims(self) -> tuple[int, ...]:
        """The numbers of `matryoshka_dims`."""
        return tuple(map(int, self.matryoshka_dims))

    @property
    def uses_start(self) -> bool:
        """Whether training needs a frozen copy of the starting encoder."""
        return self.prediction_weight > 0.0 or self.rehearsal_weight > 0.0

    @property
    def divided(self) -> tuple[str, ...]:
        texts = ("rehearsal_texts",) if self.rehearsal_weight else ()
        return (*super().divided, *texts)

    def check(self) -> None:
        super().check()
        self.check_needed("projection_dim", "projection_rate", "projection_share")
        self.check_needed("prediction_weight", "prediction_turns", "prediction_rate")
        self.check_needed("rehearsal_weight", "rehearsal_texts")
        self._check_matryoshka()
        if self.uses_start and not self.encoder:
            name = "prediction_weight" if self.prediction_weight else "rehearsal_weight"
            self.refuse(name, "needs an `encoder`: embeddings from random weights mean nothing")

    def _check_matryoshka(self) -> None:
        given = self.matryoshka_dims
        if not all(text.isdecimal() and int(text) for text in given) or len({*given}) < len(given):
            self.refuse("matryoshka_dims", "expected different whole numbers of at least 1")
        if given and self.projection_dim and self.projection_share == 1.0:
            self.refuse(
                "matryoshka_dims",
                "with `projection_dim` and `projection_share`=1 the embeddings are not contrasted",
            )

    def list_metrics(self) -> tuple[str, ...]:
        """The metrics of the extensions that are in use."""
        prediction = ("prediction_loss",) if self.prediction_weight else ()
        rehearsal = ("rehearsal_loss",) if self.rehearsal_weight else ()
        return (*prediction, *rehearsal)
