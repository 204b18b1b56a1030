"""Hooks between the steps of a run: the log, TensorBoard, and the best encoder so far."""

import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from dcse_tf.evaluation.names import PROJECTED
from dcse_tf.progress import Progress
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.tasks.spec import Scores
from dcse_tf.training.advice import advise
from dcse_tf.training.best_encoder import UNTRAINED, BestEncoder, Kept
from dcse_tf.training.controller import Hook, Taken, TrainingError
from dcse_tf.training.run_directory import list_hyperparameters
from dcse_tf.training.summaries import SummaryWriter


class Report(Hook):
    """Shows the progress of training, and writes its metrics for TensorBoard.

    Args:
        summaries: where the metrics are written.
        every: steps between two reports.
        steps: the last step.
        learning_rate: returns the current learning rate.
    """

    def __init__(
        self,
        summaries: SummaryWriter,
        every: int,
        steps: int,
        learning_rate: Callable[[], float],
    ):
        super().__init__(every)
        self._summaries = summaries
        self._steps = steps
        self._learning_rate = learning_rate

    def begin(self, step: int, resumed: bool) -> None:
        # Where the progress line cannot be redrawn, as in a log file, every report is a new line.
        self._progress = Progress("steps", self._steps, already=step, every=0.0)

    def within_steps(self, taken: Taken) -> None:
        self._progress.update(taken.step, self._steps, **self._measure(taken))

    def after_steps(self, taken: Taken) -> None:
        metrics = self._measure(taken)
        self._summaries.scalars("train", metrics, taken.step)
        self._progress.update(taken.step, self._steps, **metrics)
        if advice := advise(metrics):
            logging.warning("%s", advice)
            self._summaries.text("advice", advice, taken.step)

    def _measure(self, taken: Taken) -> Scores:
        metrics = dict(taken.metrics)
        metrics["fill"] = metrics["tokens"] / max(metrics.pop("cells"), 1.0)
        metrics["step_seconds"] = taken.seconds / taken.steps
        if without_negatives := metrics.pop("without_negatives", 0.0):
            metrics["without_negatives"] = without_negatives / metrics["samples"]
        for name in ("samples", "tokens"):
            metrics[f"{name}_per_second"] = metrics.pop(name) / taken.seconds
        metrics["learning_rate"] = self._learning_rate()
        # A long line is cut off at the end, so the most important metrics come first.
        return {name: metrics[name] for name in ("loss", "samples_per_second")} | metrics

    def end(self, step: int) -> None:
        self._progress.close()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        scores: dev scores of the last step; empty without dev data.
        kept: the step and scores of the encoder that the run kept.
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


class Evaluate(Hook):
    """Evaluates on dev data, and keeps the encoder if it is the best so far.

    Args:
        evaluate: returns the dev scores; an empty dict without dev data.
        best: keeps the best encoder.
        every: steps between two evaluations.
        summaries: where the scores are written.
        scored: int64 variable, the step that was evaluated last; it is saved with the model.

    Attributes:
        outcome: the result of the run; None until it has ended.
    """

    def __init__(
        self,
        evaluate: Callable[[], Scores],
        best: BestEncoder,
        every: int,
        summaries: SummaryWriter,
        scored: tf.Variable,
    ):
        super().__init__(every)
        self.outcome: Outcome | None = None
        self._evaluate = evaluate
        self._best = best
        self._summaries = summaries
        self._scored = scored
        self._scores: Scores | None = None

    def begin(self, step: int, resumed: bool) -> None:
        # An encoder that was kept before the first checkpoint does not count.
        if resumed:
            self._best.restore()

    def at_boundary(self, step: int) -> None:
        if self._scored.numpy() < step or not self._best.kept:
            self._scores = self._score(step)

    def end(self, step: int) -> None:
        # A run resumed at its end evaluated its last step in an earlier process.
        scores = self._score(step) if self._scores is None else self._scores
        self.outcome = Outcome(scores, self._best.end(scores, step))

    def _score(self, step: int) -> Scores:
        started = time.monotonic()
        scores = self._evaluate()
        if scores:
            self._summaries.scalars("eval", scores, step)
            seconds = time.monotonic() - started
            logging.info("step %d, evaluated in %.0f s:\n%s", step, seconds, format_table(scores))
        try:
            # At step 0 too: a run that never improves keeps the starting encoder, and says so.
            kept = self._best.offer(scores, step)
        except KeyError as error:
            known = ", ".join(sorted(scores))
            raise TrainingError(
                f"`best_metric`={error.args[0]}: cannot be computed on these dev data; prepare "
                f"them with a larger `dev_fraction`, or choose by one of {known}"
            ) from error
        if kept:
            # The table of hyperparameters shows the first five metrics by name, and "best" comes
            # before "eval": one figure for each similarity, by the turns before the response.
            left_out = ("_r2", "_r5", "_mrr", "loss")
            shown = {name: value for name, value in scores.items() if not name.endswith(left_out)}
            shown = {name: value for name, value in shown.items() if "_bidirectional" not in name}
            self._summaries.scalars("best", shown, step)
        self._scored.assign(step)
        return scores


class Hyperparameters(Hook):
    """Writes the run's settings for TensorBoard: all as text, and the table that compares runs.

    Args:
        options: the run's options.
        summaries: where they are written.
    """

    def __init__(self, options: TrainOptions, summaries: SummaryWriter):
        super().__init__()
        self._options = options
        self._summaries = summaries

    def begin(self, step: int, resumed: bool) -> None:
        text = json.dumps(self._options.to_dict(), indent=2, sort_keys=True)
        self._summaries.text("configuration", f"```\n{text}\n```", step)
        # Includes the names of parent folders, because every run's own folder may be called "run".
        name = "/".join(pathlib.Path(self._options.run_dir).absolute().parts[-3:])
        self._summaries.begin_session(list_hyperparameters(self._options), name)

    def end(self, step: int) -> None:
        self._summaries.end_session()


def format_table(scores: Scores) -> str:
    """Formats scores in aligned columns: a row for each similarity, and a last one for the rest."""
    rows: dict[str, list[str]] = {}
    for name, value in scores.items():
        rows.setdefault(name.rpartition("_")[0], []).append(f"{name} {value:.4g}")
    width = max(len(cell) for cells in rows.values() for cell in cells)
    lines = [rows[similarity] for similarity in sorted(rows, key=lambda similarity: not similarity)]
    return "\n".join("  " + "  ".join(f"{cell:{width}}" for cell in row).rstrip() for row in lines)
