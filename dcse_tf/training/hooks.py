"""Hooks between the steps of a run: reports, evaluates and keeps the best encoder, profiles."""

import dataclasses
import math
import pathlib
import time
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from dcse_tf.evaluation.names import PROJECTED
from dcse_tf.progress import Progress
from dcse_tf.tasks.spec import Scores
from dcse_tf.training.best_encoder import UNTRAINED, BestEncoder, Kept
from dcse_tf.training.controller import Hook, Stretch, TrainingError
from dcse_tf.training.summaries import SummaryWriter


class Report(Hook):
    """Shows the progress of training, and writes its metrics for TensorBoard.

    Args:
        summaries: where the metrics are written.
        every: steps between two reports.
        steps: the last step.
        learning_rate: returns the current learning rate.
        advise: returns a warning for a stretch's metrics, or None if all is well.
    """

    def __init__(
        self,
        summaries: SummaryWriter,
        every: int,
        steps: int,
        learning_rate: Callable[[], float],
        advise: Callable[[Scores], str | None],
    ):
        self.every = every
        self._summaries = summaries
        self._steps = steps
        self._learning_rate = learning_rate
        self._advise = advise

    def begin(self, step: int, resumed: bool) -> None:
        # Where the progress line cannot be redrawn, as in a log file, every report is a new line.
        self._progress = Progress("steps", self._steps, already=step, every=0.0)

    def within_stretch(self, stretch: Stretch) -> None:
        self._progress.update(stretch.step, self._steps, **self._measure(stretch))

    def after_stretch(self, stretch: Stretch) -> None:
        metrics, step = self._measure(stretch), stretch.step
        self._summaries.scalars("train", metrics, step)
        self._progress.update(step, self._steps, **metrics)
        if advice := self._advise(metrics):
            logging.warning("%s", advice)
            self._summaries.text("advice", advice, step)

    def _measure(self, stretch: Stretch) -> Scores:
        metrics = dict(stretch.metrics)
        metrics["fill"] = metrics["tokens"] / max(metrics.pop("cells"), 1.0)
        metrics["step_seconds"] = stretch.seconds / stretch.taken
        if without_negatives := metrics.pop("without_negatives"):
            metrics["without_negatives"] = without_negatives / metrics["samples"]
        for name in ("samples", "tokens"):
            metrics[f"{name}_per_second"] = metrics.pop(name) / stretch.seconds
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
        kept: the step and score of the encoder that the run kept.
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
        after_evaluation: called after each evaluation with the step, the scores and whether the
            encoder is the best so far.

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
        after_evaluation: Callable[[int, Scores, bool], None] = lambda *_: None,
    ):
        self.every = every
        self._scored = scored
        self.outcome: Outcome | None = None
        self._evaluate = evaluate
        self._best = best
        self._summaries = summaries
        self._after_evaluation = after_evaluation
        self._scores: Scores | None = None

    def begin(self, step: int, resumed: bool) -> None:
        # An encoder that was kept before the first checkpoint does not count.
        if resumed:
            self._best.restore()

    def at_boundary(self, step: int, last: bool) -> None:
        scored = self._scored.numpy() >= step and self._best.kept
        if self.is_due(step, last) and not scored:
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
        self._scored.assign(step)
        self._after_evaluation(step, scores, kept)
        return scores


# Steps before the profile, since the first steps build graphs and fill buffers.
_WARM_UP = 10


class Profile(Hook):
    """Profiles steps of a run for TensorBoard's Profile page.

    Args:
        folder: the folder of the summaries, where the profile is written; None to interrupt the
            steps at the same boundaries without profiling.
        num_steps: number of steps to profile, after the first ten of this process; 0 for none.
    """

    def __init__(self, folder: pathlib.Path | None, num_steps: int):
        self._folder = folder
        self._num_steps = num_steps
        self._running = False

    def begin(self, step: int, resumed: bool) -> None:
        self._begin = step + _WARM_UP
        self._end = self._begin + self._num_steps

    def next_boundary(self, step: int) -> int | None:
        if not self._num_steps:
            return None
        return next((edge for edge in (self._begin, self._end) if edge > step), None)

    def at_boundary(self, step: int, last: bool) -> None:
        if self._folder is None:
            return
        # A run that returned to a checkpoint after a divergence comes here while it is traced.
        if step == self._begin < self._end and not last and not self._running:
            tf.profiler.experimental.start(str(self._folder))
            self._running = True
        elif self._running and (last or step >= self._end):
            tf.profiler.experimental.stop()
            self._running = False
            logging.info("trace of the steps: %s", self._folder / "plugins" / "profile")


def format_table(scores: Scores) -> str:
    """Formats scores in aligned columns: a row for each similarity, and a last one for the rest."""
    rows: dict[str, list[str]] = {}
    for name, value in scores.items():
        similarity = name.rpartition("_")[0]
        rows.setdefault(similarity, []).append(f"{name} {value:.4g}")
    width = max(len(cell) for cells in rows.values() for cell in cells)
    lines = [rows[kind] for kind in sorted(rows, key=lambda kind: not kind)]
    return "\n".join("  " + "  ".join(f"{cell:{width}}" for cell in row).rstrip() for row in lines)
