"""The checkpoints of a run."""

import pathlib
import re

import tensorflow as tf
from absl import logging

from dcse_tf.errors import InputError, OutputError, first_line
from dcse_tf.files import atomic_directory, hash_folder, remove, require_intact, write_json
from dcse_tf.input_files import read_json_object
from dcse_tf.training.controller import Hook

FOLDER = "checkpoints"
_MANIFEST = "manifest.json"
_STATE = "state"  # prefix of TensorFlow's files
_NAME = re.compile(r"step-(\d{9})")
_LEFT_OVER = re.compile(r"step-\d{9}\.dcse_tf-(partial|previous|lock)")


class CheckpointStore(Hook):
    """Saves and restores the state of a run.

    A checkpoint is a folder with TensorFlow's files and a manifest of their SHA-256. It appears
    only when it is complete and on disk, and is used only if its files match the manifest: if it
    was damaged later, the previous one is restored instead.

    It saves the objects of `state` into the run's folder, at every so many steps and at the end,
    and keeps some most recent checkpoints. Of several workers, only the first one may `write`, and
    without it no other can take the next step.
    """

    def __init__(
        self,
        run_dir: pathlib.Path,
        state: tf.train.Checkpoint,
        keep: int = 2,
        every: int = 0,
        write: bool = True,
    ):
        super().__init__(every)
        self.last: pathlib.Path | None = None  # the newest one
        self._folder, self._state, self._keep, self._write = run_dir / FOLDER, state, keep, write

    def at_boundary(self, step: int) -> None:
        """Saves the state after `step`, unless it is saved already."""
        if self._write and step > (_step_of(self.last) if self.last else 0):
            logging.info("saved %s", self.save(step))

    def save(self, step: int) -> pathlib.Path:
        """Writes a checkpoint, then deletes the oldest ones beyond `keep`; returns its folder."""
        path = self._folder / f"step-{step:09d}"
        try:
            with atomic_directory(path, overwrite=True) as partial:
                self._state.write(str(partial / _STATE))
                write_json(partial / _MANIFEST, {"step": step, "files": hash_folder(partial)})
        except (OSError, tf.errors.OpError) as error:
            before = find_checkpoint(self._folder.parent)
            kept = f"the last good one is {before}" if before else "there is none before it"
            raise OutputError(
                f"{path}: the checkpoint cannot be written: {first_line(error)}; {kept}"
            ) from error
        for old in _list(self._folder, _NAME)[self._keep :]:
            remove(old)
        self.last = path
        return path

    def restore(self) -> pathlib.Path | None:
        """Deletes what interrupted writes left behind, restores the newest intact checkpoint and
        returns its folder; None if there is none.
        """
        for left_over in _list(self._folder, _LEFT_OVER) if self._write else ():
            remove(left_over)
        self.last = path = find_checkpoint(self._folder.parent)
        if path is None:
            return None
        try:
            status = self._state.read(str(path / _STATE))
            status.assert_existing_objects_matched().expect_partial()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise InputError(
                f"{path}: a checkpoint of another model: {first_line(error)}"
            ) from error
        logging.info("resumed from %s, step %d", path, _step_of(path))
        return path


def find_checkpoint(run_dir: pathlib.Path) -> pathlib.Path | None:
    """Finds the newest intact checkpoint of a run; logs what is wrong with newer ones."""
    for path in _list(run_dir / FOLDER, _NAME):
        try:
            require_intact(path, read_json_object(path / _MANIFEST)["files"])
            return path
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logging.warning("%s is incomplete and is skipped: %s", path, error)
    return None


def _step_of(path: pathlib.Path) -> int:
    return int(path.name.removeprefix("step-"))


def _list(folder: pathlib.Path, name: re.Pattern[str]) -> list[pathlib.Path]:
    """What is in a folder by a name, which may be damaged, the newest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if name.fullmatch(path.name)), reverse=True)
