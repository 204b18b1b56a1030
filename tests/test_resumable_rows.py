import json
import os
import re
import types

import numpy as np
import pytest

from dcse_tf.errors import InputError
from dcse_tf.files import partial_path
from dcse_tf.tools import embed
from dcse_tf.tools.embed import Shared, begin, resume

JOB = {"--input": "5 bytes", "--pooling": "mean"}
ROWS = np.arange(15, dtype=np.float32).reshape(5, 3)
SHARED = Shared({"a\r好": 0}, ROWS[:1])


@pytest.fixture
def output(tmp_path):
    return tmp_path / "deep" / "a.npy"


def names(output):
    return sorted(path.name for path in output.parent.iterdir())


def test_the_file_is_numpys_own_and_appears_when_it_is_complete(output):
    rows = begin(output, JOB, (5, 3), SHARED)
    rows.append(iter([ROWS[:2], ROWS[2:3]]))
    assert names(output) == ["a.npy.dcse_tf-partial"]
    rows.append(iter([ROWS[3:]]))
    assert names(output) == ["a.npy.dcse_tf-partial"]
    rows.finish()
    assert names(output) == ["a.npy"]
    np.save(output.parent / "expected.npy", ROWS)
    assert output.read_bytes() == (output.parent / "expected.npy").read_bytes()


def test_what_was_stopped_goes_on_with_what_is_shared(output):
    begin(output, JOB, (5, 3), SHARED).append(iter([ROWS[:2]]))
    rows = resume(output, dict(JOB))
    assert (rows.done, rows.shape) == (2, (5, 3))
    assert rows.shared.row == SHARED.row
    np.testing.assert_array_equal(rows.shared.embeddings, SHARED.embeddings)
    rows.append(iter([ROWS[2:]]))
    rows.finish()
    np.testing.assert_array_equal(np.load(output), ROWS)


def test_rows_that_the_journal_does_not_know_are_written_again(output):
    rows = begin(output, JOB, (5, 3), SHARED)
    rows.append(iter([ROWS[:2]]))

    def broken():
        yield ROWS[:1] + 100
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rows.append(broken())
    rows = resume(output, JOB)
    assert rows.done == 2
    rows.append(iter([ROWS[2:]]))
    rows.finish()
    np.testing.assert_array_equal(np.load(output), ROWS)


def test_rows_are_on_disk_before_the_journal_counts_them(output, monkeypatch):
    """What is flushed to disk, with its size, and when the journal is begun."""
    rows = begin(output, JOB, (5, 3), SHARED)
    rows_file = partial_path(output) / "rows.npy"
    header = rows_file.stat().st_size
    seen, write, flush = [], embed._write_json, os.fsync

    def note_flush(descriptor):
        state = os.fstat(descriptor)
        name = "rows" if state.st_ino == rows_file.stat().st_ino else "journal"
        seen.append((f"{name} flushed", state.st_size - header if name == "rows" else None))
        flush(descriptor)

    def note_write(path, value):
        seen.append(("journal begun", value["done"]))
        write(path, value)

    monkeypatch.setattr(embed.os, "fsync", note_flush)
    monkeypatch.setattr(embed, "_write_json", note_write)
    rows.append(iter([ROWS[:2]]))
    # Two rows of three numbers of four bytes. Of the journal the file, and its name in the folder.
    journal = [("journal begun", 2), *2 * [("journal flushed", None)]]
    assert seen == [("rows flushed", 24), *journal]


def test_without_a_journal_nothing_is_whole(output):
    assert resume(output, JOB) is None
    begin(output, JOB, (5, 3), SHARED)
    (partial_path(output) / "journal.json").unlink()
    assert resume(output, JOB) is None


@pytest.mark.parametrize("left", ["folder", "file"])
def test_beginning_throws_away_what_was_left(output, left):
    partial = partial_path(output)
    output.parent.mkdir(parents=True)
    if left == "folder":
        begin(output, JOB, (9, 3), SHARED).append(iter([ROWS]))
    else:
        partial.write_text("of a run that was killed")
    rows = begin(output, JOB, (5, 3), SHARED)
    rows.append(iter([ROWS]))
    rows.finish()
    np.testing.assert_array_equal(np.load(output), ROWS)


def test_another_job_is_refused_with_the_difference(output):
    begin(output, JOB, (5, 3), SHARED).append(iter([ROWS[:2]]))
    with pytest.raises(InputError) as caught:
        resume(output, {"--input": "6 bytes", "--pooling": "mean"})
    assert "2 of 5 rows" in str(caught.value)
    assert "another job: --input: 6 bytes (begun with 5 bytes);" in str(caught.value)
    assert "`overwrite`" in str(caught.value)
    assert resume(output, JOB).done == 2


@pytest.mark.parametrize("damage", ["journal", "key", "rows", "short", "shared"])
def test_damage_is_named(output, damage):
    begin(output, JOB, (5, 3), SHARED).append(iter([ROWS[:2]]))
    folder = partial_path(output)
    if damage == "journal":
        (folder / "journal.json").write_text("{")
    elif damage == "key":
        journal = json.loads((folder / "journal.json").read_text())
        del journal["done"]
        (folder / "journal.json").write_text(json.dumps(journal))
    elif damage == "short":
        content = (folder / "rows.npy").read_bytes()
        (folder / "rows.npy").write_bytes(content[:-1])
    else:
        (folder / f"{damage}.npy").unlink()
    with pytest.raises(InputError, match=f"{folder}.*`overwrite`"):
        resume(output, JOB)


@pytest.mark.parametrize(
    ("shape", "free", "said"),
    [
        ((10**12, 384), 82_090_000_000, "are 1536 TB; only 82.09 GB are free"),
        ((500, 3), 5_999, "are 6 kB; only 5.999 kB are free"),
        ((5, 3), 59, "are 60 bytes; only 59 bytes are free"),
    ],
)
def test_a_disk_that_is_too_small_is_said_at_once(output, monkeypatch, shape, free, said):
    disk = types.SimpleNamespace(free=free)
    monkeypatch.setattr(embed.shutil, "disk_usage", lambda folder: disk)
    with pytest.raises(InputError, match=re.escape(said)):
        begin(output, JOB, shape, SHARED)
    assert names(output) == []


def test_an_array_that_lacks_rows_does_not_take_its_name(output):
    rows = begin(output, JOB, (5, 3), SHARED)
    with pytest.raises(ValueError, match="0 of 5"):
        rows.finish()
    assert not output.exists()
