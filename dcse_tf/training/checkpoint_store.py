"""Checkpoints of a run: each is whole, or it is not counted."""

import hashlib
import json
import pathlib
import re
import shutil
from typing import Any

import tensorflow as tf
from absl import logging

from dcse_tf.atomic import atomic_directory
from dcse_tf.errors import InputError, OutputError

FOLDER = "checkpoints"
_MANIFEST = "manifest.json"
_STATE = "state"  # prefix of TensorFlow's files
_NAME = re.compile(r"step-(\d{9})")
_LEFT_OVER = re.compile(r"step-\d{9}\.dcse_tf-(partial|previous|lock)")


class CheckpointStore:
    """Writes and restores checkpoints.

    A checkpoint is a folder with TensorFlow's files and a manifest of their sizes and SHA-256. It
    appears when it is whole and on the disk, and it counts only if all is as its manifest says: one
    that was damaged later is passed over for the one before it.

    Args:
        run_dir: the run's folder.
        state: what is saved.
        keep: how many are kept, the latest ones.
    """

    def __init__(self, run_dir: pathlib.Path, state: tf.train.Checkpoint, keep: int):
        self._folder = run_dir / FOLDER
        self._state = state
        self._keep = keep

    def save(self, step: int) -> pathlib.Path:
        """Writes a checkpoint, then deletes those that are too many.

        Raises:
            OutputError: it cannot be written; those before it are as they were.
        """
        path = self._folder / f"step-{step:09d}"
        try:
            with atomic_directory(path, overwrite=True) as partial:
                self._state.write(str(partial / _STATE))
                manifest = {"step": step, "files": _describe_files(partial)}
                (partial / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        except (OSError, tf.errors.OpError) as error:
            before = find_checkpoint(self._folder.parent)
            kept = f"the last good one is {before}" if before else "there is none before it"
            raise OutputError(
                f"{path}: the checkpoint cannot be written: {_reason(error)}; {kept}"
            ) from error
        for old in _list(self._folder)[self._keep :]:
            shutil.rmtree(old, ignore_errors=True)
        return path

    def restore(self) -> pathlib.Path | None:
        """Restores the newest whole checkpoint.

        Returns:
            Its folder; None where there is none.

        Raises:
            InputError: it is of another model.
        """
        path = find_checkpoint(self._folder.parent)
        if path is None:
            return None
        try:
            status = self._state.read(str(path / _STATE))
            status.assert_existing_objects_matched().expect_partial()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise InputError(f"{path}: a checkpoint of another model: {_reason(error)}") from error
        return path

    def clear_left_overs(self) -> None:
        """Deletes what writing left behind when it was cut off."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if _LEFT_OVER.fullmatch(path.name):
                    if path.is_dir():
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        path.unlink()


def find_checkpoint(run_dir: pathlib.Path) -> pathlib.Path | None:
    """The newest whole checkpoint of a run; says of newer ones why they do not count."""
    for path in _list(run_dir / FOLDER):
        damage = describe_damage(path)
        if damage is None:
            return path
        logging.warning("%s is not whole and is passed over: %s", path, damage)
    return None


def describe_damage(path: pathlib.Path) -> str | None:
    """What a checkpoint differs in from its manifest; None where it is whole."""
    try:
        files = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, expected in files.items():
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} bytes, expected {expected['bytes']}"
            if _hash(path / name) != expected["sha256"]:
                return f"{name} has another content than was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{_MANIFEST} or a file of it cannot be read: {error}"
    return None if files else f"{_MANIFEST} names no file"


def _list(folder: pathlib.Path) -> list[pathlib.Path]:
    """The checkpoints, whole or not, the newest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)


def _describe_files(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    files = sorted(folder.iterdir())
    return {p.name: {"bytes": p.stat().st_size, "sha256": _hash(p)} for p in files}


def _hash(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: Exception) -> str:
    text = getattr(error, "message", None) or str(error)
    return text.strip().splitlines()[0]
