"""The paper's contrastive objective as a task.

Commands import this module for its options and must answer --help at once, so TensorFlow and
everything that needs it is imported inside the functions.
"""

import dataclasses
from typing import TYPE_CHECKING

from dcse_tf.evaluation.names import PROJECTED
from dcse_tf.options import option
from dcse_tf.tasks.levers import LeverOptions
from dcse_tf.tasks.options import ContextOptions, ContrastOptions
from dcse_tf.tasks.registry import register_task
from dcse_tf.tasks.spec import EncoderParts, Setup, TaskSpec, Tensors, centering_parts

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from dcse_tf.data.manifest import Manifest


@dataclasses.dataclass(frozen=True)
class DialogueCseOptions(ContextOptions, ContrastOptions, LeverOptions):
    """Options with the paper's values (section 5.3) as defaults, where it gives them.

    The number of epochs is this project's: in one epoch, only one turn of each session is trained
    on, unless `batch_form` is dense.
    """

    task: str = "dialogue_cse"
    epochs: float = 10.0
    global_batch_size: int = 20
    learning_rate: float = 5e-5
    freeze_layers: int = -1
    freeze_embeddings: bool = True
    best_metric: str = "dev/matching_r1"

    aggregation: str = option(
        "mean",
        "How turns are combined. mean: every turn counts the same (the paper's I2); "
        "attention: by a two-layer network and a softmax (I1, equations 5 and 6); "
        "additive_attention: I1 as in the authors' released code.",
        choices=("mean", "attention", "additive_attention"),
    )
    cosine_weight: float = option(
        0.0,
        "Share of the loss that contrasts the plain cosine of a response with the mean of its "
        "context's embeddings. 0: the paper's objective; 1: no matching at all.",
        minimum=0.0,
        maximum=1.0,
    )

    def check(self) -> None:
        super().check()
        for name in ("projection_dim", "matryoshka_dims"):
            if self.is_given(name) and not self.cosine_weight:
                self.refuse(name, "is for the plain cosine, so it needs `cosine_weight`")
        if self.is_given("aggregation") and self.cosine_weight == 1.0:
            self.refuse("aggregation", "with `cosine_weight`=1 there is no matching")

    @property
    def similarities(self) -> tuple[str, ...]:
        own = super().similarities
        return (*own, PROJECTED) if self.projection_dim else own

    def list_warnings(self, manifest: "Manifest") -> list[str]:
        found = super().list_warnings(manifest)
        if self.cosine_weight == 1.0 and self.best_metric.startswith("dev/matching_"):
            found.append(
                f"`best_metric`={self.best_metric} chooses the encoder by a similarity that "
                "`cosine_weight`=1 does not train; dev/cosine_r1 is that of the training"
            )
        return found


def _build_parts(options: DialogueCseOptions, dim: int) -> EncoderParts:
    from dcse_tf.matching.matching_files import MatchingForm, build_turn_attention
    from dcse_tf.matching.projection import build_heads

    parts = centering_parts(options, dim)
    if width := options.projection_dim:
        heads = build_heads(dim, width, options.projection_rate, options.seed + 3)
        parts = dataclasses.replace(parts, heads=heads)
    if options.cosine_weight == 1.0:
        return parts
    attention = None
    if options.aggregation != "mean":
        attention = build_turn_attention(options.aggregation, dim, options.seed + 2)
    return dataclasses.replace(parts, matching=MatchingForm(attention))


def _build_model(setup: Setup[DialogueCseOptions]) -> "keras.Model":
    from dcse_tf.bert import bert
    from dcse_tf.matching.context_prediction import ContextPrediction
    from dcse_tf.matching.dialogue_cse import Objective, build_dialogue_cse
    from dcse_tf.matching.matching_files import PAPER
    from dcse_tf.matching.start import StartObjective
    from dcse_tf.tasks.shared import make_layout

    options, parts, start = setup.options, setup.parts, None
    if options.uses_start:
        assert setup.source
        backbone = bert.load_backbone(setup.source, compute_dtype=options.compute_dtype)
        prediction, share = None, options.prediction_weight
        if share:
            offsets, most = options.context.offsets, options.prediction_turns
            near = [slot for slot, offset in enumerate(offsets) if abs(offset) <= most]
            rate = options.prediction_rate
            prediction = ContextPrediction(near, rate, dtype="float32", name="context_prediction")
        start = StartObjective(
            backbone,
            prediction=prediction,
            prediction_weight=share,
            rehearsal_weight=options.rehearsal_weight,
        )
    dim = setup.backbone.hidden_dim
    if max(options.truncated_dims, default=0) >= dim:
        options.refuse("matryoshka_dims", f"expected fewer than the encoder's {dim} dimensions")
    objective = Objective(
        options.temperature,
        parts.matching or PAPER,
        cosine_weight=options.cosine_weight,
        start=start,
        heads=parts.heads,
        projection_share=options.projection_share,
        matryoshka_dims=options.truncated_dims,
    )
    return build_dialogue_cse(setup.backbone, make_layout(options), objective, parts.centering)


def _make_dataset(
    setup: Setup[DialogueCseOptions], first_step: int, replicas: int
) -> "tf.data.Dataset":
    from dcse_tf.tasks.shared import make_dialogue_dataset, make_rehearsal_form

    options, rehearsal = setup.options, None
    if options.rehearsal_weight:
        rehearsal = make_rehearsal_form(setup.vocabulary, options.rehearsal_texts)
    return make_dialogue_dataset(setup, first_step, replicas, rehearsal=rehearsal)


def compute_contrastive_loss(model: "keras.Model", batch: Tensors) -> Tensors:
    """Sums over the rows of a batch: the loss of equation 8, and metrics of training.

    All losses but "loss" are unweighted. The metrics are those of the similarity whose share of the
    loss is largest, such as the plain cosine's with a `cosine_weight` of 0.8.

    - Always: accuracy (the positive is strictly above every negative), positive_similarity, and
      negative_similarity (the mean over a row's negatives).
    - With a prediction: prediction_loss.
    - With rehearsed texts: rehearsal_loss.
    """
    from dcse_tf.tasks.shared import add_further_losses, sum_rows, sum_start_rows

    outputs = model(batch, training=True)
    sums = {**sum_rows(outputs, "similarity", batch), **sum_start_rows(outputs, batch)}
    return add_further_losses(outputs, sums)


register_task(
    TaskSpec(
        DialogueCseOptions,
        "the paper's contrastive objective",
        build_model=_build_model,
        make_dataset=_make_dataset,
        compute_loss=compute_contrastive_loss,
        metrics=("accuracy", "positive_similarity", "negative_similarity"),
        more_metrics=DialogueCseOptions.list_metrics,
        similarities=("matching", "cosine"),
        build_parts=_build_parts,
    )
)
