"""The interface between a task and the training loop.

Commands import the specs and must answer --help at once, so this module does not import
TensorFlow.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dcse_tf.data.manifest import Corpus
from dcse_tf.options import Options
from dcse_tf.reading.reranker_files import RerankerSettings

if TYPE_CHECKING:
    import keras
    import keras_hub
    import tensorflow as tf

    from dcse_tf.bert.bert import TokenCentering
    from dcse_tf.bert.vocabulary import Vocabulary
    from dcse_tf.data.manifest import Manifest, Split
    from dcse_tf.matching.matching_files import MatchingForm
    from dcse_tf.matching.projection import ProjectionHead
    from dcse_tf.tasks.options import ContrastOptions

O = TypeVar("O", bound=Options)  # noqa: E741
# Covariant, because a setup is only read: one for a class of options fits its base classes too.
O_co = TypeVar("O_co", bound=Options, covariant=True)

Scores = dict[str, float]
Tensors = dict[str, "tf.Tensor"]
# (model, batch) -> sums over the rows of this replica: "loss"; "weight", the number of rows that
# count; the counts of `count_batch`; and the task's metrics, see `average`.
ComputeLoss = Callable[["keras.Model", Tensors], Tensors]
# An object whose `score` maps sequences to logits, see `dcse_tf.reranker.scorers.Scorer`, and the
# settings of its re-ranker.
Scorer = tuple[Any, RerankerSettings]


def average(sums: Mapping[str, float]) -> Scores:
    """Means from sums over rows: each is divided by `weight`, which is left out.

    The sums of a task whose `TASK_weight` is among them, TASK_accuracy and others, are divided by
    that: rows without an example of the task do not count. Without any example, they are left out.
    """
    means = {}
    for name, value in sums.items():
        if name == "weight" or name.endswith("_weight"):
            continue
        own = sums.get(f"{name.rpartition('_')[0]}_weight")
        if own is None:
            means[name] = value / max(sums["weight"], 1e-9)
        elif own > 0.0:
            means[name] = value / own
    return means


@dataclasses.dataclass(frozen=True)
class EncoderParts:
    """The parts of an encoder besides its BERT; most tasks have none.

    Attributes:
        centering: the centring of the token embeddings, if any.
        matching: the form of its matching; None if it learns none.
        heads: the projection heads of contexts and of responses, if any.
    """

    centering: "TokenCentering | None" = None
    matching: "MatchingForm | None" = None
    heads: "Sequence[ProjectionHead]" = ()


@dataclasses.dataclass(frozen=True)
class Setup(Generic[O_co]):
    """Everything that a training run has before its model is built.

    Attributes:
        options: the resolved options.
        data_dir: the prepared corpus.
        manifest: its manifest.
        vocabulary: the vocabulary of the encoder and the corpus.
        source: the checkpoint folder that the encoder starts from; None for random weights.
        tensors: the checkpoint's tensors, for heads; empty for random weights.
        backbone: the BERT; None if the task trains another model.
        encoder: the functional encoder built on it, for evaluation; None without a BERT.
        parts: the encoder's parts besides the BERT.
        own_replicas: the numbers of the replicas that this process feeds; None for all.
    """

    options: O_co
    data_dir: pathlib.Path
    manifest: "Manifest"
    vocabulary: "Vocabulary"
    source: pathlib.Path | None = None
    tensors: dict[str, Any] = dataclasses.field(default_factory=dict)
    backbone: "keras_hub.models.BertBackbone" = None
    encoder: "keras.Model" = None
    parts: EncoderParts = EncoderParts()
    own_replicas: range | None = None

    @property
    def corpus(self) -> Corpus:
        return Corpus(self.data_dir, self.manifest)


def no_parts(options: Options, dim: int) -> EncoderParts:
    return EncoderParts()


def centering_parts(options: "ContrastOptions", dim: int) -> EncoderParts:
    """The parts of an encoder with centred token embeddings, if `center_tokens` is set."""
    from dcse_tf.bert.bert import TokenCentering

    centering = TokenCentering(dtype="float32") if options.center_tokens else None
    return EncoderParts(centering=centering)


def no_metrics(options: Options) -> tuple[str, ...]:
    return ()


def write_sentence_encoder(setup: Setup, model: "keras.Model", folder: pathlib.Path) -> None:
    from dcse_tf.tasks.shared import write_sentence_encoder as write

    write(setup, folder)


def no_scores(setup: Setup, model: "keras.Model") -> Callable[[], Scores]:
    return dict


@dataclasses.dataclass(frozen=True)
class TaskSpec(Generic[O]):
    """A training task: everything that the training loop, the job and the command line need of it.

    Attributes:
        options: class of its options, with the task's defaults and checks. The default of its field
            `task` is the task's name.
        help: what the task trains, in a few words for --help.
        build_model: setup -> the training model; called under the strategy's scope.
        make_dataset: (setup, first step, replicas) -> batches, `replicas` of them in each step.
        compute_loss: (model, batch) -> sums over rows, see `ComputeLoss`.
        metrics: names of the sums other than loss, weight and counts.
        samples: the unit of batches and epochs: "sessions" or "utterances".
        similarities: the similarities to evaluate by response selection on dev sessions:
            "matching", "cosine", both or none; "reranker" with `make_scorer`. An option may add
            to them, see `TrainOptions.similarities`.
        build_parts: (options, width of the token embeddings) -> the encoder's parts besides its
            BERT; called under the strategy's scope.
        make_evaluation: (setup, model) -> a function that computes the task's own dev scores.
        scores: names of these scores.
        lower_is_better: names of those scores for which lower is better.
        more_metrics: options -> names of further metrics that depend on the options.
        end_of_turn: whether it reads dialogues as sequences in which [EOT] follows every turn.
        write_encoder: (setup, model, empty folder): writes the run's result as a checkpoint folder.
        make_scorer: for a task that trains a re-ranker: (setup, model) -> a
            `dcse_tf.reranker.scorers.Scorer` on tensors with the current weights, and its
            settings. The run's result is then not a sentence encoder.
    """

    options: type[O]
    help: str
    build_model: Callable[[Setup[O]], "keras.Model"]
    make_dataset: Callable[[Setup[O], int, int], "tf.data.Dataset"]
    compute_loss: ComputeLoss
    metrics: tuple[str, ...]
    samples: str = "sessions"
    similarities: tuple[str, ...] = ("cosine",)
    build_parts: Callable[[O, int], EncoderParts] = no_parts
    make_evaluation: Callable[[Setup[O], "keras.Model"], Callable[[], Scores]] = no_scores
    scores: tuple[str, ...] = ()
    lower_is_better: Sequence[str] = ()
    more_metrics: Callable[[O], tuple[str, ...]] = no_metrics
    end_of_turn: bool = False
    write_encoder: Callable[[Setup[O], "keras.Model", pathlib.Path], None] = write_sentence_encoder
    make_scorer: Callable[[Setup[O], "keras.Model"], Scorer] | None = None

    @property
    def name(self) -> str:
        """The task's name, the value of the option `task`."""
        fields = {field.name: field for field in dataclasses.fields(self.options)}
        return str(fields["task"].default)

    def epoch_size(self, split: "Split") -> int:
        """The number of samples in a split."""
        return {"sessions": split.sessions, "utterances": split.utterances}[self.samples]
