"""What is seen of a job: on a terminal a line that moves, elsewhere a line now and then."""

import io
import re
import sys

import pytest
from absl import logging as absl_logging

from dcse_tf import progress
from dcse_tf.progress import Progress


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    """A terminal of 60 columns; knows the carriage return."""

    def isatty(self):
        return True

    @property
    def screen(self):
        """The lines as they stand on the screen, without trailing blanks."""
        lines = []
        for raw in self.getvalue().split("\n"):
            line = ""
            for part in raw.split("\r"):
                assert len(part) <= 59, "the line wraps"
                line = part + line[len(part) :]
            lines.append(line.rstrip())
        return lines


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log(capsys):
    """The lines of a stderr that is no terminal, without the time of day."""
    lines = []

    def read():
        new = capsys.readouterr().err.splitlines()
        assert all(re.match(r"\d\d:\d\d:\d\d .", line) for line in new)
        lines.extend(line[9:] for line in new)
        return lines

    return read


@pytest.fixture
def open_terminal(monkeypatch):
    """Puts a terminal in the place of stderr; pytest would take it back before the test begins."""

    def open_it():
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setattr("sys.stderr", Terminal())
        return sys.stderr

    return open_it


def test_a_short_job_says_nothing_in_a_log(log, clock):
    with Progress("queries", 100, clock=clock) as counter:
        for done in range(1, 101):
            clock.now += 0.09
            counter.update(done)
    assert log() == []
    assert counter.done == 100


def test_count_time_left_rate_and_figures_are_said(log, clock):
    counter = Progress("steps", 20_000, clock=clock)
    clock.now += 10
    counter.update(5000, loss=0.123456, samples_per_second=52)
    # 5000 in 10 s are 500 a second; 15000 are left.
    assert log() == [
        "5,000 of 20,000 steps, 0:30 left, 500.0 a second, loss 0.1235, samples_per_second 52"
    ]
    clock.now += 3990
    counter.update(10_000)
    # 10000 in 4000 s: the rate is that of the whole time.
    assert log()[1:] == ["10,000 of 20,000 steps, 1:06:40 left, 2.5 a second"]


def test_slow_steps_have_a_rate_too(log, clock):
    counter = Progress("steps", 4, every=0, clock=clock)
    clock.now += 32
    counter.update(1)
    assert log() == ["1 of 4 steps, 1:36 left, 0.031 a second"]


def test_without_an_end_no_remaining_time_is_said(log, clock):
    counter = Progress("sessions read", clock=clock)
    clock.now += 20
    counter.update(3000)
    assert log() == ["3,000 sessions read, 150.0 a second"]
    clock.now += 20
    counter.update(3000, 6000)  # known by now: 75 a second, and 3000 are left
    assert log()[1:] == ["3,000 of 6,000 sessions read, 0:40 left, 75.0 a second"]


@pytest.mark.parametrize(("every", "said"), [(10.0, [20, 40, 60, 80, 100]), (0.0, range(1, 101))])
def test_lines_are_ten_seconds_apart_or_as_asked(every, said, log, clock):
    counter = Progress("queries", every=every, clock=clock)
    for done in range(1, 101):
        clock.now += 0.5
        counter.update(done)
    assert [line.split()[0] for line in log()] == [str(done) for done in said]


def test_a_job_that_has_done_nothing_yet_is_no_error(log, clock):
    counter = Progress("queries", 5, every=0, clock=clock)
    counter.update(0)
    clock.now += 30
    counter.update(0)
    assert log() == ["0 of 5 queries, 0 a second"] * 2


def test_what_was_done_before_is_not_of_this_rate(log, clock):
    counter = Progress("lines", 1200, already=1000, clock=clock)
    assert counter.done == 1000
    clock.now += 10
    counter.update(1050)
    # 50 in 10 s, though a stopped run had done 1000; 150 are left.
    assert log() == ["1,050 of 1,200 lines, 0:30 left, 5.0 a second"]


def test_on_a_terminal_one_line_moves_and_vanishes(open_terminal, clock):
    terminal = open_terminal()
    counter = Progress("lines", 200, clock=clock)
    counter.update(1)  # at once: a person wants to see that something goes on
    assert terminal.screen == ["1 of 200 lines, 0 a second"]
    clock.now += 10
    counter.update(100, loss=1.0)
    assert terminal.screen == ["100 of 200 lines, 0:10 left, 10.0 a second, loss 1"]
    clock.now += 10
    counter.update(150)
    assert terminal.screen == ["150 of 200 lines, 0:07 left, 7.5 a second"]
    counter.update(151)  # too soon to be worth a change
    assert terminal.screen == ["150 of 200 lines, 0:07 left, 7.5 a second"]
    counter.update(200)
    assert terminal.screen == [""]


def test_a_line_that_is_too_long_is_cut_where_it_would_wrap(open_terminal, clock):
    terminal = open_terminal()
    with Progress("lines", 200, clock=clock) as counter:
        counter.update(100, **{f"score_{number}": 0.5 for number in range(20)})
        (line,) = terminal.screen
        assert line.startswith("100 of 200 lines")
        assert len(line) > 40
    assert terminal.screen == [""]


def test_what_is_said_meanwhile_stands_above_the_moving_line(open_terminal, clock):
    terminal = open_terminal()
    with Progress("steps", 9, clock=clock) as counter:
        counter.update(3)
        progress.say("a checkpoint was saved")
        progress.say("and a warning")
        first, second, moving = terminal.screen
        assert first[9:] == "a checkpoint was saved"
        assert second[9:] == "and a warning"
        assert moving == "3 of 9 steps, 0 a second"
    assert terminal.screen[2:] == [""]
    progress.say("the end")
    assert [line[9:] for line in terminal.screen[2:]] == ["the end", ""]


def test_of_two_jobs_the_last_to_move_is_seen(open_terminal, clock):
    terminal = open_terminal()
    with Progress("steps", 9, clock=clock) as outer:
        outer.update(3)
        with Progress("sentences", 5, clock=clock) as inner:
            inner.update(2)
            assert terminal.screen == ["2 of 5 sentences, 0 a second"]
        clock.now += 1
        outer.update(4)
        assert terminal.screen == ["4 of 9 steps, 0:01 left, 4.0 a second"]


def test_log_messages_are_lines_that_do_not_break_the_moving_one(open_terminal, clock):
    """Of this package all, of others only warnings; afterwards the logger is as it was."""
    logger = absl_logging.get_absl_logger()
    before = (list(logger.handlers), logger.propagate, absl_logging.get_verbosity())
    terminal = open_terminal()
    with progress.show_log(spell=str.upper), Progress("steps", 9, clock=clock) as counter:
        counter.update(3)
        own = compile("log('saved %d', 3)", progress.__file__, "exec")
        exec(own, {"log": absl_logging.info})
        absl_logging.info("of another package")
        absl_logging.warning("careful")
        *lines, moving = terminal.screen
    assert [line[9:] for line in lines] == ["SAVED 3", "warning: CAREFUL"]
    assert moving == "3 of 9 steps, 0 a second"
    assert (list(logger.handlers), logger.propagate, absl_logging.get_verbosity()) == before
