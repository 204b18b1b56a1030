"""Settings of how a training runs, whatever it trains."""

import dataclasses

from dcse_tf.config.base import Options, option


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
        "When the loss of a step is no number, or above --loss_limit: stop; or skip, that is go "
        "back to the last checkpoint and leave the batch out. Its sessions are written either way.",
        choices=("stop", "skip"),
    )
    loss_limit: float = option(1000.0, "A step's loss above this counts as diverged.", minimum=0.0)
    max_skipped: int = option(
        3, "With --on_divergence=skip: batches left out at most in the whole run.", minimum=1
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
        "--dev_retrieval with their intents, or else of the dev split. 0: none.",
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
