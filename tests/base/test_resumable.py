"""Work that was stopped and is resumed: the folder of a job, and the rows of an array."""

import os
import pathlib
import re
import types

import numpy as np
import pytest

from dcse_tf.errors import InputError
from dcse_tf.files import MADE_FROM_FILE, MadeFrom, partial_path, resumable
from dcse_tf.search import embed
from dcse_tf.search.embed import Rows

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


ROWS = np.arange(15, dtype=np.float32).reshape(5, 3)


@pytest.fixture
def folder(tmp_path):
    """Rows of which none is written, and one shared sentence."""
    folder = tmp_path / "rows"
    folder.mkdir()
    Rows.create(folder, range(5), ["a\r好"], ROWS[:1])
    return folder


def test_written_rows_are_numpys_own_file(folder, tmp_path):
    rows = Rows(folder)
    assert rows.shape == (5, 3)
    rows.write(1, 2, [ROWS[2:3], ROWS[3:]])
    rows.write(0, 0, iter([ROWS[:2]]))
    np.save(tmp_path / "expected.npy", ROWS)
    assert rows.path.read_bytes() == (tmp_path / "expected.npy").read_bytes()


def test_what_is_done_and_what_is_shared_is_known_again(folder):
    Rows(folder).write(0, 0, [ROWS[:2]])
    rows = Rows(folder)
    assert [rows.is_done(block) for block in range(3)] == [True, False, False]
    assert rows.shared.row == {"a\r好": 0}
    np.testing.assert_array_equal(rows.shared.embeddings, ROWS[:1])


def test_a_block_that_was_cut_off_is_not_done(folder):
    def broken():
        yield ROWS[:1] + 100
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Rows(folder).write(0, 0, broken())
    assert not Rows(folder).is_done(0)


def test_rows_are_on_the_disk_before_their_block_is_done(folder, monkeypatch):
    rows, fsync, seen = Rows(folder), os.fsync, []

    def note(descriptor):
        inode = os.fstat(descriptor).st_ino
        name = next(p.name for p in (folder, rows.path) if p.stat().st_ino == inode)
        seen.append((name, rows.is_done(0)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    rows.write(0, 0, [ROWS[:2]])
    assert seen == [("rows.npy", False), ("rows", True)]
    assert rows.is_done(0)


@pytest.mark.parametrize("name", ["rows.npy", "shared.npy", "shared.json"])
@pytest.mark.parametrize("short", [True, False])
def test_damaged_rows_are_named(folder, name, short):
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    if short:
        path.write_bytes(content[:-1])
    with pytest.raises(InputError, match=rf"{folder}.*`overwrite`"):
        Rows(folder)


@pytest.mark.parametrize(
    ("count", "shown"),
    [(59, "59 bytes"), (5_999, "5.999 kB"), (82_090_000_000, "82.09 GB"), (1.536e15, "1536 TB")],
)
def test_sizes_are_shown_in_units_that_can_be_read(count, shown):
    assert embed._show_bytes(count) == shown


def test_a_disk_that_is_too_small_is_told_before_the_work(tmp_path, monkeypatch):
    """Two rows of three numbers of four bytes are 24 bytes."""
    (tmp_path / "a.txt").write_text("a\nb\n")
    config = types.SimpleNamespace(
        input=str(tmp_path / "a.txt"), output="out.npy", cache_size=0, block_size=5
    )
    mark = lambda texts, _: (np.zeros([len(texts), 3]), np.zeros(len(texts), bool))  # noqa: E731
    encoder = types.SimpleNamespace(encode_and_mark=mark)
    free = 23
    monkeypatch.setattr(embed.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=free))
    with pytest.raises(InputError, match=re.escape("`output`=out.npy: 2 rows of 3 float32 are 24")):
        embed._begin(config, embed.Shard(), encoder, tmp_path / "rows")
    assert names(tmp_path) == ["a.txt"]
    free = 24
    embed._begin(config, embed.Shard(), encoder, pathlib.Path(tmp_path / "rows"))
    assert Rows(tmp_path / "rows").shape == (2, 3)
