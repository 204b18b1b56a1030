"""The checkpoints of a run."""

import json
import pathlib
import re

import tensorflow as tf
from absl import logging

from dcse_tf.errors import InputError, OutputError, first_line
from dcse_tf.files import (
    atomic_directory,
    find_damage,
    hash_folder,
    remove,
)
from dcse_tf.input_files import parse_json

FOLDER = "checkpoints"
_MANIFEST = "manifest.json"
_STATE = "state"  # prefix of TensorFlow's files
_NAME = re.compile(r"step-(\d{9})")
_LEFT_OVER = re.compile(r"step-\d{9}\.dcse_tf-(partial|previous|lock)")


class CheckpointStore:
    """Writes and restores checkpoints.

    A checkpoint is a folder with TensorFlow's files and a manifest of their SHA-256. It appears
    only when it is complete and on disk, and is used only if its files match the manifest: if it
    was damaged later, the previous one is restored instead.

    Args:
        run_dir: the run's folder.
        state: the objects to save.
        keep: number of most recent checkpoints to keep.
    """

    def __init__(self, run_dir: pathlib.Path, state: tf.train.Checkpoint, keep: int):
        self._folder = run_dir / FOLDER
        self._state = state
        self._keep = keep

    def save(self, step: int) -> pathlib.Path:
        """Writes a checkpoint, then deletes the oldest ones beyond `keep`; returns its folder.

        Raises:
            OutputError: it cannot be written; earlier checkpoints are unchanged.
        """
        path = self._folder / f"step-{step:09d}"
        try:
            with atomic_directory(path, overwrite=True) as partial:
                self._state.write(str(partial / _STATE))
                manifest = {"step": step, "files": hash_folder(partial)}
                (partial / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        except (OSError, tf.errors.OpError) as error:
            before = find_checkpoint(self._folder.parent)
            kept = f"the last good one is {before}" if before else "there is none before it"
            raise OutputError(
                f"{path}: the checkpoint cannot be written: {first_line(error)}; {kept}"
            ) from error
        for old in _list(self._folder)[self._keep :]:
            remove(old)
        return path

    def restore(self) -> pathlib.Path | None:
        """Restores the newest intact checkpoint.

        Returns:
            Its folder; None if there is none.

        Raises:
            InputError: the checkpoint belongs to a different model.
        """
        path = find_checkpoint(self._folder.parent)
        if path is None:
            return None
        try:
            status = self._state.read(str(path / _STATE))
            status.assert_existing_objects_matched().expect_partial()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise InputError(
                f"{path}: a checkpoint of another model: {first_line(error)}"
            ) from error
        return path

    def clear_left_overs(self) -> None:
        """Deletes what interrupted writes left behind."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if _LEFT_OVER.fullmatch(path.name):
                    remove(path)


def find_checkpoint(run_dir: pathlib.Path) -> pathlib.Path | None:
    """Finds the newest intact checkpoint of a run; logs what is wrong with newer ones."""
    for path in _list(run_dir / FOLDER):
        damage = describe_damage(path)
        if damage is None:
            return path
        logging.warning("%s is incomplete and is skipped: %s", path, damage)
    return None


def step_of(path: pathlib.Path) -> int:
    """The step after which a checkpoint was saved."""
    return int(path.name.removeprefix("step-"))


def describe_damage(path: pathlib.Path) -> str | None:
    """How a checkpoint differs from its manifest; None if it is intact."""
    try:
        files = parse_json((path / _MANIFEST).read_text(encoding="utf-8"))["files"]
        return find_damage(path, files) if files else f"{_MANIFEST} names no file"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{_MANIFEST} or a file of it cannot be read: {error}"


def _list(folder: pathlib.Path) -> list[pathlib.Path]:
    """All checkpoints, intact or not, newest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)
