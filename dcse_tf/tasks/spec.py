"""What a term of a task's objective is, what tasks and terms are given, and their registry.

This module does not import TensorFlow, so that plug-ins can be imported for --help.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dcse_tf.bert.sentence_modules import SentenceModules
from dcse_tf.options import Options, is_edited
from dcse_tf.reading.reranker_files import RerankerSettings

if TYPE_CHECKING:
    import keras
    import keras_hub
    import tensorflow as tf

    from dcse_tf.bert.bert import TokenCentering
    from dcse_tf.bert.vocabulary import Vocabulary
    from dcse_tf.data.dialogue_step import Segments
    from dcse_tf.data.manifest import Manifest
    from dcse_tf.data.table import Rows
    from dcse_tf.matching.equations import TurnAttention
    from dcse_tf.matching.heads import AffineMaps, ProjectionHead
    from dcse_tf.reading.cross_encoder import Reader
    from dcse_tf.tasks.objective import Encoded
    from dcse_tf.tasks.train_options import TrainOptions

Scores = dict[str, float]
Tensors = dict[str, "tf.Tensor"]
KerasTensors = dict[str, "keras.KerasTensor"]
# What scores sequences, see `dcse_tf.reranker.scorers.Scorer`, and its re-ranker's settings.
Scorer = tuple[Any, RerankerSettings]


@dataclasses.dataclass(frozen=True)
class EncoderParts:
    """The parts of an encoder besides its BERT; most tasks have none."""

    centering: "TokenCentering | None" = None  # of the token embeddings
    learns_matching: bool = False
    attention: "TurnAttention | None" = None  # of the turns in the matching; None for their mean
    heads: "Sequence[ProjectionHead]" = ()  # of contexts and of responses
    dense: "AffineMaps | None" = None  # the start's Dense modules, on tokens; they stay as they are


@dataclasses.dataclass(frozen=True)
class Setup:
    """Everything that a training run has before its model is built."""

    options: Any  # of the task, resolved
    manifest: "Manifest"  # of the prepared corpus
    vocabulary: "Vocabulary"  # of the encoder and the corpus
    source: pathlib.Path | None = None  # the checkpoint to start from; None for random weights
    modules: SentenceModules = dataclasses.field(default_factory=SentenceModules)  # behind that
    tensors: dict[str, Any] = dataclasses.field(default_factory=dict)  # of that, for heads
    backbone: "keras_hub.models.BertBackbone" = None  # None if the task trains another model
    encoder: "keras.Model" = None  # the functional encoder built on it, for evaluation
    parts: EncoderParts = EncoderParts()

    @property
    def data_dir(self) -> pathlib.Path:
        return pathlib.Path(self.options.data_dir)


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
        rows: the name of its rows, by default its own; terms with one name for them read the same
            rows, and only the first draws them.
        label: what its metrics begin with in the log; the first term's may be empty.
        fade: share of the training after which its weight falls in a line, to 0 at the end.
    """

    name: ClassVar[str]
    options: ClassVar[type[Options]] = Options
    needs_start: ClassVar[bool] = False
    rows: str = ""

    def __init__(self, setup: Setup, weight: float | None = None):
        self.setup = setup
        own = getattr(setup.options, f"{self.name}_weight", 0.0)
        self.weight = float(own) if weight is None else weight
        self.label = self.name
        self.rows = self.rows or self.name
        self.fade = 1.0

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


class TermOptions(Options):
    """Base of the options that a term adds to a task, and of the tasks' own.

    A term's class comes before the task's in the list of bases, and calls `super()` in all of these
    methods, so that every class of a task has its say.
    """

    @property
    def divided(self) -> tuple[str, ...]:
        """The names of the numbers of a step's elements that are divided among the devices."""
        return ()

    def check(self) -> None:
        """Refuses options that contradict each other, whatever the corpus.

        Raises:
            OptionError: the message names the option.
        """


# The classes of the tasks by name, with the options of registered terms, in order of registration.
TASKS: dict[str, type["TrainOptions"]] = {}
T = TypeVar("T", bound=type["TrainOptions"])


def register_task(task: T) -> T:
    """Registers a task under its name, also for the command line; a decorator of its class.

    docs/extending.md has a complete example. An edited class replaces the earlier one, and then has
    no terms of `register_term`.

    Raises:
        ValueError: another task has this name.
    """
    name: Any = task.fields()["task"].default
    if not name or not is_edited(task, TASKS.get(name, task)):
        raise ValueError(f"task {name!r}: expected a name that no other has")
    TASKS[name] = task
    return task


def register_term(term: type[Term], tasks: Sequence[str]) -> None:
    """Adds a term to the objective of tasks, with its options, which must leave it out by default.

    docs/extending.md has a complete example.

    Args:
        term: the term; it replaces an earlier version of itself, of the same module and name.
        tasks: names of the tasks.

    Raises:
        ValueError: a task is unknown or has another such term, or the term has no name.
    """
    for name in tasks:
        if name not in TASKS:
            raise ValueError(f"{name!r}: expected one of the tasks {', '.join(TASKS)}")
        known = {other.name: other for other in TASKS[name].further_terms}
        if not term.name or not is_edited(term, known.get(term.name, term)):
            raise ValueError(f"term {term.name!r} of {name}: expected a name that no other has")
    for name in tasks:
        # A class of the task's module and name, with the options of all its terms.
        plain: Any = vars(TASKS[name]).get("plain", TASKS[name])
        terms = {other.name: other for other in (*TASKS[name].further_terms, term)}.values()
        own, names = plain, {x: getattr(plain, x) for x in ("__module__", "__qualname__")}
        names |= {"plain": plain, "further_terms": tuple(terms)}
        for each in terms:
            bases = (own,) if issubclass(own, each.options) else (each.options, own)
            own = TASKS[name] = type(own.__name__, bases, names)
