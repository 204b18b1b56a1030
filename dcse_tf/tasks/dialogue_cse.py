"""The paper's contrastive objective as a task, and its extensions."""

import dataclasses

from absl import logging

from dcse_tf.evaluation.metrics import PROJECTED
from dcse_tf.options import option
from dcse_tf.tasks.spec import EncoderParts, Setup, Term, register_task
from dcse_tf.tasks.terms.contrast import Contrast
from dcse_tf.tasks.train_options import BatchOptions, ContextOptions, ContrastOptions

# The learning rate of the projection heads, as a multiple of the encoder's: they begin at random.
_HEADS_RATE = 10.0


@register_task
class DialogueCseOptions(ContextOptions, ContrastOptions, BatchOptions):
    """Options with the paper's values (section 5.3) as defaults, where it gives them.

    The number of epochs is this project's: in one epoch, only one turn of each session is trained
    on, unless `batch_form` is dense.
    """

    help = "the paper's contrastive objective"

    task: str = "dialogue_cse"
    epochs: float = 10.0
    global_batch_size: int = 20
    learning_rate: float = 5e-5
    freeze_layers: int = -1
    freeze_embeddings: bool = True
    best_metric: str = "dev/matching_r1"

    aggregation: str = option(
        "mean",
        "How turns are combined: all alike (I2), by a network (I1), or by I1 as in released code.",
        choices=("mean", "attention", "additive_attention"),
    )
    cosine_weight: float = option(
        0.0, "Share of the loss on the cosine. 1: no matching.", minimum=0.0, maximum=1.0
    )
    projection_dim: int = option(
        0, "Width of two heads behind which that cosine is contrasted.", minimum=2, or_zero=True
    )
    projection_share: float = option(
        1.0, "Share of that contrast that lies behind the heads.", minimum=0.01, maximum=1.0
    )
    matryoshka_dims: tuple[str, ...] = option(
        (), "Also contrast so many first dimensions, so that embeddings can be cut."
    )
    prediction_weight: float = option(
        0.0, "Share of the loss on predicting the turns around.", minimum=0.0, maximum=1.0
    )
    rehearsal_weight: float = option(
        0.0, "Weight of keeping garbled texts where they were, for other domains.", minimum=0.0
    )
    rehearsal_texts: int = option(64, "Garbled texts in each step, over all devices.", minimum=1)
    average_with: str = option(
        "", "Preset to train by, too (its flags win there); average in RUN/averaged.", resume="free"
    )

    @property
    def divided(self) -> tuple[str, ...]:
        return (*super().divided, *(("rehearsal_texts",) if self.rehearsal_weight else ()))

    def check(self) -> None:
        super().check()
        self.check_needed("projection_dim", "projection_share")
        self.check_needed("cosine_weight", "projection_dim", "matryoshka_dims")
        self.check_needed("rehearsal_weight", "rehearsal_texts")
        self.check_needed("encoder", "prediction_weight", "rehearsal_weight")
        if self.is_given("aggregation") and self.cosine_weight == 1.0:
            self.refuse("aggregation", "with `cosine_weight`=1 there is no matching")
        given = self.matryoshka_dims
        if not all(text.isdecimal() and int(text) for text in given) or len({*given}) < len(given):
            self.refuse("matryoshka_dims", "expected different whole numbers of at least 1")
        if given and self.projection_dim and self.projection_share == 1.0:
            why = "with `projection_dim` and `projection_share`=1 no embeddings are contrasted"
            self.refuse("matryoshka_dims", why)

    @property
    def similarities(self) -> tuple[str, ...]:
        return ("matching", "cosine", *([PROJECTED] if self.projection_dim else ()))

    def list_terms(self, setup: Setup) -> list[Term]:
        """The contrast of several similarities, with a share each; the prediction; the rehearsal.

        The paper's objective is the first contrast alone.
        """
        from dcse_tf.tasks.terms.start import Predict, Rehearse

        if self.cosine_weight == 1.0 and self.best_metric.startswith("dev/matching_"):
            logging.warning(
                "`best_metric`=%s chooses the encoder by a similarity that `cosine_weight`=1 does "
                "not train; dev/cosine_r1 is that of the training",
                self.best_metric,
            )
        dims = [int(text) for text in self.matryoshka_dims]
        if max(dims, default=0) >= (most := setup.encoder.output_shape[-1]):
            self.refuse("matryoshka_dims", f"expected fewer than the encoder's {most} dimensions")
        all_contrasts = 1.0 - self.prediction_weight
        cosine = all_contrasts * self.cosine_weight
        projected = cosine * self.projection_share if self.projection_dim else 0.0
        plain = (cosine - projected) / (1 + len(dims))
        contrasts = [
            Contrast(setup, all_contrasts - cosine, "matching"),
            Contrast(setup, projected, "projected"),
            Contrast(setup, plain, "cosine"),
            *(Contrast(setup, plain, "cosine", first_dims) for first_dims in dims),
        ]
        # The metrics of training describe the similarity with the largest share.
        max(contrasts, key=lambda term: term.weight).label = ""
        return [*contrasts, Predict(setup), Rehearse(setup)]

    def build_parts(self, dim: int) -> EncoderParts:
        from dcse_tf.matching.equations import build_turn_attention
        from dcse_tf.matching.heads import build_heads

        parts = super().build_parts(dim)
        if self.projection_dim:
            heads = build_heads(dim, self.projection_dim, _HEADS_RATE, self.seed + 3)
            parts = dataclasses.replace(parts, heads=heads)
        if self.cosine_weight < 1.0:
            mean = self.aggregation == "mean"
            attention = None if mean else build_turn_attention(self.aggregation, dim, self.seed + 2)
            parts = dataclasses.replace(parts, learns_matching=True, attention=attention)
        return parts
