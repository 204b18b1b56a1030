"""The checkpoints of a run."""

import dataclasses
import pathlib
import re

import tensorflow as tf
from absl import logging

from dcse_tf.errors import OutputError, first_line, name_input
from dcse_tf.files import atomic_directory, hash_folder, remove, require_intact, write_json
from dcse_tf.input_files import read_json_object
from dcse_tf.training.controller import Hook

FOLDER = "checkpoints"
_MANIFEST = "manifest.json"
_STATE = "state"  # prefix of TensorFlow's files
_NAME = re.compile(r"step-(\d{9})")
_LEFT_OVER = re.compile(r"step-\d{9}\.dcse_tf-(partial|previous|lock)")


@dataclasses.dataclass
class CheckpointStore(Hook):
    """Saves and restores the state of a run.

    A checkpoint is a folder with TensorFlow's files and a manifest of their SHA-256. It appears
    only when it is complete and on disk, and is used only if its files match the manifest: if it
    was damaged later, the previous one is restored instead.
    """

    every: int = dataclasses.field(default=0, kw_only=True)
    run_dir: pathlib.Path
    state: tf.train.Checkpoint  # the objects to save
    keep: int = 2  # the number of most recent checkpoints to keep
    # Whether this process writes them: of several workers, only the first one does, and without it
    # no other can take the next step.
    write: bool = True
    last: pathlib.Path | None = None  # the newest one

    def at_boundary(self, step: int) -> None:
        """Saves the state after `step`, unless it is saved already."""
        if self.write and step > (int(self.last.name.removeprefix("step-")) if self.last else 0):
            logging.info("saved %s", self.save(step))

    def save(self, step: int) -> pathlib.Path:
        """Writes a checkpoint and deletes older ones beyond `keep`, as later ones are damaged."""
        path = self.run_dir / FOLDER / f"step-{step:09d}"
        try:
            with atomic_directory(path, overwrite=True) as partial:
                self.state.write(str(partial / _STATE))
                write_json(partial / _MANIFEST, {"step": step, "files": hash_folder(partial)})
        except (OSError, tf.errors.OpError) as error:
            before = find_checkpoint(self.run_dir)
            kept = f"the last good one is {before}" if before else "there is none before it"
            why = f"the checkpoint cannot be written: {first_line(error)}"
            raise OutputError(f"{path}: {why}; {kept}") from error
        for old in [x for x in _list(self.run_dir / FOLDER, _NAME) if x <= path][self.keep :]:
            remove(old)
        self.last = path
        return path

    def restore(self) -> pathlib.Path | None:
        """Deletes what interrupted writes left behind, restores the newest intact checkpoint and
        returns its folder; None if there is none.
        """
        for left_over in _list(self.run_dir / FOLDER, _LEFT_OVER) if self.write else ():
            remove(left_over)
        self.last = path = find_checkpoint(self.run_dir)
        if path is None:
            return None
        problem = f"{path}: a checkpoint of another model"
        with name_input(problem, AssertionError, ValueError, tf.errors.OpError):
            self.state.read(str(path / _STATE)).assert_existing_objects_matched().expect_partial()
        logging.info("resumed from %s, step %d", path, int(path.name.removeprefix("step-")))
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


def _list(folder: pathlib.Path, name: re.Pattern[str]) -> list[pathlib.Path]:
    """What is in a folder by a name, which may be damaged, the newest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if name.fullmatch(path.name)), reverse=True)
