"""Options of training: those that all tasks have and those that several tasks share.

A task's own class adds options to these and sets its defaults, see `dcse_tf.tasks.registry`.
"""

import dataclasses
from typing import TYPE_CHECKING, Self

from dcse_tf.data.dialogue import Context
from dcse_tf.evaluation.names import CANDIDATES, RETRIEVAL, STS, all_contexts, rank_scores
from dcse_tf.options import OptionError, Options, option
from dcse_tf.tasks import registry

if TYPE_CHECKING:
    from dcse_tf.data.manifest import Manifest

# Sizes of Turc et al. 2019 ("Well-Read Students Learn Better"), table 1; "base" is BERT's own.
ENCODER_SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
}


MOST_EPOCHS = 1e6


@dataclasses.dataclass(frozen=True)
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

    def check_start_of(self, name: str) -> None:
        """Refuses an option, if it is given, without an encoder that training starts from."""
        if self.is_given(name) and not vars(self)["encoder"]:
            self.refuse(name, "needs an `encoder`: embeddings from random weights mean nothing")


@dataclasses.dataclass(frozen=True)
class RunOptions(TermOptions):
    """Seed, devices, and how often the training loop logs, saves and evaluates."""

    seed: int = option(0, "Seed of all randomness in the run.", minimum=0, group="optimizer")
    deterministic: bool = option(
        False,
        "Make every operation deterministic: slower, but the same result bit for bit.",
        group="devices and speed",
    )
    logical_cpus: int = option(
        1,
        "Without a GPU: train data-parallel on this many logical CPU devices. GPUs are all "
        "used, if there are any.",
        minimum=1,
        maximum=1024,
        group="devices and speed",
        resume="free",
    )
    log_every: int = option(
        10, "Steps between two summaries.", minimum=1, group="log and checkpoints", resume="free"
    )
    save_every: int = option(
        200, "Steps between two checkpoints.", minimum=1, group="log and checkpoints", resume="free"
    )
    eval_every: int = option(
        200,
        "Steps between two evaluations on dev data.",
        minimum=1,
        group="evaluation",
        resume="from now on",
    )
    dev_samples: int = option(
        200,
        "Samples of the dev split to use in an evaluation. 0: none.",
        minimum=0,
        group="evaluation",
    )
    dev_retrieval: str = option(
        "",
        "select.txt file evaluated while training (MAP, MRR). Default: none.",
        path="files",
        group="evaluation",
    )
    dev_sts: str = option(
        "",
        "sts.txt file evaluated while training (Spearman). Default: none.",
        path="files",
        group="evaluation",
    )
    best_metric: str = option(
        "dev/cosine_r1",
        "Dev score by which the best encoder is kept, such as dev/cosine_r1, dev/map, "
        "dev/spearman. For a loss the lowest value is the best, otherwise the highest.",
        group="evaluation",
    )


@dataclasses.dataclass(frozen=True)
class TrainOptions(RunOptions):
    """Trains an encoder on dialogues, on single utterances, or by masked language modelling."""

    variants = ("task", registry.TASKS)

    task: str = option(
        "dialogue_cse",
        "What the encoder learns, and from what.",
        choices=registry.TASKS,
        group="main",
    )
    data_dir: str = option(
        "", "Folder written by prepare_data.", required=True, path="reads", group="main"
    )
    encoder: str = option(
        "",
        "Checkpoint to start from: a folder, a hub name, package:NAME or a run directory. Give "
        "this or `encoder_size`.",
        path="reads",
        group="main",
    )
    encoder_size: str = option(
        "",
        "Start from random weights of this size (layers/width: "
        + ", ".join(f"{k} {v[0]}/{v[1]}" for k, v in ENCODER_SIZES.items())
        + ") with the vocabulary of `data_dir`.",
        choices=("", *ENCODER_SIZES),
        group="main",
    )
    token_vectors: str = option(
        "",
        "With `encoder_size`: file of word or character vectors (see fit_baseline --help) "
        "that initialise the token embeddings, projected to their width; other tokens start "
        "random.",
        path="files",
        group="encoder",
    )
    run_dir: str = option(
        "",
        "Folder for checkpoints, TensorBoard events, the configuration and the trained encoder. "
        "Running the same command again resumes from the last checkpoint.",
        required=True,
        path="resumes",
        group="main",
    )
    steps: int = option(
        0,
        "Optimizer steps in total. 0: computed from `epochs`.",
        minimum=0,
        group="main",
        resume="from now on",
    )
    epochs: float = option(
        1.0,
        "Passes over the samples of the train split, if `steps` is 0. Some presets set `steps`: "
        "then give `steps`=0 as well.",
        minimum=0.0,
        maximum=MOST_EPOCHS,
        group="main",
        resume="free",
    )
    global_batch_size: int = option(
        64,
        "Samples in each step, over all devices: sessions or, for a task that learns from "
        "single utterances, utterances.",
        minimum=1,
        group="main",
    )
    learning_rate: float = option(3e-5, "Peak learning rate.", minimum=0.0, group="main")
    warmup_steps: int = option(
        -1, "Steps of linear warm-up. -1: a tenth of `steps`.", minimum=-1, group="optimizer"
    )
    decay: str = option(
        "exponential",
        "After the warm-up: exponential (x 0.98 every 10,000 steps, never below 1e-5 if it "
        "started above, as the authors' code does), linear (to 0 at `steps`), or constant.",
        choices=("exponential", "linear", "constant"),
        group="optimizer",
    )
    weight_decay: float = option(
        0.01,
        "AdamW's decoupled weight decay; not applied to biases and layer norms.",
        minimum=0.0,
        group="optimizer",
    )
    clip_norm: float = option(
        3.0,
        "Largest global norm of the gradient; larger gradients are scaled down.",
        minimum=1e-30,
        group="optimizer",
    )
    dropout: float = option(
        0.1,
        "Dropout probability inside the encoder while training.",
        minimum=0.0,
        maximum=0.9,
        group="encoder",
    )
    layout: str = option(
        "",
        "How the utterances of a batch are arranged for the encoder; the result is the same. "
        "packed: several in a row; padded: all to the longest. Default: packed, or padded if the "
        "batch allows nothing else.",
        choices=("", "packed", "padded"),
        group="devices and speed",
    )
    row_length: int = option(
        0,
        "packed: tokens in a row, at least as many as in the longest sequence. 0: 64, or "
        "those of the longest sequence if it has more.",
        minimum=8,
        or_zero=True,
        maximum=65_536,
        group="devices and speed",
    )
    compute_dtype: str = option(
        "float32",
        "Type that the encoder computes in; weights, similarity and loss stay float32. "
        "bfloat16 is faster only on CPUs and GPUs that support it.",
        choices=("float32", "bfloat16"),
        group="devices and speed",
    )
    freeze_layers: int = option(
        0,
        "Number of transformer layers, from the bottom, that are not trained; -1: half of them.",
        minimum=-1,
        group="encoder",
    )
    freeze_embeddings: bool = option(False, "Do not train the embedding layers.", group="encoder")
    lora_rank: int = option(
        0,
        "Instead of the layers that are not frozen, train adapters of this rank on their "
        "queries and values (LoRA, Hu et al. 2022). For large encoders: checkpoints contain "
        "only the adapters, and the encoder that is written has them merged in. Adapters need "
        "several times the learning rate. 0: none.",
        minimum=0,
        maximum=1024,
        group="encoder",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check()

    @property
    def context(self) -> Context:
        """The turns around a response, also in dev response selection.

        The paper's choice, for tasks without an option for it.
        """
        return Context(3, "both")

    def default_layout(self) -> str:
        """The layout to use if `layout` is not given."""
        return "packed"

    def longest_sequence(self, longest_utterance: int) -> int:
        """The largest number of tokens in a sequence that the encoder reads.

        Args:
            longest_utterance: tokens in the corpus's longest utterance.
        """
        return longest_utterance

    def check(self) -> None:
        super().check()
        spec = registry.TASKS[self.task]
        if not isinstance(self, spec.options_class):
            self.refuse("task", f"expected options of the class {spec.options_class.__name__}")
        self.check_start()
        for name in self.divided:
            if getattr(self, name) % self.logical_cpus:
                self.refuse(name, f"not divisible by `logical_cpus`={self.logical_cpus}")
        # Without this check, a wrong name would fail at the first evaluation, hundreds of steps in.
        known = self.dev_scores()
        if self.best_metric not in known:
            self.refuse("best_metric", f"with these settings the scores are {', '.join(known)}")

    @property
    def divided(self) -> tuple[str, ...]:
        return (*super().divided, "global_batch_size")

    @property
    def similarities(self) -> tuple[str, ...]:
        """The similarities by which dev responses are ranked, see `TaskSpec`."""
        return registry.TASKS[self.task].similarities

    def dev_scores(self) -> list[str]:
        """The names of the scores that an evaluation on dev data gives."""
        spec = registry.TASKS[self.task]
        ranked = [name for kind in all_contexts(self.similarities) for name in rank_scores(kind)]
        of_files = [*(RETRIEVAL if self.dev_retrieval else ()), *(STS if self.dev_sts else ())]

        # Without dev samples, only the files give scores. Without either there are none, and the
        # name of the best metric is checked all the same.
        names = [*spec.scores(self), *ranked, *of_files]
        if of_files and not self.dev_samples:
            names = of_files
        return [f"dev/{name}" for name in names]

    @property
    def has_bert(self) -> bool:
        """Whether the model trained is a BERT."""
        return True

    def check_start(self) -> None:
        """Refuses missing, unusable or contradictory sources of the initial weights."""
        if bool(self.encoder) == bool(self.encoder_size):
            raise OptionError("give either `encoder` (a checkpoint) or `encoder_size` (random)")
        if self.token_vectors and not self.encoder_size:
            self.refuse("token_vectors", "needs `encoder_size`: a checkpoint has its own")
        run_dir = self.run_dir.rstrip("/")
        if self.encoder.rstrip("/") in (run_dir, f"{run_dir}/encoder"):
            self.refuse("run_dir", "contains the encoder to start from and would overwrite it")

    def resolve(self, manifest: "Manifest", positions: int = 512) -> Self:
        """Fills in all values that depend on the corpus, so that the run's JSON records them.

        Resolving twice changes nothing.

        Args:
            manifest: the corpus's manifest.
            positions: the largest number of tokens in a sequence that the encoder can read.

        Raises:
            OptionError: the batch, the rows or the best metric do not fit the corpus.
        """
        self._check_best_metric(manifest.splits["dev"].sessions)
        samples = registry.TASKS[self.task].epoch_size(manifest.splits["train"])
        batch = self.global_batch_size
        if batch > samples:
            raise OptionError(
                f"`global_batch_size`={batch}: the train split of {self.data_dir} has only "
                f"{samples} samples"
            )
        steps = self.steps or max(1, round(self.epochs * samples / batch))
        layout = self.layout or self.default_layout()
        longest = self.longest_sequence(manifest.max_sequence_length)
        row_length = self.row_length or max(64, longest)
        if layout == "packed" and row_length < longest:
            raise OptionError(
                f"`row_length`={row_length}: sequences of {self.data_dir} have up to {longest} "
                "tokens, and each lies in one row"
            )
        return self.replace(
            steps=steps,
            # Computed from the steps, so that the two always agree.
            epochs=min(steps * batch / samples, MOST_EPOCHS),
            warmup_steps=steps // 10 if self.warmup_steps < 0 else self.warmup_steps,
            layout=layout,
            row_length=row_length,
        )

    def _check_best_metric(self, dev_sessions: int) -> None:
        """Refuses a rank among too few responses, unless there are no scores at all."""
        sessions = min(self.dev_samples, dev_sessions)
        kinds = all_contexts(self.similarities)
        ranks = {f"dev/{name}" for kind in kinds for name in rank_scores(kind)}
        others = [name for name in self.dev_scores() if name not in ranks]
        scored = sessions > 1 or self.dev_retrieval or self.dev_sts
        if sessions < CANDIDATES and self.best_metric in ranks and others and scored:
            self.refuse(
                "best_metric",
                f"ranks a response among {CANDIDATES}, and of {self.data_dir} only {sessions} dev "
                "sessions are used; prepare it with a larger `dev_fraction`, give a larger "
                f"`dev_samples`, or choose by one of {', '.join(others)}",
            )

    def list_warnings(self, manifest: "Manifest") -> list[str]:
        """What a user should know of resolved options and the corpus before training begins."""
        return []


@dataclasses.dataclass(frozen=True)
class ContextOptions(Options):
    """For tasks that let the user choose the turns around a response.

    It comes before the base class in the list of a task's bases.
    """

    context_turns: int = option(
        3,
        "Context turns on each side of the response, at most; in dev response selection before it.",
        minimum=1,
        maximum=1000,
        group="batches and context",
    )
    context_side: str = option(
        "both",
        "Turns before and after the response (both, as in the paper) or before only.",
        choices=("both", "before"),
        group="batches and context",
    )

    @property
    def context(self) -> Context:
        """The turns around a response."""
        return Context(self.context_turns, self.context_side)


@dataclasses.dataclass(frozen=True)
class ContrastOptions(Options):
    """For tasks that contrast a positive with negatives.

    It comes before the base class in the list of a task's bases.
    """

    temperature: float = option(
        0.1, "Temperature of the contrastive loss (equation 8).", minimum=1e-4
    )
    center_tokens: bool = option(
        False,
        "Subtract the mean token embedding, a running average, before matching and pooling. "
        "Not in the paper; keeps similarities from saturating. The trained encoder includes "
        "it in its weights.",
        group="encoder",
    )


@dataclasses.dataclass(frozen=True)
class BatchOptions(TrainOptions):
    """For tasks whose sample is a session: a response, its context, and negatives from others."""

    batch_form: str = option(
        "unique",
        "What a batch consists of. plain: one random response from each session; every use of "
        "an utterance is encoded separately and padded to the longest of the corpus, as in "
        "the paper; unique: the same, but each distinct utterance is encoded once; dense: "
        "every turn of a session is a response, and each distinct utterance is encoded once.",
        choices=("plain", "unique", "dense"),
        group="batches and context",
    )
    session_turns: int = option(
        16,
        "dense: consecutive turns used in a visit to a session, at most; drawn at random.",
        minimum=2,
        maximum=10_000,
        group="batches and context",
    )
    negatives: int = option(
        9,
        "Negatives for each positive, drawn from other sessions of the batch; all (0): all "
        "that the batch has.",
        minimum=0,
        words={"all": 0},
        group="batches and context",
    )

    def default_layout(self) -> str:
        return "padded" if self.batch_form == "plain" else super().default_layout()

    def check(self) -> None:
        super().check()
        if self.is_given("session_turns") and self.batch_form != "dense":
            self.refuse("session_turns", "has no meaning without `batch_form`=dense")
        if self.batch_form == "plain" and self.layout not in ("", "padded"):
            self.refuse("layout", "`batch_form`=plain pads every utterance, so only padded")
        # A session gives one response or, with dense, at least two.
        each = 2 if self.batch_form == "dense" else 1
        most = each * (self.global_batch_size - 1)
        if max(1, self.negatives) > most:
            self.refuse(
                "negatives",
                "they come from the other sessions of the batch, so at most "
                f"{each} x (`global_batch_size` - 1) = {most}",
            )


@dataclasses.dataclass(frozen=True)
class MaskingOptions(TrainOptions):
    """For tasks that predict masked tokens."""

    mask_rate: float = option(0.15, "Share of the tokens to predict.", minimum=0.0, maximum=1.0)
    max_predictions: int = option(
        10,
        "Predictions in a sequence (with mlm: an utterance), at most.",
        minimum=1,
        maximum=10_000,
    )
