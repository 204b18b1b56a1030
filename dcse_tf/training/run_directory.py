"""What a run was begun with, kept in its directory and compared when it is started again."""

import pathlib
from collections.abc import Set

from absl import logging

from dcse_tf.data.manifest import Manifest
from dcse_tf.files import MadeFrom, hash_file
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.training.checkpoint_store import find_checkpoint

CONFIG_FILE = "config.json"
INPUTS_FILE = "inputs.json"
_DEVICES = "devices"
# Settings that may differ when a run is resumed. What is learnt does not depend on the first ones
# (of logical CPUs only their number matters, and that of the devices is compared). Of the second
# the content of the files is compared instead of their names. The third ones change what is learnt
# from now on, which is logged.
_FREE = {
    "run_dir",
    "epochs",  # resolved they follow from the steps, which are compared
    "logical_cpus",
    "log_every",
    "save_every",
    "keep_checkpoints",
    "profile_steps",
    "projector_sentences",
    "changes_samples",
}
_FILES = {"data_dir", "encoder", "token_vectors", "token_index", "neighbours_dir"}
_FROM_NOW_ON = {"steps", "eval_every", "on_divergence", "loss_limit", "max_skipped"}


def begin_run(
    options: TrainOptions,
    given: TrainOptions,
    inputs: dict[str, str],
    devices: int,
    write: bool = True,
) -> TrainOptions:
    """Writes what a run is begun with; if it is resumed, compares that first.

    A run without a checkpoint has learnt nothing yet, so whatever stopped it may be corrected.

    Args:
        options: resolved.
        given: as the user gave them.
        inputs: what `describe_inputs` returns.
        devices: how many devices it trains on.
        write: whether this process is the one that writes, if there are several.

    Returns:
        The options; those that were worked out are as they were when the run was begun.

    Raises:
        InputError: an option or an input that decides what is learnt has changed.
    """
    run_dir = pathlib.Path(options.run_dir)
    path = run_dir / CONFIG_FILE
    if path.is_file() and find_checkpoint(run_dir):
        before = TrainOptions.read_json(path)
        if given.warmup_steps < 0:
            # With other steps the warm-up stays the tenth of those that the run was begun with.
            options = options.replace(warmup_steps=before.warmup_steps)
        _compare_settings(path, before, options)
        _compare_inputs(run_dir / INPUTS_FILE, inputs, devices)
    if not write:
        return options
    run_dir.mkdir(parents=True, exist_ok=True)
    options.write_json(path)
    MadeFrom({**inputs, _DEVICES: devices}).write(run_dir / INPUTS_FILE)
    return options


def describe_inputs(manifest: Manifest, files: dict[str, pathlib.Path]) -> dict[str, str]:
    """Fingerprints of what a run learns from, by the words in which a change is reported.

    Args:
        manifest: of the corpus.
        files: further files.
    """
    splits = ", ".join(f"{name} {_counts(manifest, name)}" for name in manifest.splits)
    longest = f"at most {manifest.max_sequence_length} tokens"
    fingerprints = {
        "the corpus": manifest.corpus_fingerprint,
        "the vocabulary": manifest.tokenizer_fingerprint,
        "the corpus' splits and lengths": f"{splits}, {longest}",
    }
    return {**fingerprints, **{name: hash_file(path) for name, path in files.items()}}


def _counts(manifest: Manifest, split: str) -> str:
    found = manifest.splits[split]
    return f"{found.sessions} sessions, {found.tokens} tokens, {len(found.shards)} shards"


def _compare_settings(path: pathlib.Path, before: TrainOptions, options: TrainOptions) -> None:
    from_now_on = set(_FROM_NOW_ON)
    remedy = "use the same, or another `run_dir`"
    if options.decay == "linear":
        # The learning rate falls to 0 at the last step: with another one it would jump.
        from_now_on.remove("steps")
        remedy += " (`steps` may change with another `decay` than linear)"

    fixed = before.to_dict().keys() - _FREE - _FILES - from_now_on
    problem = f"{path}: the run was begun with other settings"
    _select(before, fixed).require(_select(options, fixed), problem, remedy)

    for change in _select(before, from_now_on).compare(_select(options, from_now_on)).values():
        logging.info("from now on %s", change)


def _select(options: TrainOptions, names: Set[str]) -> MadeFrom:
    return MadeFrom(
        {f"`{name}`": value for name, value in options.to_dict().items() if name in names}
    )


def _compare_inputs(path: pathlib.Path, inputs: dict[str, str], devices: int) -> None:
    before, now = MadeFrom.read(path), MadeFrom({**inputs, _DEVICES: devices})
    if change := before.compare(now).get(_DEVICES):
        logging.info(
            "from now on %s: each draws dropout masks of its own, so the run does not end as it "
            "would have",
            change,
        )
        before = MadeFrom({**before.values, _DEVICES: devices})
    problem = f"{path}: the run was begun with other data or files"
    before.require(now, problem, "use the same, or another `run_dir`")
