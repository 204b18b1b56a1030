"""The batches on which a run's loss diverged, and those that it leaves out for that."""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from dcse_tf.atomic import atomic_file
from dcse_tf.errors import InputError
from dcse_tf.input_files import parse_json

SKIPPED_FILE = "skipped_batches.json"
DIVERGED_FILE = "diverged_batch.json"
_SHOWN = 5


class SkippedBatches:
    """A list in the run's folder, so that a run that is started again leaves out the same.

    Args:
        run_dir: the run's folder.
        list_sessions: the ids of the sessions of a step's batch.

    Raises:
        InputError: the file is not such a list.
    """

    def __init__(self, run_dir: pathlib.Path, list_sessions: Callable[[int], Sequence[str]]):
        self._path = run_dir / SKIPPED_FILE
        self._last = run_dir / DIVERGED_FILE
        self._list_sessions = list_sessions
        self._batches: list[dict] = []
        if self._path.is_file():
            try:
                self._batches = parse_json(self._path.read_text(encoding="utf-8"))["batches"]
                self.steps  # noqa: B018
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{self._path}: not a list of batches: {error!r}") from error

    @property
    def steps(self) -> list[int]:
        """Steps, from 0, that are not taken."""
        return [int(batch["step"]) for batch in self._batches]

    def add(self, step: int) -> None:
        """Notes a batch with its sessions."""
        sessions = list(self._list_sessions(step))
        self._batches = [*self._batches, {"step": step, "sessions": sessions}]
        _write(self._path, {"batches": self._batches})

    def describe(self, step: int) -> str:
        """The sessions of a step's batch, some for a message and all in a file."""
        sessions = list(self._list_sessions(step))
        _write(self._last, {"step": step, "sessions": sessions})
        more = f", ... (all are in {self._last})" if len(sessions) > _SHOWN else ""
        return f"{len(sessions)} samples of the sessions {', '.join(sessions[:_SHOWN])}{more}"


def _write(path: pathlib.Path, content: dict[str, Any]) -> None:
    with atomic_file(path) as partial:
        text = json.dumps(content, ensure_ascii=False, indent=1)
        partial.write_text(text + "\n", encoding="utf-8")
