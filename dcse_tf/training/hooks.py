"""Hooks between the steps of a run: the log, TensorBoard, and the best encoder so far."""

import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from dcse_tf import files
from dcse_tf.errors import InputError, name_input, name_output
from dcse_tf.evaluation.metrics import CANDIDATES, PROJECTED
from dcse_tf.input_files import read_json_object
from dcse_tf.progress import Progress
from dcse_tf.tasks.spec import Scores
from dcse_tf.tasks.train_options import TrainOptions
from dcse_tf.training.controller import Hook, TrainingError
from dcse_tf.training.verdict import Verdict

RECORD_FILE = "training.json"
_UNTRAINED = "this model is the one that the training started from, unchanged: nothing was better"
# From these mean similarities on, and this share of samples, a training learns nothing.
_HIGH, _APART, _MANY = 0.98, 0.005, 0.5


class SummaryWriter:
    """Writes scalars and texts for TensorBoard, to be seen at once, or raises OutputError."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._writer = tf.summary.create_file_writer(str(folder))

    def scalars(self, prefix: str, values: Scores, step: int) -> None:
        self._write(step, lambda: [tf.summary.scalar(f"{prefix}/{x}", values[x]) for x in values])

    def text(self, name: str, content: str, step: int) -> None:
        self._write(step, lambda: tf.summary.text(name, content))

    def _write(self, step: int, write: Callable[[], object]) -> None:
        with name_output(self._folder, tf.errors.OpError):
            with self._writer.as_default(step=step):
                write()
            self._writer.flush()


@dataclasses.dataclass
class Report(Hook):
    """Shows the progress of a training with these options, and writes both for TensorBoard."""

    summaries: SummaryWriter
    options: TrainOptions
    learning_rate: Callable[[], float]

    def begin(self, step: int, resumed: bool) -> None:
        text = json.dumps(self.options.to_dict(), indent=2, sort_keys=True)
        self.summaries.text("configuration", f"```\n{text}\n```", step)
        # Where the progress line cannot be redrawn, as in a log file, every report is a new line.
        self._progress = Progress("steps", self.options.steps, already=step, every=0.0)

    def after_steps(self, step: int, steps: int, seconds: float, metrics: Scores) -> None:
        metrics["fill"] = metrics["tokens"] / max(metrics.pop("cells"), 1.0)
        metrics["step_seconds"] = seconds / steps
        if without_negatives := metrics.pop("without_negatives", 0.0):
            metrics["without_negatives"] = without_negatives / metrics["samples"]
        for name in ("samples", "tokens"):
            metrics[f"{name}_per_second"] = metrics.pop(name) / seconds
        metrics["learning_rate"] = self.learning_rate()
        # A long line is cut off at the end, so the most important metrics come first.
        metrics = {name: metrics[name] for name in ("loss", "samples_per_second")} | metrics
        self.summaries.scalars("train", metrics, step)
        self._progress.update(step, self.options.steps, **metrics)
        if advice := advise(metrics):
            logging.warning("%s", advice)


def advise(metrics: Scores) -> str | None:
    """A warning if the model learns nothing from some steps, given their means; else None.

    If all token embeddings point in almost the same direction, R^T R has nearly rank one. Every
    candidate's context-aware embedding is then parallel to its context-free one: all similarities
    are 1, whatever the context, and the objective has almost no gradient.
    """
    share = metrics.get("without_negatives", 0.0)
    if share >= _MANY:
        return (
            f"{share:.0%} of the samples had no negative and taught nothing: every other response "
            "in their batches is from their own session or repeats one of its texts. Remedies: a "
            "larger `global_batch_size`; a corpus in which fewer sessions repeat each other."
        )
    positive = metrics.get("positive_similarity", math.inf)
    negative = metrics.get("negative_similarity", 0.0)
    if negative < _HIGH or positive - negative > _APART:
        return None
    return (
        f"saturated: the mean similarity is {positive:.4f} for true responses and {negative:.4f} "
        "for negatives, so the objective has nothing to tell apart. The token embeddings all point "
        "in almost the same direction, as with random weights or in some sentence encoders, such "
        "as E5. Remedies: start from a pre-trained `encoder`, adapt it longer first (`task`=mlm), "
        "`center_tokens`, contrast the plain cosine (`cosine_weight`), or lower `learning_rate`."
    )


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
    # SHA-256 of the encoder's files, see `hash_folder`
    files: dict[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def describe(self) -> str:
        """One line, such as "step 80 of 120, dev/map 64.3 (60.1 at the start, 63.1 at the end)"."""
        text = f"step {self.step}" + ("" if self.last_step is None else f" of {self.last_step}")
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


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a run: the dev scores of the last step, empty without dev data; the step and
    scores of the encoder that it kept; and a verdict on it, None if there is none.
    """

    scores: Scores
    kept: Kept
    verdict: Verdict | None = None

    def list_warnings(self) -> list[str]:
        """What a user should know of the kept encoder before using it."""
        kept, heads = self.kept, f"dev/{PROJECTED}_r1"
        found = [] if kept.step else [_UNTRAINED]
        now, last = kept.scores.get(heads, math.inf), self.scores.get(heads, -math.inf)
        if now < last and kept.metric != heads:
            state = f"those of step {kept.step}" if kept.step else "untrained"
            told = f"{state}, with {heads} {now:.4g}, and at the last step it was {last:.4g}"
            how = f"to choose responses behind the heads, train with `best_metric`={heads}"
            found.append(f"its projection heads are {told}; {how}")
        return found


@dataclasses.dataclass
class Evaluate(Hook):
    """Evaluates on dev data, and writes the encoder whenever it is the best so far; without scores,
    at every evaluation.

    A record of the step, the score and the files' SHA-256 is written beside the weights. A resumed
    run reads it, so that only a better encoder replaces the kept one, and a lost or damaged one is
    detected.
    """

    evaluate: Callable[[], Scores]  # the dev scores; an empty dict without dev data
    summaries: SummaryWriter
    scored: tf.Variable  # int64, the step that was evaluated last; it is saved with the model
    folder: pathlib.Path  # of the best encoder
    metric: str  # name of the dev score that decides; of a loss, the lowest
    write: Callable[[pathlib.Path], None]  # writes the current encoder into a folder
    kept: Kept | None = None
    outcome: Outcome | None = None  # the result of the run, when it has ended
    _scores: Scores | None = None

    def begin(self, step: int, resumed: bool) -> None:
        if not resumed:  # an encoder that was kept before the first checkpoint does not count
            return
        files.restore_replaced(self.folder)
        try:
            kept = read_kept(self.folder)
            files.require_intact(self.folder, kept.files)
            self.kept = kept
        except (InputError, OSError, TypeError, AttributeError) as error:
            told = "the encoder that the run has kept is lost: %s; the next evaluation replaces it"
            logging.warning(f"%s: {told}", self.folder, error)

    def at_boundary(self, step: int) -> None:
        if self.scored.numpy() < step or not self.kept:
            self._scores = self._score(step)

    def end(self, step: int) -> None:
        # A run resumed at its end evaluated its last step in an earlier process.
        scores = self._score(step) if self._scores is None else self._scores
        assert self.kept
        last = scores.get(self.kept.metric)
        self.kept = dataclasses.replace(self.kept, last_step=step, last_score=last)
        files.write_record(self.folder / RECORD_FILE, dataclasses.asdict(self.kept))
        self.outcome = Outcome(scores, self.kept)

    def _score(self, step: int) -> Scores:
        started = time.monotonic()
        scores = self.evaluate()
        if scores:
            self.summaries.scalars("eval", scores, step)
            seconds = time.monotonic() - started
            logging.info("step %d, evaluated in %.0f s:\n%s", step, seconds, format_scores(scores))
            if self.metric not in scores:
                known = ", ".join(sorted(name for name in scores if not name.endswith("_chance")))
                why = f"`best_metric`={self.metric}: cannot be computed on these dev data; prepare"
                why += f" them with a larger `dev_fraction`, or choose by one of {known}"
                raise TrainingError(why)
        metric = self.metric if scores else ""
        score, before = scores.get(metric, math.nan), self.kept.score if self.kept else None
        # At step 0 too: a run that never improves keeps the starting encoder, and says so.
        sign = -1 if metric.endswith("loss") else 1
        # NaN is better than nothing, and any number better than NaN.
        if not scores or before is None or math.isnan(before) or sign * score > sign * before:
            start = self.kept.start if self.kept else scores if step == 0 else {}
            kept = Kept(step, metric, scores.get(metric), scores=scores, start=start)
            with files.atomic_directory(self.folder, overwrite=True) as target:
                self.write(target)
                kept = dataclasses.replace(kept, files=files.hash_folder(target))
                files.write_record(target / RECORD_FILE, dataclasses.asdict(kept))
            self.kept = kept
            self.summaries.scalars("best", scores, step)
        self.scored.assign(step)
        return scores


def read_kept(folder: pathlib.Path) -> Kept:
    """Reads the record of the encoder that a run kept in a folder; InputError if it cannot."""
    path = folder / RECORD_FILE
    content = read_json_object(path, "the record of a trained encoder")
    names = {field.name for field in dataclasses.fields(Kept)}
    with name_input(f"{path}: not the record of a trained encoder", TypeError):
        return Kept(**{name: content[name] for name in names & content.keys()})


def format_scores(scores: Scores) -> str:
    """Formats scores in aligned columns: a row for each similarity, and a last one for the rest."""
    rows: dict[str, list[str]] = {}
    for name, value in scores.items():
        rows.setdefault(name.rpartition("_")[0], []).append(f"{name} {value:.4g}")
    width = max(len(cell) for cells in rows.values() for cell in cells)
    lines = [rows[similarity] for similarity in sorted(rows, key=lambda similarity: not similarity)]
    return "\n".join("  " + "  ".join(f"{cell:{width}}" for cell in row).rstrip() for row in lines)
