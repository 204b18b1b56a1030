"""What is seen of a job: on a terminal a bar that moves, elsewhere a line now and then."""

import io
import os
import re
import sys
import time

import pytest
from absl import logging as absl_logging

from dcse_tf.progress import Progress, show_log


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, which stands still unless a test moves it."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def log(capsys):
    """The lines of a stderr that is no terminal, without the time of day."""

    def read():
        new = capsys.readouterr().err.splitlines()
        assert all(re.match(r"\d\d:\d\d:\d\d .", line) for line in new)
        return [line[9:] for line in new]

    return read


def test_a_log_has_a_line_now_and_then(log, clock):
    with Progress("queries", 100) as progress:
        for done in range(1, 101):
            clock[0] += 0.09
            progress.update(done)
    assert (log(), progress.done) == ([], 100)  # a short job says nothing
    with Progress("steps", 20_000, already=1000) as progress:
        for done in (2000, 6000, 6500, 16_000):
            clock[0] += 5
            progress.update(done, loss=0.123456)
    # 5000 in 10 s are 500 a second; 14000 are left.
    assert log() == [
        "6,000 of 20,000 steps, 00:28 left, 500.0 a second, loss 0.1235",
        "16,000 of 20,000 steps, 00:05 left, 750.0 a second, loss 0.1235",
    ]


def test_without_an_end_no_remaining_time_is_said(log, clock):
    progress = Progress("sessions read", every=0.0)
    clock[0] += 40
    progress.update(1)
    progress.update(1, 2)  # known by now
    assert log() == [
        "1 sessions read, 0.025 a second",
        "1 of 2 sessions read, 00:40 left, 0.025 a second",
    ]


def test_on_a_terminal_a_bar_moves_below_the_messages_and_goes_away(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with show_log(), Progress("steps", 4) as progress:
        progress.update(1, loss=0.5)
        absl_logging.warning("a warning")
        progress.update(4)
    shown = terminal.getvalue()
    assert "steps" in shown
    assert "warning: a warning\n" in shown
    assert shown.split("\n")[-1].rsplit("\r", 2)[-2].strip() == ""  # erased


def test_a_job_goes_on_when_the_reader_of_its_log_has_left(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1, encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with show_log(), Progress("steps", every=0.0) as progress:
            progress.update(1)
            absl_logging.warning("a warning")
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # for what is in its buffer


def test_only_messages_of_the_package_and_warnings_are_shown(log, tmp_path):
    other = compile("log('of another package')", str(tmp_path / "other.py"), "exec")
    with show_log(spell=str.upper):
        exec(other, {"log": absl_logging.info})
        exec(other, {"log": absl_logging.warning})
    assert log() == ["warning: OF ANOTHER PACKAGE"]
