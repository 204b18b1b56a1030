import types

import pytest

from dcse_tf import progress
from dcse_tf.progress import Progress


@pytest.fixture
def log(monkeypatch):
    """A clock that the test sets, and what was logged."""
    log = types.SimpleNamespace(now=1000.0, messages=[])
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: log.now))
    record = types.SimpleNamespace(info=lambda form, *values: log.messages.append(form % values))
    monkeypatch.setattr(progress, "logging", record)
    return log


def test_a_short_job_says_nothing(log):
    counter = Progress("queries")
    for done in range(100):
        log.now += 0.09
        counter.update(done, 100)
    assert log.messages == []


def test_rate_and_remaining_time_are_said(log):
    counter = Progress("queries")
    log.now += 10
    counter.update(50, 200)
    # 50 in 10 s are 5 a second; 150 are left.
    assert log.messages == ["50 of 200 queries, 5.0 a second, 30 s left"]
    log.now += 10
    counter.update(200, 200)
    # 200 in 20 s: the rate is that of the whole time.
    assert log.messages[1:] == ["200 of 200 queries, 10.0 a second, 0 s left"]


def test_without_an_end_no_remaining_time_is_said(log):
    counter = Progress("sessions read")
    log.now += 20
    counter.update(3000)
    assert log.messages == ["3000 sessions read, 150.0 a second"]


def test_messages_are_ten_seconds_apart(log):
    counter = Progress("queries")
    for done in range(1, 101):
        log.now += 0.5
        counter.update(done)
    assert [message.split()[0] for message in log.messages] == ["20", "40", "60", "80", "100"]


def test_a_job_that_has_done_nothing_yet_is_no_error(log):
    counter = Progress("queries")
    log.now += 30
    counter.update(0, 5)
    counter.update(0)
    assert len(log.messages) == 1
    assert log.messages[0].startswith("0 queries, 0.0 a second")


def test_the_count_is_kept_though_nothing_is_said(log):
    counter = Progress("queries")
    assert counter.done == 0
    counter.update(7)
    assert counter.done == 7
    counter.update(9, 10)
    assert counter.done == 9
    assert log.messages == []


def test_what_was_done_before_is_not_of_this_rate(log):
    counter = Progress("lines", already=1000)
    assert counter.done == 1000
    log.now += 10
    counter.update(1050, 1200)
    # 50 in 10 s, though a stopped run had done 1000; 150 are left.
    assert log.messages == ["1050 of 1200 lines, 5.0 a second, 30 s left"]
    log.now += 10
    Progress("lines", already=7).update(7, 9)  # nothing done yet: no rate, and no error
