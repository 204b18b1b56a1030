"""What a task and a term of its objective are, what they are given, and the registry of tasks.

Commands import the tasks for their options and must answer --help at once, so this module does not
import TensorFlow.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from dcse_tf.data.manifest import Corpus
from dcse_tf.options import Options
from dcse_tf.reading.reranker_files import RerankerSettings

if TYPE_CHECKING:
    import keras
    import keras_hub
    import numpy as np
    import tensorflow as tf

    from dcse_tf.bert.bert import TokenCentering
    from dcse_tf.bert.vocabulary import Vocabulary
    from dcse_tf.data.dialogue_step import Segments
    from dcse_tf.data.manifest import Manifest, Split
    from dcse_tf.data.stream import Source
    from dcse_tf.data.table import Rows
    from dcse_tf.matching.equations import MatchingForm
    from dcse_tf.matching.heads import ProjectionHead
    from dcse_tf.reading.cross_encoder import Reader
    from dcse_tf.tasks.objective import Encoded, Objective

O = TypeVar("O", bound=Options)  # noqa: E741
# Covariant, because a setup is only read: one for a class of options fits its base classes too.
O_co = TypeVar("O_co", bound=Options, covariant=True)

Scores = dict[str, float]
Tensors = dict[str, "tf.Tensor"]
KerasTensors = dict[str, "keras.KerasTensor"]
# An object whose `score` maps sequences to logits, see `dcse_tf.reranker.scorers.Scorer`, and the
# settings of its re-ranker.
Scorer = tuple[Any, RerankerSettings]


@dataclasses.dataclass(frozen=True)
class EncoderParts:
    """The parts of an encoder besides its BERT; most tasks have none."""

    centering: "TokenCentering | None" = None  # of the token embeddings
    matching: "MatchingForm | None" = None  # None if it learns none
    heads: "Sequence[ProjectionHead]" = ()  # of contexts and of responses


@dataclasses.dataclass(frozen=True)
class Setup(Generic[O_co]):
    """Everything that a training run has before its model is built."""

    options: O_co  # resolved
    manifest: "Manifest"  # of the prepared corpus
    vocabulary: "Vocabulary"  # of the encoder and the corpus
    source: pathlib.Path | None = None  # the checkpoint to start from; None for random weights
    tensors: dict[str, Any] = dataclasses.field(default_factory=dict)  # of that, for heads
    backbone: "keras_hub.models.BertBackbone" = None  # None if the task trains another model
    encoder: "keras.Model" = None  # the functional encoder built on it, for evaluation
    parts: EncoderParts = EncoderParts()

    @property
    def corpus(self) -> Corpus:
        return Corpus(pathlib.Path(vars(self.options)["data_dir"]), self.manifest)


class Term:
    """A term of a task's objective: the rows that it draws, its loss, its metrics, its options.

    The objective is the sum over its terms of weight x loss, where a term's loss is the weighted
    mean over the rows of a step, on all devices. docs/extending.md has a complete example.

    Args:
        setup: the training's setup.
        weight: its weight in the objective; by default its option NAME_weight, or 0 without one. A
            term of weight 0 is left out.

    Attributes:
        name: its name, by which its option NAME_weight is found.
        options: the options that it adds to a task, off by default.
        needs_start: whether it compares the encoder with the one that training started from.
        rows: the name of its rows; terms with one name for them read the same rows, and only the
            first draws them.
        label: what its metrics begin with in the log; the first term's may be empty.
    """

    name: ClassVar[str]
    options: ClassVar[type[Options]] = Options
    needs_start: ClassVar[bool] = False

    def __init__(self, setup: "Setup[Any]", weight: float | None = None):
        self.setup = setup
        if weight is None:
            weight = float(getattr(setup.options, f"{self.name}_weight", 0.0))
        self.weight = weight
        self.rows = self.label = self.name

    def build(self, reader: "Reader") -> None:
        """Makes the term's own layers, under the strategy's scope; none by default."""

    def draw(self, step: Any) -> "Rows | Segments":
        """Draws the rows of a step, over all devices, in a graph of tf.data.

        Every random number must depend on `step.seed(self.name)` alone.

        Args:
            step: the `Step`; `Step.add` adds the texts that the rows read.
        """
        raise NotImplementedError

    def compute(self, encoded: "Encoded", rows: KerasTensors) -> KerasTensors:
        """Computes the loss and metrics of each of a replica's rows.

        It is called once, on symbolic tensors, and becomes part of a functional model: use
        layers and `keras.ops` alone.

        Args:
            encoded: the table as the encoder reads it.
            rows: the rows' tensors by their names in `Rows`, see `make_batches`.

        Returns:
            "loss" and any metrics, float32 `[rows]`, of which the framework takes weighted means.
            "weights" and "total", if the rows' weights are not those called weights.
        """
        raise NotImplementedError

    def count(self, rows: KerasTensors) -> KerasTensors:
        """Counts that the trainer adds up without weights, float32 scalars; none by default."""
        return {}

    def find_chance(self, arrays: "Mapping[str, np.ndarray]") -> float | None:
        """The accuracy of the best rule that does not read, of 1, on the dev rows; None if unknown.

        Args:
            arrays: the rows' tensors by their names in `Rows`, of all batches of dev data.
        """
        return None


def centering_parts(options: Options, dim: int) -> EncoderParts:
    """The parts of an encoder with centred token embeddings, if an option says `center_tokens`."""
    from dcse_tf.bert.bert import TokenCentering

    centred = getattr(options, "center_tokens", False)
    return EncoderParts(TokenCentering(dtype="float32") if centred else None)


def read_with_backbone(setup: Setup) -> "Reader":
    """The encoder's BERT as the reader of tables."""
    from dcse_tf.reading.cross_encoder import read_with_bert

    return read_with_bert(setup.backbone)


def write_sentence_encoder(setup: Setup, objective: "Objective", folder: pathlib.Path) -> None:
    from dcse_tf.tasks import objective as at_work

    at_work.write_sentence_encoder(setup, folder)


@dataclasses.dataclass(frozen=True)
class TaskSpec(Generic[O]):
    """A training task: everything that the training loop, the job and the command line need of it.

    Attributes:
        options_class: class of its options, with the task's defaults and checks. The default of its
            field `task` is the task's name.
        help: what the task trains, in a few words for --help.
        make_source: setup -> what its batches are made of.
        list_terms: setup -> the terms of its objective; those of weight 0 are left out. The first
            one's rows are its samples.
        samples: the unit of batches and epochs: "sessions" or "utterances".
        similarities: the similarities to evaluate by response selection on dev sessions:
            "matching", "cosine", both or none; "reranker" with `make_scorer`. An option may add
            to them, see `TrainOptions.similarities`.
        build_parts: (options, width of the token embeddings) -> the encoder's parts besides its
            BERT; called under the strategy's scope. By default the centring of `ContrastOptions`.
        make_reader: setup -> what reads the tables; called under the strategy's scope.
        scores: names of the dev scores that its terms give: "LABEL_accuracy", "LABEL_loss" and
            "LABEL_chance"; see `dcse_tf.tasks.objective.make_evaluation`.
        percent: whether these are percentages.
        lower_is_better: names of those scores for which lower is better.
        end_of_turn: whether it reads dialogues as sequences in which [EOT] follows every turn.
        write_encoder: (setup, objective, empty folder): writes the run's result as a checkpoint
            folder.
        make_scorer: for a task that trains a re-ranker: (setup, objective) -> a
            `dcse_tf.reranker.scorers.Scorer` on tensors with the current weights, and its
            settings. The run's result is then not a sentence encoder.
    """

    options_class: type[O]
    help: str
    make_source: Callable[[Setup[O]], "Source"]
    list_terms: Callable[[Setup[O]], Sequence[Term]]
    samples: str = "sessions"
    similarities: tuple[str, ...] = ("cosine",)
    build_parts: Callable[[O, int], EncoderParts] = centering_parts
    make_reader: Callable[[Setup[O]], "Reader"] = read_with_backbone
    scores: Callable[[O], tuple[str, ...]] = lambda options: ()
    percent: bool = True
    lower_is_better: Sequence[str] = ()
    end_of_turn: bool = False
    write_encoder: Callable[[Setup[O], "Objective", pathlib.Path], None] = write_sentence_encoder
    make_scorer: Callable[[Setup[O], "Objective"], Scorer] | None = None
    # Terms that were registered for it, see `register_term`.
    further_terms: list[type[Term]] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """The task's name, the value of the option `task`."""
        return str(self.options_class.fields()["task"].default)

    @property
    def options(self) -> type[O]:
        """The class of its options, with those of further terms."""
        own: Any = self.options_class
        further = tuple(term.options for term in self.further_terms)
        return _add_options(own, further) if further else own

    def choose_terms(self, setup: Setup[O]) -> list[Term]:
        """The terms that have a weight, the first one first."""
        further = [term(setup) for term in self.further_terms]
        return [term for term in (*self.list_terms(setup), *further) if term.weight > 0.0]

    def epoch_size(self, split: "Split") -> int:
        """The number of samples in a split."""
        return {"sessions": split.sessions, "utterances": split.utterances}[self.samples]


@functools.cache
def _add_options(own: Any, further: tuple[type[Options], ...]) -> Any:
    """A class of options with those of further classes, under the name of the first one."""
    names = {"__module__": own.__module__, "__doc__": own.__doc__}
    return type(own.__name__, (*further, own), names)


# In order of registration.
TASKS: dict[str, TaskSpec[Any]] = {}


def register_task(spec: TaskSpec[Any]) -> None:
    """Registers a task under its name, also for the command line.

    docs/extending.md has a complete example.

    Raises:
        ValueError: a task of this name exists.
    """
    if not spec.name or spec.name in TASKS:
        raise ValueError(f"task {spec.name!r}: expected a name that no other has")
    TASKS[spec.name] = spec


def register_term(term: type[Term], tasks: Sequence[str]) -> None:
    """Adds a term to the objective of tasks, with its options, which must leave it out by default.

    docs/extending.md has a complete example.

    Args:
        term: the term.
        tasks: names of the tasks.

    Raises:
        ValueError: a task is unknown or has such a term, or the term has no name.
    """
    for name in tasks:
        if name not in TASKS:
            raise ValueError(f"{name!r}: expected one of the tasks {', '.join(TASKS)}")
        own = {other.name for other in TASKS[name].further_terms}
        if not term.name or term.name in own:
            raise ValueError(f"term {term.name!r} of {name}: expected a name that no other has")
    for name in tasks:
        TASKS[name].further_terms.append(term)
