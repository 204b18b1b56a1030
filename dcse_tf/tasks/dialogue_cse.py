"""The paper's contrastive objective as a task.

Commands import this module for its options and must answer --help at once, so TensorFlow and
everything that needs it is imported inside the functions.
"""

import dataclasses
from typing import TYPE_CHECKING, Self

from dcse_tf.bert.options import MATCHINGS
from dcse_tf.evaluation.names import PROJECTED
from dcse_tf.options import option, redefault
from dcse_tf.tasks.levers import LeverOptions, read_neighbours
from dcse_tf.tasks.options import ContextOptions, ContrastOptions, TrainOptions
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

    task: str = redefault(TrainOptions, "task", "dialogue_cse")
    epochs: float = redefault(TrainOptions, "epochs", 10.0)
    global_batch_size: int = redefault(TrainOptions, "global_batch_size", 20)
    learning_rate: float = redefault(TrainOptions, "learning_rate", 5e-5)
    freeze_layers: int = redefault(TrainOptions, "freeze_layers", -1)
    freeze_embeddings: bool = redefault(TrainOptions, "freeze_embeddings", True)
    best_metric: str = redefault(TrainOptions, "best_metric", "dev/matching_r1")

    matching: str = option(
        "paper",
        "What is compared. paper: the response with what the context sees of it, M R "
        "(equations 3 and 4); residual: the response with lambda U + M R, where lambda is "
        "learnt; context: M R with the context; maxsim: each token with the most similar one "
        "in the other text, in both directions. docs/matching.md explains how much of the "
        "context each keeps.",
        choices=MATCHINGS,
    )
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
    distillation_weight: float = option(
        0.0,
        "Share of the loss that learns a teacher's scores for given candidates: the cross "
        "entropy between its softmax over a response's candidates and that of the "
        "similarities. It needs a corpus prepared from candidates with scores, as "
        "score_candidates writes them; the response of a session is then its last turn, not "
        "one that is drawn. 0: none.",
        minimum=0.0,
        maximum=1.0,
    )
    teacher_temperature: float = option(
        1.0,
        "With `distillation_weight`: the teacher's scores are divided by this; higher values "
        "make its distribution softer.",
        minimum=1e-4,
    )

    def check(self) -> None:
        super().check()
        for name in ("projection_dim", "matryoshka_dims"):
            if self.is_given(name) and not self.cosine_weight:
                self.refuse(name, "is for the plain cosine, so it needs `cosine_weight`")
        if self.distillation_weight and self.batch_form == "dense":
            self.refuse(
                "batch_form",
                "candidates are given for one response a session, so `distillation_weight` needs "
                "unique or plain",
            )
        self.check_needed("distillation_weight", "teacher_temperature")
        for name in ("matching", "aggregation"):
            if self.is_given(name) and self.cosine_weight == 1.0:
                self.refuse(name, "with `cosine_weight`=1 there is no matching")
        if self.aggregation != "mean" and self.matching == "maxsim":
            self.refuse("aggregation", "with `matching`=maxsim each turn counts the same")

    @property
    def similarities(self) -> tuple[str, ...]:
        own = super().similarities
        return (*own, PROJECTED) if self.projection_dim else own

    def resolve(self, manifest: "Manifest", positions: int = 512) -> Self:
        if self.distillation_weight:
            given = manifest.splits["train"].given
            if not given or not given.scored:
                self.refuse(
                    "distillation_weight",
                    f"{self.data_dir} has {'candidates without' if given else 'no candidates with'}"
                    " a teacher's scores; expected what prepare_data made of a file that "
                    "score_candidates wrote",
                )
        return super().resolve(manifest, positions)

    def list_warnings(self, manifest: "Manifest") -> list[str]:
        found = super().list_warnings(manifest)
        if self.cosine_weight == 1.0 and self.best_metric.startswith("dev/matching_"):
            found.append(
                f"`best_metric`={self.best_metric} chooses the encoder by a similarity that "
                "`cosine_weight`=1 does not train; dev/cosine_r1 is that of the training"
            )
        return found


def _build_parts(options: DialogueCseOptions, dim: int) -> EncoderParts:
    from dcse_tf.matching.matching_files import build_turn_attention, make_matching_form
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
    return dataclasses.replace(parts, matching=make_matching_form(options.matching, attention))


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
            most_similar=options.false_negative_cosine,
            anchor_weight=options.anchor_weight,
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
        distillation_weight=options.distillation_weight,
        teacher_temperature=options.teacher_temperature,
        both_directions=options.both_directions,
        start=start,
        heads=parts.heads,
        projection_share=options.projection_share,
        neighbour_weight=options.neighbour_weight if options.has_neighbours else 0.0,
        matryoshka_dims=options.truncated_dims,
    )
    return build_dialogue_cse(setup.backbone, make_layout(options), objective, parts.centering)


def _make_dataset(
    setup: Setup[DialogueCseOptions], first_step: int, replicas: int
) -> "tf.data.Dataset":
    from dcse_tf.data.neighbours import NeighbourForm
    from dcse_tf.tasks.shared import make_dialogue_dataset, make_rehearsal_form

    options, neighbours, rehearsal = setup.options, None, None
    given = setup.manifest.splits["train"].given if options.distillation_weight else None
    if options.has_neighbours:
        corpus = read_neighbours(options, setup.manifest)
        neighbours = NeighbourForm(corpus, options.neighbour_pairs)
    if options.rehearsal_weight:
        rehearsal = make_rehearsal_form(setup.vocabulary, options.rehearsal_texts)
    return make_dialogue_dataset(
        setup,
        first_step,
        replicas,
        given=given.most if given else 0,
        negative_contexts=options.both_directions,
        neighbours=neighbours,
        rehearsal=rehearsal,
    )


def compute_contrastive_loss(model: "keras.Model", batch: Tensors) -> Tensors:
    """Sums over the rows of a batch: the loss of equation 8, and metrics of training.

    All losses but "loss" are unweighted. The metrics are those of the similarity whose share of the
    loss is largest, such as the plain cosine's with a `cosine_weight` of 0.8.

    - Always: accuracy (the positive is strictly above every negative), positive_similarity, and
      negative_similarity (the mean over a row's negatives).
    - With a teacher: distillation_loss, and teacher_agreement (the model and the teacher rank the
      same given candidate first).
    - With the starting encoder: anchor_loss and prediction_loss; with a `false_negative_cosine`
      left_out (the share of negatives left out as probable false negatives).
    - With pairs of neighbours: neighbour_loss, and neighbour_accuracy (the partner is strictly
      above every negative).
    - With rehearsed texts: rehearsal_loss.
    """
    from dcse_tf.tasks.shared import add_further_losses, sum_rows, sum_start_rows, sum_taught_rows

    outputs = model(batch, training=True)
    sums = {**sum_rows(outputs, "similarity", batch), **sum_start_rows(outputs, batch)}
    if "given_mask" in batch:
        sums |= sum_taught_rows(outputs, batch)
    return add_further_losses(outputs, sums)


def _list_more_metrics(options: DialogueCseOptions) -> tuple[str, ...]:
    taught = ("distillation_loss", "teacher_agreement") if options.distillation_weight else ()
    return (*taught, *options.list_metrics())


register_task(
    TaskSpec(
        DialogueCseOptions,
        "the paper's contrastive objective",
        build_model=_build_model,
        make_dataset=_make_dataset,
        compute_loss=compute_contrastive_loss,
        metrics=("accuracy", "positive_similarity", "negative_similarity"),
        more_metrics=_list_more_metrics,
        similarities=("matching", "cosine"),
        build_parts=_build_parts,
    )
)
