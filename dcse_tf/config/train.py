"""Settings of `train`, and what each task puts where a flag was not given."""

import dataclasses

from dcse_tf.config.base import ConfigError, option
from dcse_tf.config.run import RunOptions
from dcse_tf.config.task_defaults import DIALOGUE_TASKS, ENCODER_SIZES, TASK_DEFAULTS
from dcse_tf.config.task_defaults import describe_defaults as _by_task
from dcse_tf.config.train_checks import check_train

_CONTRASTIVE = (*DIALOGUE_TASKS, "simcse")


@dataclasses.dataclass(frozen=True)
class TrainConfig(RunOptions):
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
        "this or --encoder_size.",
    )
    encoder_size: str = option(
        "",
        "Start from random weights of this size (layers/width: "
        + ", ".join(f"{k} {v[0]}/{v[1]}" for k, v in ENCODER_SIZES.items())
        + ") with the vocabulary of --data_dir.",
        choices=("", *ENCODER_SIZES),
    )
    token_vectors: str = option(
        "",
        "With --encoder_size: file of word or character vectors (see fit_baseline --help) from "
        "which the token embeddings start, projected to their width; other tokens start random.",
        files=True,
    )
    token_index: str = option(
        "",
        "Of --token_vectors=FILE.npz: JSON file of the words' rows.",
        files=True,
    )
    run_dir: str = option(
        "",
        "Folder for checkpoints, TensorBoard events, the configuration and the trained encoder. "
        "Running the same command again goes on from the last checkpoint.",
        required=True,
    )
    steps: int | None = option(
        None, "Optimizer steps in all. Default: worked out from --epochs.", minimum=1
    )
    epochs: float | None = option(
        None,
        "Passes over the sessions (mlm, simcse: utterances) of the train split, used where "
        "--steps is not given. " + _by_task("epochs"),
        minimum=0.0,
        maximum=1e6,
    )
    global_batch_size: int | None = option(
        None,
        "Samples a step over all devices: sessions (mlm, simcse: utterances). "
        + _by_task("global_batch_size"),
        minimum=1,
    )
    learning_rate: float | None = option(
        None, "Highest learning rate. " + _by_task("learning_rate"), minimum=0.0
    )
    warmup_steps: int | None = option(
        None, "Steps of linear warm-up. Default: a tenth of --steps.", minimum=0
    )
    decay: str = option(
        "exponential",
        "After the warm-up: exponential (x 0.98 every 10,000 steps, never below 1e-5 if it "
        "started above, as the authors' code does), linear (to 0 at --steps), or constant.",
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
        + _by_task("temperature", _CONTRASTIVE),
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
        + _by_task("context_turns", _CONTRASTIVE),
        minimum=1,
        maximum=1000,
    )
    context_side: str | None = option(
        None,
        "Turns before and after the response (both, as in the paper) or before only; "
        "siamese_single takes before alone. " + _by_task("context_side", _CONTRASTIVE),
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
        "Default: packed; with --batch_form=plain padded.",
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
        + _by_task("freeze_layers"),
        minimum=-1,
    )
    freeze_embeddings: bool | None = option(
        None, "Whether the embedding layers are not trained. " + _by_task("freeze_embeddings")
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

    def longest_context(self, longest: int) -> int:
        """Tokens of the longest context in one sequence where no utterance has more than
        `longest`; 0 where the task keeps its turns apart. Settings are filled in.
        """
        if self.task != "siamese_multi":
            return 0
        assert self.context_turns is not None
        turns = self.context_turns * (2 if self.context_side == "both" else 1)
        # [CLS] is there once.
        return min(self.context_tokens, 1 + turns * (longest - 1))

    def with_defaults(self, epoch_size: int, longest: int) -> "TrainConfig":
        """Every setting filled in, so that the run's JSON says what was used.

        Args:
            epoch_size: samples of the train split: sessions or utterances, as the task counts.
            longest: tokens of the longest utterance.

        Raises:
            ConfigError: the batch does not fit the data.
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
            raise ConfigError(
                f"--global_batch_size={batch}: the train split of {self.data_dir} has only "
                f"{epoch_size} samples"
            )

    def _with_layout(self, longest: int) -> "TrainConfig":
        layout = self.layout or ("padded" if self.pads_all() else "packed")
        context = self.longest_context(longest)
        what, longest = max(("utterances", longest), ("contexts", context), key=lambda x: x[1])
        row_length = max(64, longest) if self.row_length is None else self.row_length
        if layout == "packed" and row_length < longest:
            raise ConfigError(
                f"--row_length={row_length}: {what} of {self.data_dir} have up to {longest} "
                "tokens, and each lies in one row"
            )
        return self.replace(layout=layout, row_length=row_length)
