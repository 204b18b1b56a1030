"""Options of `train`, and what each task puts where a flag was not given."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from dcse_tf.data.dialogue import Context
from dcse_tf.options import OptionError, Options, option

# Tasks whose sample is a session: a response, its context and negatives from other sessions.
DIALOGUE_TASKS = ("dialogue_cse", "siamese_single", "siamese_multi")

# The paper's figures (section 5.3) where it gives one; epochs of sessions are ours (a visit to a
# session trains on one of its turns).
_DIALOGUES: dict[str, Any] = {
    "epochs": 10.0,
    "global_batch_size": 20,
    "learning_rate": 5e-5,
    "freeze_layers": -1,
    "freeze_embeddings": True,
    "temperature": 0.1,
    "context_turns": 3,
    "context_side": "both",
}

# Settings whose default depends on the task. A network's scores know no temperature (1). The
# figures of simcse are those of Gao et al. 2021 for an unsupervised BERT-base: one pass, 64
# sentences a step, 3e-5, temperature 0.05, nothing frozen.
TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    "dialogue_cse": _DIALOGUES,
    "mlm": {
        **_DIALOGUES,
        "epochs": 0.5,
        "global_batch_size": 50,
        "learning_rate": 2e-5,
        "freeze_layers": 0,
        "freeze_embeddings": False,
    },
    "siamese_single": {
        **_DIALOGUES,
        "temperature": 1.0,
        "context_turns": 1,
        "context_side": "before",
    },
    "siamese_multi": {**_DIALOGUES, "temperature": 1.0},
    "simcse": {
        **_DIALOGUES,
        "epochs": 1.0,
        "global_batch_size": 64,
        "learning_rate": 3e-5,
        "freeze_layers": 0,
        "freeze_embeddings": False,
        "temperature": 0.05,
    },
}

# The dev score by which the best encoder is kept.
BEST_METRICS = {
    "dialogue_cse": "dev/response_r1",
    "mlm": "dev/accuracy",
    **dict.fromkeys(("siamese_single", "siamese_multi", "simcse"), "dev/cosine_r1"),
}

# Of all other dev scores the higher is the better.
LOWER_IS_BETTER = {"dev/loss"}


def describe_defaults(name: str, tasks: Sequence[str] = tuple(TASK_DEFAULTS)) -> str:
    """For the help: the default of a setting in each of some tasks, those of one value together."""
    values: dict[Any, list[str]] = {}
    for task in tasks:
        values.setdefault(TASK_DEFAULTS[task][name], []).append(task)
    return "Default: " + "; ".join(f"{v} ({', '.join(names)})" for v, names in values.items()) + "."


# Sizes of Turc et al. 2019 ("Well-Read Students Learn Better"), table 1; "base" is BERT's own.
ENCODER_SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
}


@dataclasses.dataclass(frozen=True)
class RunOptions(Options):
    """Seed, devices, and how often the outer loop does what."""

    seed: int = option(0, "Seed of everything random in the run.", minimum=0)
    deterministic: bool = option(
        False, "Make every operation deterministic: slower, the same result bit for bit."
    )
    logical_cpus: int = option(
        1,
        "Without a GPU: train data-parallel on this many logical CPU devices. With GPUs every "
        "visible one is used.",
        minimum=1,
        maximum=1024,
    )
    log_every: int = option(10, "Steps between two summaries.", minimum=1)
    save_every: int = option(200, "Steps between two checkpoints.", minimum=1)
    eval_every: int = option(200, "Steps between two evaluations on dev data.", minimum=1)
    keep_checkpoints: int = option(2, "Checkpoints kept, the latest ones.", minimum=1)
    on_divergence: str = option(
        "stop",
        "When the loss of a step is no number, or above `loss_limit`: stop; or skip, that is go "
        "back to the last checkpoint and leave the batch out. Its sessions are written either way.",
        choices=("stop", "skip"),
    )
    loss_limit: float = option(1000.0, "A step's loss above this counts as diverged.", minimum=0.0)
    max_skipped: int = option(
        3, "With `on_divergence`=skip: batches left out at most in the whole run.", minimum=1
    )
    profile_steps: int = option(
        0,
        "Steps to trace for TensorBoard's Profile page (which needs tensorboard-plugin-profile), "
        "after the first ten of this start. 0: none.",
        minimum=0,
    )
    projector_sentences: int = option(
        1000,
        "Dev sentences that TensorBoard's Projector page shows as the kept encoder embeds them: of "
        "`dev_retrieval` with their intents, or else of the dev split. 0: none.",
        minimum=0,
    )
    dev_samples: int = option(
        200, "Samples of the dev split that an evaluation uses. 0: none.", minimum=0
    )
    dev_retrieval: str = option(
        "",
        "select.txt file evaluated while training (MAP, MRR). Default: none.",
        files=True,
    )
    dev_sts: str = option(
        "",
        "sts.txt file evaluated while training (Spearman). Default: none.",
        files=True,
    )
    best_metric: str = option(
        "",
        "Dev score by which the best encoder is kept, such as dev/response_r1, dev/map, "
        "dev/spearman; of dev/loss the lowest is the best, of all others the highest. Default: "
        "dev/response_r1 (dialogue_cse), dev/accuracy (mlm), dev/cosine_r1 (the others).",
    )


_CONTRASTIVE = (*DIALOGUE_TASKS, "simcse")
# Settings that only some tasks have. Not `negatives`: flags/debug.flags is for all of them.
_OF_TASKS = {
    "temperature": _CONTRASTIVE,
    "center_tokens": _CONTRASTIVE,
    "context_turns": _CONTRASTIVE,
    "context_side": _CONTRASTIVE,
    "batch_form": DIALOGUE_TASKS,
    "session_turns": DIALOGUE_TASKS,
    "aggregation": ("dialogue_cse",),
    "cosine_weight": ("dialogue_cse",),
    "context_tokens": ("siamese_multi",),
    "mask_rate": ("mlm",),
    "max_predictions": ("mlm",),
}


def check_train(config: "TrainOptions") -> None:
    """Raises OptionError if settings contradict each other, whatever the corpus."""
    _check_start(config)
    _check_task(config)
    _check_batch(config)
    _check_best_metric(config)


def _check_start(config: "TrainOptions") -> None:
    if bool(config.encoder) == bool(config.encoder_size):
        raise OptionError("give either `encoder` (a checkpoint) or `encoder_size` (random)")
    if config.token_vectors and not config.encoder_size:
        config.refuse("token_vectors", "a checkpoint has its own; only for `encoder_size`")
    if config.token_vectors.endswith(".npz") != bool(config.token_index):
        raise OptionError("`token_index` goes with `token_vectors`=FILE.npz, and only with it")
    run_dir = config.run_dir.rstrip("/")
    if config.encoder.rstrip("/") in (run_dir, f"{run_dir}/encoder"):
        config.refuse("run_dir", "its encoder would be replaced while it is started from")


def _check_task(config: "TrainOptions") -> None:
    own = TASK_DEFAULTS[config.task]
    for name, tasks in _OF_TASKS.items():
        # A configuration with every default filled in has the task's own.
        filled = getattr(config, name) == own.get(name, ())
        if config.task not in tasks and config.is_given(name) and not filled:
            config.refuse(
                name, f"has no meaning with `task`={config.task}, only with {', '.join(tasks)}"
            )
    if config.is_given("session_turns") and config.batch_form != "dense":
        config.refuse("session_turns", "has no meaning without `batch_form`=dense")
    if config.aggregation != "mean" and config.cosine_weight == 1.0:
        config.refuse("aggregation", "with `cosine_weight`=1 there is no matching")
    for name, only in {"context_turns": 1, "context_side": "before"}.items():
        if config.task == "siamese_single" and getattr(config, name) not in (None, only):
            config.refuse(
                name,
                "`task`=siamese_single pairs a response with the one turn before it, so only "
                f"{only}",
            )


def _check_batch(config: "TrainOptions") -> None:
    if config.pads_all() and config.layout not in ("", "padded"):
        config.refuse("layout", "`batch_form`=plain pads every utterance, so only padded")
    if config.jit_compile and config.layout == "bucketed":
        config.refuse("layout", "its shapes change at every step; not compiled")
    batch = config.global_batch_size or TASK_DEFAULTS[config.task]["global_batch_size"]
    if batch % config.logical_cpus:
        raise OptionError(
            f"`global_batch_size`={batch}: not divisible by `logical_cpus`={config.logical_cpus}"
        )
    if config.task not in DIALOGUE_TASKS:
        return
    # A session gives one response, or with dense two at least.
    each = 2 if config.batch_form == "dense" else 1
    if max(1, config.negatives) > each * (batch - 1):
        config.refuse(
            "negatives",
            "they come from the other sessions of the batch, so at most "
            f"{each} x (`global_batch_size` - 1) = {each * (batch - 1)}",
        )


def _check_best_metric(config: "TrainOptions") -> None:
    """The score is looked for at the first evaluation, after hundreds of steps."""
    kinds = ("response", "cosine") if config.task == "dialogue_cse" else ("cosine",)
    scores = [f"dev/{kind}_{name}" for kind in kinds for name in ("r1", "r2", "r5", "mrr")]
    if config.task == "mlm":
        scores = ["dev/accuracy", "dev/loss"]
    of_files = (["dev/map", "dev/mrr"] if config.dev_retrieval else []) + (
        ["dev/spearman"] if config.dev_sts else []
    )
    # Without dev samples the files give the only scores; without files there is none to look for.
    known = of_files if of_files and not config.dev_samples else [*scores, *of_files]
    best = config.best_metric or BEST_METRICS[config.task]
    if best not in known:
        raise OptionError(
            f"`best_metric`={best}: with these settings the scores are {', '.join(known)}"
        )


@dataclasses.dataclass(frozen=True)
class TrainOptions(RunOptions):
    """Trains an encoder: on dialogues, on single utterances, or by masked language modelling."""

    task: str = option(
        "dialogue_cse",
        "What to train: dialogue_cse (the paper's contrastive objective), mlm (continued "
        "pre-training by masked language modelling), or a baseline: siamese_single (pairs of a "
        "turn and the next, scored by a network from [u, v, |u-v|]), siamese_multi (the same, u "
        "from the context's turns in one sequence), simcse (each utterance against itself under "
        "another dropout).",
        choices=tuple(TASK_DEFAULTS),
    )
    data_dir: str = option("", "Folder that prepare_data wrote.", required=True)
    encoder: str = option(
        "",
        "Checkpoint to start from: a folder, a hub name, package:NAME or a run directory. Give "
        "this or `encoder_size`.",
    )
    encoder_size: str = option(
        "",
        "Start from random weights of this size (layers/width: "
        + ", ".join(f"{k} {v[0]}/{v[1]}" for k, v in ENCODER_SIZES.items())
        + ") with the vocabulary of `data_dir`.",
        choices=("", *ENCODER_SIZES),
    )
    token_vectors: str = option(
        "",
        "With `encoder_size`: file of word or character vectors (see fit_baseline --help) from "
        "which the token embeddings start, projected to their width; other tokens start random.",
        files=True,
    )
    token_index: str = option(
        "",
        "Of `token_vectors`=FILE.npz: JSON file of the words' rows.",
        files=True,
    )
    run_dir: str = option(
        "",
        "Folder for checkpoints, TensorBoard events, the configuration and the trained encoder. "
        "Running the same command again goes on from the last checkpoint.",
        required=True,
    )
    steps: int | None = option(
        None, "Optimizer steps in all. Default: worked out from `epochs`.", minimum=1
    )
    epochs: float | None = option(
        None,
        "Passes over the sessions (mlm, simcse: utterances) of the train split, used where "
        "`steps` is not given. " + describe_defaults("epochs"),
        minimum=0.0,
        maximum=1e6,
    )
    global_batch_size: int | None = option(
        None,
        "Samples a step over all devices: sessions (mlm, simcse: utterances). "
        + describe_defaults("global_batch_size"),
        minimum=1,
    )
    learning_rate: float | None = option(
        None, "Highest learning rate. " + describe_defaults("learning_rate"), minimum=0.0
    )
    warmup_steps: int | None = option(
        None, "Steps of linear warm-up. Default: a tenth of `steps`.", minimum=0
    )
    decay: str = option(
        "exponential",
        "After the warm-up: exponential (x 0.98 every 10,000 steps, never below 1e-5 if it "
        "started above, as the authors' code does), linear (to 0 at `steps`), or constant.",
        choices=("exponential", "linear", "constant"),
    )
    weight_decay: float = option(
        0.01, "AdamW's decoupled weight decay; not on biases and layer norms.", minimum=0.0
    )
    clip_norm: float = option(
        3.0, "Largest global norm of the gradient; larger ones are scaled down.", minimum=1e-30
    )
    dropout: float = option(
        0.1, "Dropout probability inside the encoder while training.", minimum=0.0, maximum=0.9
    )
    temperature: float | None = option(
        None,
        "Not mlm: temperature of the contrastive loss (equation 8). "
        + describe_defaults("temperature", _CONTRASTIVE),
        minimum=1e-4,
    )
    aggregation: str = option(
        "mean",
        "dialogue_cse: how turns are put together. mean: every turn counts the same (the paper's "
        "I2); attention: by a two-layer network and a softmax (I1, equations 5 and 6); "
        "additive_attention: I1 as the authors' released code has it.",
        choices=("mean", "attention", "additive_attention"),
    )
    cosine_weight: float = option(
        0.0,
        "dialogue_cse: share of the loss that contrasts the plain cosine of a response and the "
        "mean of its context's embeddings. 0: the paper's objective; 1: without any matching.",
        minimum=0.0,
        maximum=1.0,
    )
    center_tokens: bool = option(
        False,
        "Not mlm: subtract the mean token embedding, a running average, before matching and "
        "pooling. Not in the paper; keeps similarities from saturating. The trained encoder has "
        "it in its weights.",
    )
    batch_form: str = option(
        "unique",
        "dialogue_cse, siamese: what a batch is made of. plain: one random response a session, "
        "every use of an utterance encoded by itself, padded to the longest of the corpus, as in "
        "the paper; unique: the same, each distinct utterance encoded once; dense: every turn of a "
        "session is a response, each distinct utterance encoded once.",
        choices=("plain", "unique", "dense"),
    )
    session_turns: int = option(
        16,
        "dense: most consecutive turns of a session a visit, drawn at random.",
        minimum=2,
        maximum=10_000,
    )
    negatives: int = option(
        9,
        "dialogue_cse, siamese: negatives a positive, drawn from other sessions of the batch; all "
        "(0): every one that the batch has.",
        minimum=0,
        words={"all": 0},
    )
    context_turns: int | None = option(
        None,
        "Most context turns on each side of the response, also in dev response selection. "
        "siamese_single pairs a response with the one turn before it and takes no other value. "
        + describe_defaults("context_turns", _CONTRASTIVE),
        minimum=1,
        maximum=1000,
    )
    context_side: str | None = option(
        None,
        "Turns before and after the response (both, as in the paper) or before only; "
        "siamese_single takes before alone. " + describe_defaults("context_side", _CONTRASTIVE),
        choices=("both", "before"),
    )
    context_tokens: int = option(
        256,
        "siamese_multi: most tokens of a context in one sequence, [CLS] a [SEP] b [SEP] and so on; "
        "those furthest from the response are cut first. The encoder must have the positions.",
        minimum=8,
    )
    layout: str = option(
        "",
        "How the utterances of a batch lie before the encoder; the result is the same. packed: "
        "several to a row; bucketed: in groups of similar length; padded: each to the longest. "
        "Default: packed; with `batch_form`=plain padded.",
        choices=("", "packed", "bucketed", "padded"),
    )
    row_length: int | None = option(
        None,
        "packed: tokens of a row, at least the longest utterance's, with siamese_multi the longest "
        "context's. Default: 64, or the longest's if that is more.",
        minimum=8,
        maximum=65_536,
    )
    compute_dtype: str = option(
        "float32",
        "What the encoder computes in; weights, similarity and loss stay float32. bfloat16 needs a "
        "CPU or GPU that has it to be faster.",
        choices=("float32", "bfloat16"),
    )
    jit_compile: bool = option(
        False, "Compile the training step with XLA: the first steps take longer, the others less."
    )
    freeze_layers: int | None = option(
        None,
        "Bottom transformer layers that are not trained; -1: half of them. "
        + describe_defaults("freeze_layers"),
        minimum=-1,
    )
    freeze_embeddings: bool | None = option(
        None,
        "Whether the embedding layers are not trained. " + describe_defaults("freeze_embeddings"),
    )
    mask_rate: float = option(
        0.15, "mlm: share of the tokens to predict.", minimum=0.0, maximum=1.0
    )
    max_predictions: int = option(
        10, "mlm: most predictions an utterance.", minimum=1, maximum=10_000
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_train(self)

    def pads_all(self) -> bool:
        """Whether the form of the batch is the paper's, in which every utterance is padded."""
        return self.task in DIALOGUE_TASKS and self.batch_form == "plain"

    @property
    def context(self) -> Context:
        """Which turns surround a response. Settings are filled in."""
        assert self.context_turns is not None
        assert self.context_side is not None
        return Context(self.context_turns, self.context_side)

    def longest_context(self, longest: int) -> int:
        """Tokens of the longest context in one sequence where no utterance has more than
        `longest`; 0 where the task keeps its turns apart. Settings are filled in.
        """
        if self.task != "siamese_multi":
            return 0
        # [CLS] is there once.
        return min(self.context_tokens, 1 + self.context.slots * (longest - 1))

    def with_defaults(self, epoch_size: int, longest: int) -> "TrainOptions":
        """Every setting filled in, so that the run's JSON says what was used.

        Args:
            epoch_size: samples of the train split: sessions or utterances, as the task counts.
            longest: tokens of the longest utterance.

        Raises:
            OptionError: the batch does not fit the data.
        """
        filled = {k: v for k, v in TASK_DEFAULTS[self.task].items() if getattr(self, k) is None}
        if self.steps is not None:
            filled.pop("epochs", None)  # the run's length is said once
        config = self.replace(**filled)
        batch = config.global_batch_size
        assert batch is not None
        config._check_batch(batch, epoch_size)
        config = config._with_layout(longest)
        if config.steps is None:
            assert config.epochs is not None
            config = config.replace(steps=max(1, round(config.epochs * epoch_size / batch)))
        assert config.steps is not None
        if config.warmup_steps is None:
            config = config.replace(warmup_steps=config.steps // 10)
        return config

    def _check_batch(self, batch: int, epoch_size: int) -> None:
        if batch > epoch_size:
            raise OptionError(
                f"`global_batch_size`={batch}: the train split of {self.data_dir} has only "
                f"{epoch_size} samples"
            )

    def _with_layout(self, longest: int) -> "TrainOptions":
        layout = self.layout or ("padded" if self.pads_all() else "packed")
        context = self.longest_context(longest)
        what, longest = max(("utterances", longest), ("contexts", context), key=lambda x: x[1])
        row_length = max(64, longest) if self.row_length is None else self.row_length
        if layout == "packed" and row_length < longest:
            raise OptionError(
                f"`row_length`={row_length}: {what} of {self.data_dir} have up to {longest} "
                "tokens, and each lies in one row"
            )
        return self.replace(layout=layout, row_length=row_length)
