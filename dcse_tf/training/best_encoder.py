"""The best encoder of a run so far, and the record of how it was chosen."""

import dataclasses
import json
import pathlib
from collections.abc import Callable

from absl import logging

from dcse_tf.errors import InputError
from dcse_tf.evaluation.names import CANDIDATES
from dcse_tf.files import atomic_directory, atomic_file, find_damage, hash_folder, restore_replaced
from dcse_tf.input_files import read_json_object

RECORD_FILE = "training.json"
UNTRAINED = "this model is the one that the training started from, unchanged: nothing was better"


@dataclasses.dataclass(frozen=True)
class Kept:
    """Where in a run the kept encoder comes from, and how it scored."""

    step: int  # optimizer steps taken before it was kept; 0 for the starting encoder
    metric: str  # name of the dev score by which it was chosen; empty without dev data
    score: float | None  # its value of that score; None without dev data
    last_step: int | None = None  # of the run; None until it has ended
    last_score: float | None = None  # the value of that score for the last step's encoder
    scores: dict[str, float] = dataclasses.field(default_factory=dict)  # all of the kept encoder
    start: dict[str, float] = dataclasses.field(default_factory=dict)  # before the first step

    def describe(self) -> str:
        """One line, such as "step 80 of 120, dev/map 64.3 (60.1 at the start, 63.1 at the end)"."""
        text = f"step {self.step}"
        if self.last_step is not None:
            text += f" of {self.last_step}"
        if self.score is None:
            return f"{text}, the last one: there are no dev data to choose by"
        turns = ""
        if self.metric.endswith(("_r1", "_r2", "_r5", "_mrr")):  # a rank of the true response
            after = " and after" if "_bidirectional_" in self.metric else ""
            turns = f" (of {CANDIDATES}, by the turns before{after} it)"
        others = {
            "at the start": self.start.get(self.metric) if self.step else None,
            "at the end": self.last_score if self.step != self.last_step else None,
        }
        shown = [f"{value:.4g} {when}" for when, value in others.items() if value is not None]
        text += f", {self.metric}{turns} {self.score:.4g}"
        return f"{text} ({', '.join(shown)})" if shown else text


@dataclasses.dataclass
class BestEncoder:
    """Writes the encoder whenever it is the best so far; without scores, at every evaluation.

    A record of the step, the score and the files' SHA-256 is written beside the weights. A resumed
    run reads it, so that only a better encoder replaces the kept one, and a lost or damaged one is
    detected.

    """

    folder: pathlib.Path
    metric: str  # name of the dev score that decides
    lower_is_better: bool
    write: Callable[[pathlib.Path], None]  # writes the current encoder into a folder
    kept: Kept | None = None

    def restore(self) -> None:
        """Reads the record of the encoder kept earlier; warns if that encoder cannot be used."""
        restore_replaced(self.folder)
        try:
            kept, files = _read_record(self.folder)
            damage = find_damage(self.folder, files)
        except (InputError, OSError) as error:
            damage = str(error)
        if not damage:
            self.kept = kept
            return
        logging.warning(
            "%s: the encoder that the run has kept is lost: %s; the next evaluation's encoder will "
            "replace it",
            *(self.folder, damage),
        )

    def offer(self, scores: dict[str, float], step: int) -> bool:
        """Keeps the current encoder if it is better than the one kept so far; returns whether.

        `scores` are its dev scores, empty without dev data; KeyError if the metric is not there.
        """
        score = scores[self.metric] if scores else None
        before = self.kept.score if self.kept else None
        sign = -1.0 if self.lower_is_better else 1.0
        if before is not None and score is not None and sign * score <= sign * before:
            return False
        start = self.kept.start if self.kept else scores if step == 0 else {}
        kept = Kept(step, self.metric if scores else "", score, scores=scores, start=start)
        with atomic_directory(self.folder, overwrite=True) as target:
            self.write(target)
            _write_record(target / RECORD_FILE, kept, hash_folder(target))
        self.kept = kept
        return True

    def end(self, scores: dict[str, float], step: int) -> Kept:
        """Adds the last step and its encoder's dev scores to the record, and returns the record."""
        assert self.kept
        last = scores.get(self.kept.metric)
        self.kept = dataclasses.replace(self.kept, last_step=step, last_score=last)
        _, files = _read_record(self.folder)
        with atomic_file(self.folder / RECORD_FILE) as partial:
            _write_record(partial, self.kept, files)
        return self.kept


def read_kept(folder: pathlib.Path) -> Kept:
    """Reads the record of the encoder that a run kept in a folder.

    Raises:
        InputError: there is no such record, or it is damaged.
    """
    return _read_record(folder)[0]


def _read_record(folder: pathlib.Path) -> tuple[Kept, dict[str, str]]:
    """Reads the record of the encoder, and its files' SHA-256."""
    path = folder / RECORD_FILE
    content = read_json_object(path, "the record of a trained encoder")
    try:
        names = [field.name for field in dataclasses.fields(Kept)]
        kept = Kept(**{name: content[name] for name in names if name in content})
        return kept, dict(content["files"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not the record of a trained encoder: {error!r}") from error


def _write_record(path: pathlib.Path, kept: Kept, files: dict[str, str]) -> None:
    content = {**dataclasses.asdict(kept), "files": files}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
