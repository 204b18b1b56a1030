"""What the user sees while a job runs: log messages, and a line with its progress.

Everything goes to stderr, so that a job's results can be piped.
"""

import contextlib
import logging
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Self

from absl import logging as absl_logging

_PACKAGE = pathlib.Path(__file__).parent

# Seconds between two updates of the moving line: frequent enough to look alive, at little cost.
_REFRESH = 0.1

# The text on the terminal's last line. It is global, because the terminal has only one such line.
_moving = ""


def say(text: str) -> None:
    """Writes a line with the time of day, above the moving line if there is one."""
    moving = _moving
    erase()
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
    _draw(moving)


def erase() -> None:
    """Erases the moving line; whatever is printed next starts at its beginning."""
    # Spaces rather than a control sequence: notebooks support only the carriage return.
    if _moving:
        print("\r" + " " * len(_moving) + "\r", end="", file=sys.stderr, flush=True)
    _remember("")


@contextlib.contextmanager
def show_log(spell: Callable[[str], str] = str) -> Iterator[None]:
    """Shows the package's log messages inside the `with` block, one per line.

    Args:
        spell: applied to each message before it is shown, such as `as_flags`.
    """
    logger, verbosity = absl_logging.get_absl_logger(), absl_logging.get_verbosity()
    handlers, propagate = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [_Lines(spell)], False
    absl_logging.set_verbosity(absl_logging.INFO)
    try:
        yield
    finally:
        erase()
        logger.handlers, logger.propagate = handlers, propagate
        absl_logging.set_verbosity(verbosity)


class _Lines(logging.Handler):
    """Shows log messages; of other packages that use the same logger, only warnings."""

    def __init__(self, spell: Callable[[str], str]):
        super().__init__()
        self._spell = spell

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            say(f"{record.levelname.lower()}: {self._spell(self.format(record))}")
        elif pathlib.Path(record.pathname).is_relative_to(_PACKAGE):
            say(self._spell(self.format(record)))


class Progress:
    """Shows how much of a job is done, how fast it is, and the time left.

        with Progress("sentences", total=1000) as progress:
            for done in range(1, 1001):
                progress.update(done, loss=0.5)

    On a terminal or in a notebook, one line is updated in place and erased at the end. Elsewhere,
    such as in a log file, a line is written every `every` seconds, and none for shorter jobs.
    """

    def __init__(
        self,
        unit: str,
        total: int = 0,
        already: int = 0,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Args:
        unit: what is counted, in the plural.
        total: how many there are; 0 if unknown.
        already: how many an interrupted run had already done.
        every: seconds between two plain lines; 0 for one line per update.
        clock: returns the time in seconds.
        """
        self.unit = unit
        self.total = total
        self.done = self._already = already
        self._every = every
        self._clock = clock
        self._started = clock()
        self._shown: float | None = None  # when the line was last written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, done: int, total: int = 0, **figures: float) -> None:
        """Updates the count, and the line if it is due.

        Args:
            done: how many are done, including `already`.
            total: how many there are, if it was not known before.
            figures: further values to show, such as loss=0.31.
        """
        self.done = done
        self.total = total or self.total
        now, moves = self._clock(), can_move()
        if self._shown is None:
            due = moves or now - self._started >= self._every
        else:
            due = now - self._shown >= (_REFRESH if moves else self._every)
        if due:
            self._shown = now
            text = self.describe(now - self._started, figures)
            if moves:
                _draw(text)
            else:
                say(text)
        if done >= self.total > 0:
            self.close()

    def describe(self, seconds: float, figures: dict[str, float]) -> str:
        """Formats the line after so many seconds, most important parts first."""
        rate = (self.done - self._already) / seconds if seconds > 0 else 0.0
        of = f" of {self.total:,}" if self.total else ""
        parts = [f"{self.done:,}{of} {self.unit}"]
        if self.total and rate:
            parts.append(f"{_duration((self.total - self.done) / rate)} left")
        parts.append(f"{rate:,.1f} a second" if rate >= 1 else f"{rate:.2g} a second")
        parts += [f"{name} {value:.4g}" for name, value in figures.items()]
        return ", ".join(parts)

    def close(self) -> None:
        """Erases the moving line."""
        if self._shown is not None:
            erase()


def can_move() -> bool:
    """Whether text on stderr can be overwritten: on a terminal, or in a notebook's output."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")


def _draw(text: str) -> None:
    if not text:
        return
    # A line that wraps could not be erased.
    text = text[: shutil.get_terminal_size((100, 24)).columns - 1]
    print("\r" + text.ljust(len(_moving)), end="", file=sys.stderr, flush=True)
    _remember(text)


def _remember(text: str) -> None:
    global _moving
    _moving = text


def _duration(seconds: float) -> str:
    """Formats seconds as hours, minutes and seconds, such as 1:02:03 or 0:07."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
