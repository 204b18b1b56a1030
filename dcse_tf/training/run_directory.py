"""What a run was begun with, kept in its directory and compared when it is started again."""

import pathlib
from collections.abc import Set

from absl import logging

from dcse_tf.data.manifest import Manifest
from dcse_tf.files import MadeFrom, hash_file
from dcse_tf.training.checkpoint_store import find_checkpoint
from dcse_tf.training.options import TrainOptions

CONFIG_FILE = "config.json"
INPUTS_FILE = "inputs.json"
_DEVICES = "devices"
# Settings that may differ when a run is resumed. What is learnt does not depend on the first ones
# (of logical CPUs only their number matters, and that of the devices is compared). Of the second
# the content of the files is compared instead of their names. The third ones change what is learnt
# from now on, which is logged.
_FREE = {
    "run_dir",
    "logical_cpus",
    "log_every",
    "save_every",
    "keep_checkpoints",
    "profile_steps",
    "projector_sentences",
}
_FILES = {"data_dir", "encoder", "token_vectors", "token_index"}
_FROM_NOW_ON = {"steps", "eval_every", "on_divergence", "loss_limit", "max_skipped"}


def begin_run(
    config: TrainOptions, given: TrainOptions, inputs: dict[str, str], devices: int
) -> TrainOptions:
    """Writes what a run is begun with; if it is resumed, compares that first.

    A run without a checkpoint has learnt nothing yet, so whatever stopped it may be corrected.

    Args:
        config: the settings, all filled in.
        given: those that the user gave, None where a default was worked out.
        inputs: what `describe_inputs` returns.
        devices: how many devices it trains on.

    Returns:
        The settings; those that were worked out are as they were when the run was begun.

    Raises:
        InputError: a setting or an input that decides what is learnt has changed.
    """
    run_dir = pathlib.Path(config.run_dir)
    path = run_dir / CONFIG_FILE
    if path.is_file() and find_checkpoint(run_dir):
        before = TrainOptions.read_json(path)
        config = _keep_defaults(config, given, before)
        _compare_settings(path, before, config)
        _compare_inputs(run_dir / INPUTS_FILE, inputs, devices)
    run_dir.mkdir(parents=True, exist_ok=True)
    config.write_json(path)
    MadeFrom({**inputs, _DEVICES: devices}).write(run_dir / INPUTS_FILE)
    return config


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


def _keep_defaults(config: TrainOptions, given: TrainOptions, before: TrainOptions) -> TrainOptions:
    """What was worked out stays as it was, also where it was from `steps` that have changed."""
    old = before.to_dict()
    asked = given.to_dict()
    kept = {name: old[name] for name in asked if asked[name] is None and name != "steps"}
    return config.replace(**kept)


def _compare_settings(path: pathlib.Path, before: TrainOptions, config: TrainOptions) -> None:
    from_now_on = set(_FROM_NOW_ON)
    remedy = "use the same, or another `run_dir`"
    if config.decay == "linear":
        # The learning rate falls to 0 at the last step: with another one it would jump.
        from_now_on.remove("steps")
        remedy += " (`steps` may change with another `decay` than linear)"

    fixed = before.to_dict().keys() - _FREE - _FILES - from_now_on
    problem = f"{path}: the run was begun with other settings"
    _select(before, fixed).require(_select(config, fixed), problem, remedy)

    for change in _select(before, from_now_on).compare(_select(config, from_now_on)).values():
        logging.info("from now on %s", change)


def _select(config: TrainOptions, names: Set[str]) -> MadeFrom:
    return MadeFrom(
        {f"`{name}`": value for name, value in config.to_dict().items() if name in names}
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
