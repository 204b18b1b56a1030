"""What a task is to the loops.

Command lines read the specs to answer --help at once, so nothing here imports TensorFlow.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dcse_tf.data.manifest import Corpus
from dcse_tf.model.reranker_files import RerankerSettings
from dcse_tf.options import Options

if TYPE_CHECKING:
    import keras
    import keras_hub
    import tensorflow as tf

    from dcse_tf.data.manifest import Manifest, Split
    from dcse_tf.model.bert import TokenCentering
    from dcse_tf.model.matching_files import MatchingForm
    from dcse_tf.model.vocabulary import Vocabulary
    from dcse_tf.tasks.options import ContrastOptions

O = TypeVar("O", bound=Options)  # noqa: E741
# A setup is only read, so that of a class is one of its base classes too.
O_co = TypeVar("O_co", bound=Options, covariant=True)

Scores = dict[str, float]
Tensors = dict[str, "tf.Tensor"]
# (model, batch) -> sums over the rows of this replica: "loss" and "weight", the number of rows
# that count, by which every sum but the counts is divided; the counts of `count_batch`; and the
# task's metrics.
ComputeLoss = Callable[["keras.Model", Tensors], Tensors]
# A `dcse_tf.reranker.graph.SequenceScorer`, and the settings of the re-ranker that it is.
Scorer = tuple[Any, RerankerSettings]


@dataclasses.dataclass(frozen=True)
class EncoderParts:
    """What an encoder has besides its BERT, of which most tasks have nothing.

    Attributes:
        centering: of the token embeddings.
        matching: the form of its matching; None where it learns none.
    """

    centering: "TokenCentering | None" = None
    matching: "MatchingForm | None" = None


@dataclasses.dataclass(frozen=True)
class Setup(Generic[O_co]):
    """What a training has at hand before its model is built.

    Attributes:
        options: resolved.
        data_dir: the prepared corpus.
        manifest: its manifest.
        vocabulary: of the encoder and the corpus.
        source: the checkpoint folder that the encoder starts from; None from random weights.
        tensors: the checkpoint's tensors, for heads; empty from random weights.
        backbone: the BERT.
        encoder: the functional encoder on it, for evaluation.
        parts: what the encoder has besides the BERT.
        own_replicas: the numbers of the replicas that this process feeds; None for all.
    """

    options: O_co
    data_dir: pathlib.Path
    manifest: "Manifest"
    vocabulary: "Vocabulary"
    source: pathlib.Path | None
    tensors: dict[str, Any]
    backbone: "keras_hub.models.BertBackbone"
    encoder: "keras.Model"
    parts: EncoderParts
    own_replicas: range | None = None

    @property
    def corpus(self) -> Corpus:
        return Corpus(self.data_dir, self.manifest)


def no_parts(options: Options, dim: int) -> EncoderParts:
    return EncoderParts()


def centering_parts(options: "ContrastOptions", dim: int) -> EncoderParts:
    from dcse_tf.tasks.shared import build_centering

    return build_centering(options, dim)


def no_metrics(options: Options) -> tuple[str, ...]:
    return ()


def write_sentence_encoder(setup: Setup, model: "keras.Model", folder: pathlib.Path) -> None:
    from dcse_tf.tasks.shared import write_sentence_encoder as write

    write(setup, folder)


def no_scores(setup: Setup, model: "keras.Model") -> Callable[[], Scores]:
    return dict


@dataclasses.dataclass(frozen=True)
class TaskSpec(Generic[O]):
    """A training task: everything that the loops, the job and the command line ask of one.

    Attributes:
        options: class of its options, whose field `task` stands at the task's name. It has the
            task's defaults and checks them.
        help: what it trains, a few words for --help.
        build_model: the training model, under the strategy's scope.
        make_dataset: (setup, first step, replicas) to batches, `replicas` of them a step.
        compute_loss: (model, batch) to sums over rows.
        metrics: the sums besides loss, weight and counts.
        samples: what a batch and an epoch are counted in: "sessions" or "utterances".
        similarities: those by which response selection on dev sessions means something for it:
            "matching", "cosine", both or none; "reranker" with `make_scorer`.
        make_scorer: for a task that trains a re-ranker: makes a
            `dcse_tf.reranker.graph.SequenceScorer` with the weights as they are, and its settings.
            What the run leaves is then no sentence encoder.
        build_parts: (options, width of the token embeddings) to what the encoder has besides its
            BERT, under the strategy's scope.
        make_evaluation: makes the function that gives the task's own dev scores.
        scores: the names of these.
        lower_is_better: those of them that are the better the lower they are.
        more_metrics: further metrics that the options decide.
        end_of_turn: whether it reads dialogues as sequences, in which [EOT] follows every turn.
        write_encoder: writes what the run leaves, as a checkpoint folder, into an empty folder.
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
        """What `task` calls it."""
        fields = {field.name: field for field in dataclasses.fields(self.options)}
        return str(fields["task"].default)

    def epoch_size(self, split: "Split") -> int:
        """Samples of a split."""
        return {"sessions": split.sessions, "utterances": split.utterances}[self.samples]
