"""Embedding a file: its rows, a job that is stopped and resumed, inputs that cannot be used."""

import gzip
import os

import numpy as np
import pytest
import reference
from load_once import load_once  # noqa: F401
from tiny_bert import DIM, VOCABULARY, build_backbone, encode_alone, save_checkpoint

from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.search import embed_file as job
from dcse_tf.search.embed_file import EmbedOptions

LINES = [
    *["where is my parcel", "ok", "", "好的发货", "i want a refund for the blue cup"],
    *["ok", "", " thanks .", "where is my parcel", "ok"],
    *["it left today", "好 ok"],
]


class Stopped(Exception):
    pass


@pytest.fixture
def config(model, tmp_path):
    """Three blocks of 5, 5 and 2 lines."""
    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return EmbedOptions(
        model=str(model),
        input=str(tmp_path / "in.txt"),
        output=str(tmp_path / "out.npy"),
        block_size=5,
        batch_tokens=16,
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def stop_at(monkeypatch, block):
    """Breaks the job in the middle of a block, counted from 1; returns the texts encoded."""
    encode, blocks = SentenceEncoder.encode_and_mark, []

    def broken(self, sentences, progress=None):
        blocks.append(sentences)
        if len(blocks) == block:
            raise Stopped
        return encode(self, sentences, progress)

    monkeypatch.setattr(SentenceEncoder, "encode_and_mark", broken)
    return blocks


@pytest.mark.slow
def test_rows_are_those_of_the_lines_alone(config, tmp_path):
    """Each line alone, unpadded, through the Keras model; the mean over its tokens."""
    encoder = build_bert_encoder(build_backbone())
    ids = VOCABULARY.make_tokenizer().tokenize(LINES, 128)[0].to_list()
    expected = np.array([reference.mean_of_rows(encode_alone(encoder, row)) for row in ids])
    packed = tmp_path / "in.txt.gz"  # with Windows' line ends, and none after the last line
    packed.write_bytes(gzip.compress("\r\n".join(LINES).encode()))
    for changes in ({"block_size": 100}, {"input": str(packed)}):
        shape = job.embed(config.replace(**changes, overwrite=True))
        rows = np.load(config.output)
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        assert rows.dtype == np.float32
        assert rows.shape == shape == (len(LINES), DIM)


@pytest.mark.parametrize("block", [1, 3])
def test_a_stopped_job_is_resumed_to_the_same_bytes(config, tmp_path, monkeypatch, caplog, block):
    # One word fits; of 12 lines, 7 have more.
    config = config.replace(max_sequence_length=3)
    whole = tmp_path / "whole.npy"
    job.embed(config.replace(output=str(whole)))
    with monkeypatch.context() as patch:
        stop_at(patch, block)
        with pytest.raises(Stopped):
            job.embed(config)
    left = [] if block == 1 else ["out.npy.dcse_tf-partial"]
    assert names(tmp_path) == ["in.txt", *left, "whole.npy"]
    caplog.clear()
    encoded = stop_at(monkeypatch, 0)
    job.embed(config)
    assert encoded == [LINES[start : start + 5] for start in range(5 * (block - 1), 12, 5)]
    assert (tmp_path / "out.npy").read_bytes() == whole.read_bytes()
    assert names(tmp_path) == ["in.txt", "out.npy", "whole.npy"]
    (told,) = [text for text in caplog.messages if "`max_sequence_length`" in text]
    assert told.startswith("7 lines have more than the 3 tokens")


@pytest.mark.parametrize("rest", [7, 64 * 4 * 3])
def test_what_an_interrupted_block_left_is_overwritten(config, tmp_path, monkeypatch, rest):
    job.embed(config.replace(output=str(tmp_path / "whole.npy")))
    with monkeypatch.context() as patch:
        stop_at(patch, 2)
        with pytest.raises(Stopped):
            job.embed(config)
    with (tmp_path / "out.npy.dcse_tf-partial/rows.npy.dcse_tf-partial").open("ab") as file:
        file.write(b"x" * rest)
    job.embed(config)
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_rows_are_on_the_disk_before_the_record_says_so(config, tmp_path, monkeypatch):
    fsync, seen = os.fsync, []
    folder = tmp_path / "out.npy.dcse_tf-partial"

    def note(descriptor):
        (rows,) = [*folder.glob("rows*"), None][:1]
        if rows and os.fstat(descriptor).st_ino == rows.stat().st_ino:
            seen.append((folder / "done.json").exists())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    job.embed(config.replace(block_size=100))
    assert seen == [False]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_tokens": 17}, "`batch_tokens`: 17 (was 16)"),
        ({"block_size": 6}, "`block_size`: 6 (was 5)"),
        ({"pooling": "cls"}, "`pooling`: cls (was mean)"),
        ({"truncate_dim": 8}, "`truncate_dim`: 8 (was none)"),
        ({"model": "other"}, "contents of `model`"),
        ({"input": "touched"}, "`input`: "),
        ({"damage": "cut short"}, "`overwrite` starts anew"),
    ],
    ids=str,
)
def test_a_job_is_not_resumed_with_something_else(config, tmp_path, monkeypatch, changes, said):
    with monkeypatch.context() as patch:
        stop_at(patch, 2)
        with pytest.raises(Stopped):
            job.embed(config)
    if "model" in changes:
        other = save_checkpoint(tmp_path / "other", build_backbone(seed=4))
        changes = {"model": str(other)}
    if "input" in changes:
        os.utime(config.input, (0, 0))
        changes = {}
    if changes.pop("damage", ""):
        rows = tmp_path / "out.npy.dcse_tf-partial" / "rows.npy.dcse_tf-partial"
        rows.write_bytes(rows.read_bytes()[:-1])
    with pytest.raises(InputError) as caught:
        job.embed(config.replace(**changes))
    assert said in str(caught.value)
    assert job.embed(config.replace(**changes, overwrite=True))[0] == len(LINES)


def test_an_input_that_cannot_be_used_leaves_nothing(config, tmp_path):
    for content, message in ((b"", "no lines"), (b"ok\n\xd6\xd0\n", r"in\.txt:2: not UTF-8")):
        (tmp_path / "in.txt").write_bytes(content)
        with pytest.raises(InputError, match=message):
            job.embed(config)
        assert names(tmp_path) == ["in.txt"]


def test_an_input_that_changes_meanwhile_is_refused(config, tmp_path, monkeypatch):
    encode = SentenceEncoder.encode_and_mark

    def change(*given):
        (tmp_path / "in.txt").write_text("short\n")
        return encode(*given)

    monkeypatch.setattr(SentenceEncoder, "encode_and_mark", change)
    with pytest.raises(InputError, match=r"in\.txt: changed"):
        job.embed(config)
    assert "out.npy" not in names(tmp_path)


def test_an_existing_output_is_replaced_only_on_request(config, tmp_path):
    (tmp_path / "out.npy").write_text("precious")
    with pytest.raises(FileExistsError, match="`overwrite`"):
        job.embed(config)
    assert (tmp_path / "out.npy").read_text() == "precious"
    job.embed(config.replace(overwrite=True))
    assert len(np.load(tmp_path / "out.npy")) == len(LINES)
