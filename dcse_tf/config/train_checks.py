"""Which settings of `train` go together. They are refused before anything is loaded."""

from typing import TYPE_CHECKING

from dcse_tf.config.base import ConfigError
from dcse_tf.config.task_defaults import BEST_METRICS, DIALOGUE_TASKS, TASK_DEFAULTS

if TYPE_CHECKING:
    from dcse_tf.config.train import TrainConfig

_CONTRASTIVE = (*DIALOGUE_TASKS, "simcse")
# Settings that only some tasks have. Not --negatives: flags/debug.flags is for all of them.
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


def check_train(config: "TrainConfig") -> None:
    """Raises ConfigError if settings contradict each other, whatever the corpus."""
    _check_start(config)
    _check_task(config)
    _check_batch(config)
    _check_best_metric(config)


def _check_start(config: "TrainConfig") -> None:
    if bool(config.encoder) == bool(config.encoder_size):
        raise ConfigError("give either --encoder (a checkpoint) or --encoder_size (random)")
    if config.token_vectors and not config.encoder_size:
        config.refuse("token_vectors", "a checkpoint has its own; only for --encoder_size")
    if config.token_vectors.endswith(".npz") != bool(config.token_index):
        raise ConfigError("--token_index goes with --token_vectors=FILE.npz, and only with it")
    run_dir = config.run_dir.rstrip("/")
    if config.encoder.rstrip("/") in (run_dir, f"{run_dir}/encoder"):
        config.refuse("run_dir", "its encoder would be replaced while it is started from")


def _check_task(config: "TrainConfig") -> None:
    own = TASK_DEFAULTS[config.task]
    for name, tasks in _OF_TASKS.items():
        # A configuration with every default filled in has the task's own.
        filled = getattr(config, name) == own.get(name, ())
        if config.task not in tasks and config.is_given(name) and not filled:
            config.refuse(
                name, f"has no meaning with --task={config.task}, only with {', '.join(tasks)}"
            )
    if config.is_given("session_turns") and config.batch_form != "dense":
        config.refuse("session_turns", "has no meaning without --batch_form=dense")
    if config.aggregation != "mean" and config.cosine_weight == 1.0:
        config.refuse("aggregation", "with --cosine_weight=1 there is no matching")
    for name, only in {"context_turns": 1, "context_side": "before"}.items():
        if config.task == "siamese_single" and getattr(config, name) not in (None, only):
            config.refuse(
                name,
                "--task=siamese_single pairs a response with the one turn before it, so only "
                f"{only}",
            )


def _check_batch(config: "TrainConfig") -> None:
    if config.pads_all() and config.layout not in ("", "padded"):
        config.refuse("layout", "--batch_form=plain pads every utterance, so only padded")
    if config.jit_compile and config.layout == "bucketed":
        config.refuse("layout", "its shapes change at every step; not compiled")
    batch = config.global_batch_size or TASK_DEFAULTS[config.task]["global_batch_size"]
    if batch % config.logical_cpus:
        raise ConfigError(
            f"--global_batch_size={batch}: not divisible by --logical_cpus={config.logical_cpus}"
        )
    if config.task not in DIALOGUE_TASKS:
        return
    # A session gives one response, or with dense two at least.
    each = 2 if config.batch_form == "dense" else 1
    if max(1, config.negatives) > each * (batch - 1):
        config.refuse(
            "negatives",
            "they come from the other sessions of the batch, so at most "
            f"{each} x (--global_batch_size - 1) = {each * (batch - 1)}",
        )


def _check_best_metric(config: "TrainConfig") -> None:
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
        raise ConfigError(
            f"--best_metric={best}: with these settings the scores are {', '.join(known)}"
        )
