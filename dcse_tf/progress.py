"""What a person sees while a job runs: log messages, and a line that says how far it is.

Everything goes to stderr, so that a job's results can be piped.
"""

import contextlib
import logging
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from absl import logging as absl_logging

_PACKAGE = pathlib.Path(__file__).parent

# Seconds between two states of the moving line: quick enough to look alive, and nearly free.
_REFRESH = 0.1

# The text that stands on the terminal's last line. A terminal has one such line, whoever moves it.
_moving = ""


def say(text: str) -> None:
    """Writes a line with the time of day, above the moving line if there is one."""
    moving = _moving
    erase()
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
    _draw(moving)


def erase() -> None:
    """Takes the moving line away; whatever is printed next begins a line."""
    # Spaces rather than a control sequence: notebooks know only the carriage return.
    if _moving:
        print("\r" + " " * len(_moving) + "\r", end="", file=sys.stderr, flush=True)
    _remember("")


@contextlib.contextmanager
def show_log(spell: Callable[[str], str] = str) -> Iterator[None]:
    """Shows the package's log messages while it is entered, a line each.

    Args:
        spell: has the last word on a message's spelling.
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
    """Says what is logged; of other packages, which use the same logger, only warnings."""

    def __init__(self, spell: Callable[[str], str]):
        super().__init__()
        self._spell = spell

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            say(f"{record.levelname.lower()}: {self._spell(self.format(record))}")
        elif pathlib.Path(record.pathname).is_relative_to(_PACKAGE):
            say(self._spell(self.format(record)))


class Progress:
    """Counts what is done of a job, and shows how fast and how long it will still take.

        with Progress("sentences", total=1000) as progress:
            for done in range(1, 1001):
                progress.update(done, loss=0.5)

    On a terminal or in a notebook one line is kept up to date and vanishes at the end. Elsewhere,
    as in a log file, a line is written now and then; a job that takes less than that says nothing.
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
        total: how many there are; 0 where that is not known.
        already: how many were done before, by a run that was stopped.
        every: seconds between two plain lines; 0 for a line an update.
        clock: gives the time in seconds.
        """
        self.unit = unit
        self.total = total
        self.done = self._already = already
        self._every = every
        self._clock = clock
        self._started = clock()
        self._shown: float | None = None  # when the line was written last

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def update(self, done: int, total: int = 0, **figures: float) -> None:
        """Takes note of how many are done.

        Args:
            done: how many, those done before included.
            total: how many there are, where it was not known before.
            figures: what else to show, such as loss=0.31.
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
        """The line after so many seconds, what matters most first."""
        rate = (self.done - self._already) / seconds if seconds > 0 else 0.0
        of = f" of {self.total:,}" if self.total else ""
        parts = [f"{self.done:,}{of} {self.unit}"]
        if self.total and rate:
            parts.append(f"{_duration((self.total - self.done) / rate)} left")
        parts.append(f"{rate:,.1f} a second" if rate >= 1 else f"{rate:.2g} a second")
        parts += [f"{name} {value:.4g}" for name, value in figures.items()]
        return ", ".join(parts)

    def say(self, text: str) -> None:
        """Writes a line without breaking the moving one."""
        say(text)

    def close(self) -> None:
        """Takes the moving line away."""
        if self._shown is not None:
            erase()


def can_move() -> bool:
    """Whether stderr can take back what it shows: a terminal, or a notebook's output."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")


def _draw(text: str) -> None:
    if not text:
        return
    # A line that wraps could not be taken back.
    text = text[: shutil.get_terminal_size((100, 24)).columns - 1]
    print("\r" + text.ljust(len(_moving)), end="", file=sys.stderr, flush=True)
    _remember(text)


def _remember(text: str) -> None:
    global _moving
    _moving = text


def _duration(seconds: float) -> str:
    """Hours, minutes and seconds, such as 1:02:03 or 0:07."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
