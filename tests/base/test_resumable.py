"""Work that was stopped and is resumed: the folder of a job."""

import pytest

from dcse_tf.errors import InputError
from dcse_tf.files import MADE_FROM_FILE, MadeFrom, partial_path, resumable

MADE_FROM = MadeFrom({"`input`": "5 bytes", "`pooling`": "mean"})


class Stopped(Exception):
    pass


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def work(path, steps, stop=True, made_from=MADE_FROM, overwrite=False):
    """A job that makes files, each unless it is there; returns those that it had to make."""
    made = []
    with resumable(path, made_from, overwrite) as folder:
        for step in steps:
            if not (folder / step).exists():
                (folder / step).write_text(step)
                made.append(step)
        if stop:
            raise Stopped
        (folder / steps[-1]).replace(path)
    return made


def stop(path, steps, **changes):
    with pytest.raises(Stopped):
        work(path, steps, **changes)


def test_steps_that_are_finished_stay_until_the_job_is(tmp_path):
    path = tmp_path / "deep" / "a"
    stop(path, ["first", "second"])
    assert names(path.parent) == ["a.dcse_tf-partial"]
    assert work(path, ["first", "second", "third"], stop=False) == ["third"]
    assert path.read_text() == "third"
    assert names(path.parent) == ["a"]


def test_a_job_that_finished_no_step_leaves_nothing_and_binds_nobody(tmp_path):
    stop(tmp_path / "a", [])
    assert names(tmp_path) == []
    partial = partial_path(tmp_path / "a")
    partial.mkdir()  # left by a job that was killed in its first step
    MadeFrom({"`pooling`": "cls"}).write(partial / MADE_FROM_FILE)
    (partial / "first.dcse_tf-partial").write_text("half")
    stop(tmp_path / "a", ["first"])
    assert names(partial) == ["first", MADE_FROM_FILE]


def test_other_settings_are_refused_unless_the_job_may_start_anew(tmp_path):
    other = MadeFrom({**MADE_FROM.values, "`pooling`": "cls"})
    stop(tmp_path / "a", ["first"])
    with pytest.raises(InputError, match=r"a\.dcse_tf-partial.*`pooling`: cls \(was mean\).*`over"):
        work(tmp_path / "a", ["first"], made_from=other)
    assert names(partial_path(tmp_path / "a")) == ["first", MADE_FROM_FILE]
    made = work(tmp_path / "a", ["first"], stop=False, made_from=other, overwrite=True)
    assert made == ["first"]
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("content", ["{", None])
def test_a_folder_whose_record_is_damaged_is_refused(tmp_path, content):
    stop(tmp_path / "a", ["first"])
    record = partial_path(tmp_path / "a") / MADE_FROM_FILE
    record.unlink()
    if content:
        record.write_text(content)
    with pytest.raises(InputError, match=rf"{record}.*`overwrite`"):
        work(tmp_path / "a", ["first"])
