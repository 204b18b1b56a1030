"""Hooks between the steps of a run: the log, TensorBoard, and the best encoder so far."""

import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from dcse_tf.errors import OutputError, first_line
from dcse_tf.evaluation.names import PROJECTED
from dcse_tf.progress import Progress
from dcse_tf.tasks.spec import Scores
from dcse_tf.tasks.train_options import TrainOptions
from dcse_tf.training.best_encoder import UNTRAINED, BestEncoder, Kept
from dcse_tf.training.controller import Hook, Taken, TrainingError

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
        try:
            with self._writer.as_default(step=step):
                write()
            self._writer.flush()
        except tf.errors.OpError as error:
            raise OutputError(
                f"{self._folder}: summaries cannot be written: {first_line(error)}"
            ) from error


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

    def after_steps(self, taken: Taken) -> None:
        metrics = dict(taken.metrics)
        metrics["fill"] = metrics["tokens"] / max(metrics.pop("cells"), 1.0)
        metrics["step_seconds"] = taken.seconds / taken.steps
        if without_negatives := metrics.pop("without_negatives", 0.0):
            metrics["without_negatives"] = without_negatives / metrics["samples"]
        for name in ("samples", "tokens"):
            metrics[f"{name}_per_second"] = metrics.pop(name) / taken.seconds
        metrics["learning_rate"] = self.learning_rate()
        # A long line is cut off at the end, so the most important metrics come first.
        metrics = {name: metrics[name] for name in ("loss", "samples_per_second")} | metrics
        self.summaries.scalars("train", metrics, taken.step)
        self._progress.update(taken.step, self.options.steps, **metrics)
        if advice := advise(metrics):
            logging.warning("%s", advice)

    def end(self, step: int) -> None:
        self._progress.close()


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
class Outcome:
    """The result of a run: the dev scores of the last step, empty without dev data, and the step
    and scores of the encoder that it kept.
    """

    scores: Scores
    kept: Kept

    def list_warnings(self) -> list[str]:
        """What a user should know of the kept encoder before using it."""
        kept, heads = self.kept, f"dev/{PROJECTED}_r1"
        found = [] if kept.step else [UNTRAINED]
        now, last = kept.scores.get(heads, math.inf), self.scores.get(heads, -math.inf)
        if now < last and kept.metric != heads:
            state = f"those of step {kept.step}" if kept.step else "untrained"
            found.append(
                f"its projection heads are {state}, with {heads} {now:.4g}, and at the last step "
                f"it was {last:.4g}; to choose responses behind the heads, train with "
                f"`best_metric`={heads}"
            )
        return found


@dataclasses.dataclass
class Evaluate(Hook):
    """Evaluates on dev data, and keeps the encoder if it is the best so far."""

    evaluate: Callable[[], Scores]  # the dev scores; an empty dict without dev data
    best: BestEncoder
    summaries: SummaryWriter
    scored: tf.Variable  # int64, the step that was evaluated last; it is saved with the model
    outcome: Outcome | None = None  # the result of the run, when it has ended
    _scores: Scores | None = None

    def begin(self, step: int, resumed: bool) -> None:
        # An encoder that was kept before the first checkpoint does not count.
        if resumed:
            self.best.restore()

    def at_boundary(self, step: int) -> None:
        if self.scored.numpy() < step or not self.best.kept:
            self._scores = self._score(step)

    def end(self, step: int) -> None:
        # A run resumed at its end evaluated its last step in an earlier process.
        scores = self._score(step) if self._scores is None else self._scores
        self.outcome = Outcome(scores, self.best.end(scores, step))

    def _score(self, step: int) -> Scores:
        started = time.monotonic()
        scores = self.evaluate()
        if scores:
            self.summaries.scalars("eval", scores, step)
            seconds = time.monotonic() - started
            logging.info("step %d, evaluated in %.0f s:\n%s", step, seconds, format_table(scores))
        try:
            # At step 0 too: a run that never improves keeps the starting encoder, and says so.
            kept = self.best.offer(scores, step)
        except KeyError as error:
            known = ", ".join(sorted(scores))
            raise TrainingError(
                f"`best_metric`={error.args[0]}: cannot be computed on these dev data; prepare "
                f"them with a larger `dev_fraction`, or choose by one of {known}"
            ) from error
        if kept:
            self.summaries.scalars("best", scores, step)
        self.scored.assign(step)
        return scores


def format_table(scores: Scores) -> str:
    """Formats scores in aligned columns: a row for each similarity, and a last one for the rest."""
    rows: dict[str, list[str]] = {}
    for name, value in scores.items():
        rows.setdefault(name.rpartition("_")[0], []).append(f"{name} {value:.4g}")
    width = max(len(cell) for cells in rows.values() for cell in cells)
    lines = [rows[similarity] for similarity in sorted(rows, key=lambda similarity: not similarity)]
    return "\n".join("  " + "  ".join(f"{cell:{width}}" for cell in row).rstrip() for row in lines)
