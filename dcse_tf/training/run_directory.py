"""What a run was begun with, kept in its directory and compared when it is started again."""

import json
import pathlib
from typing import Any

from absl import logging

from dcse_tf.data.manifest import Manifest
from dcse_tf.errors import InputError
from dcse_tf.files import atomic_file
from dcse_tf.input_files import hash_file, parse_json
from dcse_tf.options import OptionError
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.training.checkpoint_store import find_checkpoint

CONFIG_FILE = "config.json"
INPUTS_FILE = "inputs.json"
_DEVICES = "devices"
# Settings that may differ when a run is started again. What is learnt does not depend on the
# first (on logical CPUs only by their number, which is compared as that of the devices); what the
# files of the second hold is compared instead of their names; the third change what comes, which
# is said.
_FREE = {
    "run_dir",
    "epochs",  # resolved they follow from the steps, which are compared
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
    options: TrainOptions, given: TrainOptions, inputs: dict[str, str], devices: int
) -> TrainOptions:
    """Writes what a run is begun with, or holds it against what it was begun with.

    A run without a checkpoint has not begun: what it stumbled over may be put right.

    Args:
        options: resolved.
        given: as the user gave them.
        inputs: what `describe_inputs` says.
        devices: on how many it trains; another number changes the dropout from now on.

    Returns:
        The options, worked-out ones as they were when the run was begun.

    Raises:
        OptionError: an option or an input is another than it was.
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
    run_dir.mkdir(parents=True, exist_ok=True)
    options.write_json(path)
    with atomic_file(run_dir / INPUTS_FILE) as partial:
        content = {**inputs, _DEVICES: devices}
        partial.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    return options


def describe_inputs(manifest: Manifest, files: dict[str, pathlib.Path]) -> dict[str, str]:
    """Fingerprints of what a run learns from, by the words in which a difference is told.

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
    old, now = before.to_dict(), options.to_dict()
    changed = {
        name: f"`{name}`={now[name]} (begun with {old[name]})"
        for name in now
        # Another task, which is refused, has other options.
        if name in old and now[name] != old[name] and name not in _FREE | _FILES
    }
    refused = [text for name, text in changed.items() if name not in _FROM_NOW_ON]
    if "steps" in changed and options.decay == "linear":
        refused.append(f"{changed['steps']}, to which `decay`=linear lowers the learning rate")
    if refused:
        raise OptionError(
            f"{path}: the run was begun with other settings: {', '.join(refused)}; "
            "use them, or another `run_dir`"
        )
    for text in changed.values():
        logging.info("from now on %s", text)


def _compare_inputs(path: pathlib.Path, inputs: dict[str, str], devices: int) -> None:
    try:
        before = parse_json(path.read_text(encoding="utf-8"))
        before_devices = before.pop(_DEVICES, None)
        changed = [
            f"{name} (now {_get(inputs, name)}, begun with {_get(before, name)})"
            for name in {**before, **inputs}
            if before.get(name) != inputs.get(name)
        ]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{path}: cannot be read: {error}; give another `run_dir`") from error
    if changed:
        raise OptionError(
            f"{path}: the run was begun with another content of {'; '.join(changed)}; "
            "use that, or another `run_dir`"
        )
    if before_devices != devices:
        logging.info(
            "from now on with %d device(s) (begun with %s): each draws dropout masks of its own, "
            "so the run does not end as it would have",
            devices,
            before_devices,
        )


def _get(inputs: dict[str, Any], name: str) -> str:
    value = inputs.get(name)
    if value is None:
        return "none"
    return f"SHA-256 {value[:12]}..." if len(value) == 64 and " " not in value else str(value)
