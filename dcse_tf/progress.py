"""What the user sees while a job runs: log messages, and a bar that moves.

Everything goes to stderr, so that a job's results can be piped.
"""

import contextlib
import logging
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging as absl_logging
from tqdm import tqdm

_PACKAGE = pathlib.Path(__file__).parent


@contextlib.contextmanager
def show_log(spell: Callable[[str], str] = str) -> Iterator[None]:
    """Shows the package's log messages inside the `with` block, a line each, spelt by `spell`."""
    logger, verbosity = absl_logging.get_absl_logger(), absl_logging.get_verbosity()
    handlers, propagate = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [_Lines(spell)], False
    absl_logging.set_verbosity(absl_logging.INFO)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate
        absl_logging.set_verbosity(verbosity)


class _Lines(logging.Handler):
    """Shows log messages; of other packages that use the same logger, only warnings."""

    def __init__(self, spell: Callable[[str], str]):
        super().__init__()
        self._spell = spell

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            _say(f"{record.levelname.lower()}: {self._spell(self.format(record))}")
        elif pathlib.Path(record.pathname).is_relative_to(_PACKAGE):
            _say(self._spell(self.format(record)))


def _say(text: str) -> None:
    """Writes a line with the time of day, above the bars; to a reader who left, nothing."""
    with contextlib.suppress(BrokenPipeError):
        tqdm.write(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr)
        sys.stderr.flush()


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Shows how much of a job is done, how fast it is, and the time left.

        with Progress("sentences", total=1000) as progress:
            for done in range(1, 1001):
                progress.update(done, loss=0.5)

    On a terminal or in a notebook, a bar moves and goes away at the end. Elsewhere, such as in a
    log file, a line is written every `every` seconds, and none for shorter jobs.
    """

    def __init__(self, unit: str, total: int = 0, already: int = 0, every: float = 10.0):
        """`total` is 0 if unknown; `already` is what an interrupted run had done."""
        self.total, self.done = total, already
        self._unit, self._already, self._every = unit, already, every
        self._started = self._shown = time.monotonic()
        style: dict[str, Any] = {"desc": unit, "unit": "", "leave": False, "dynamic_ncols": True}
        moves = sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")
        self._bar = tqdm(total=total or None, initial=already, disable=not moves, **style)

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, done: int, total: int = 0, **figures: float) -> None:
        """Tells how many are done, `already` included, of how many; figures such as loss=0.31."""
        self.done, self.total = done, total or self.total
        told = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        now = time.monotonic()
        if not self._bar.disable:
            self._bar.total = self.total or None
            self._bar.set_postfix_str(told, refresh=False)
            self._bar.update(done - self._bar.n)
        elif now - self._shown >= self._every:
            self._shown = now
            rate = (done - self._already) / max(now - self._started, 1e-9)
            of = f" of {self.total:,}" if self.total else ""
            left = f"{tqdm.format_interval((self.total - done) / (rate or 1e-9))} left"
            speed = f"{rate:,.1f} a second" if rate >= 1 else f"{rate:.2g} a second"
            parts = [f"{done:,}{of} {self._unit}", left if of and rate else "", speed, told]
            _say(", ".join(filter(None, parts)))
        if done >= self.total > 0:
            self.close()

    def close(self) -> None:
        """Removes the bar."""
        self._bar.close()
