"""Embedding a file: rows, blocks, being stopped, being refused."""

import gzip
import inspect
import os
import zipfile

import numpy as np
import pytest
import reference
from tiny_bert import DIM, LAYERS, VOCABULARY, VOCABULARY_SIZE, build_backbone, encode_alone

from dcse_tf.bert.bert import build_bert_encoder, make_bert_config, save_backbone
from dcse_tf.encoder.options import ModelOptions
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.options import OptionError
from dcse_tf.search import embed
from dcse_tf.search import embed as job
from dcse_tf.search.embed_options import EmbedOptions

# "ok" and "" stand in every block of 5 lines.
LINES = [
    *["where is my parcel", "ok", "", "好的发货", "i want a refund for the blue cup"],
    *["ok", "", " thanks .", "where is my parcel", "the cup is blue"],
    *["it left today", "ok", "ok", "", "i want my cup"],
    *["好 ok", "", "ok"],
]


class Stopped(Exception):
    pass


def _save_model(folder, backbone):
    folder.mkdir()
    save_backbone(folder, backbone, make_bert_config(LAYERS, DIM, VOCABULARY_SIZE))
    VOCABULARY.write(folder)


@pytest.fixture(scope="module")
def bert():
    return build_backbone()


@pytest.fixture(scope="module")
def model(bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    _save_model(folder, bert)
    return folder


@pytest.fixture(scope="module")
def expected(bert):
    """Each line alone, unpadded, through the Keras model; the mean over its tokens."""
    encoder = build_bert_encoder(bert)
    ids = VOCABULARY.make_tokenizer().tokenize(LINES, 128).to_list()
    return np.array([reference.mean_of_rows(encode_alone(encoder, row)) for row in ids])


@pytest.fixture
def config(model, tmp_path):
    """Blocks of 5 lines, two sentences shared by them, batches of 16 tokens."""
    path = tmp_path / "in.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return EmbedOptions(
        model=str(model),
        input=str(path),
        output=str(tmp_path / "out.npy"),
        block_size=5,
        cache_size=2,
        batch_tokens=16,
    )


def names(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir())


def run(config):
    shape = job.embed(config)
    rows = np.load(config.output)
    assert rows.shape == shape
    return rows


def note_lines(monkeypatch):
    """The lines that are embedded from now on, in a list that grows."""
    embed_block, lines = embed.embed_block, []

    def note(encoder, shared, sentences, progress):
        lines.extend(sentences)
        return embed_block(encoder, shared, sentences, progress)

    monkeypatch.setattr(job, "embed_block", note)
    return lines


def stop_at(monkeypatch, count):
    """Breaks the job in the middle of block `count`, after its first batch."""
    embed_block, blocks = embed.embed_block, []

    def broken(encoder, shared, sentences, progress):
        def stop(done, total):
            if len(blocks) == count:
                raise Stopped

        blocks.append(sentences)
        return embed_block(encoder, shared, sentences, stop)

    monkeypatch.setattr(job, "embed_block", broken)


@pytest.mark.parametrize(
    "changes",
    [{}, {"block_size": 100}, {"block_size": 1, "cache_size": 50}, {"cache_size": 0}],
    ids=str,
)
def test_rows_are_those_of_the_lines_alone(config, expected, changes):
    rows = run(config.replace(**changes))
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_repeats_are_encoded_once(config, monkeypatch):
    embedded = []
    loaded = SentenceEncoder.from_options(config)
    read = loaded.backend.read
    loaded.backend.read = lambda texts: embedded.append(list(texts)) or read(texts)
    monkeypatch.setattr(SentenceEncoder, "from_options", lambda config: loaded)
    run(config)
    first, *blocks = embedded
    assert sorted(first) == ["", "ok"]  # four times and five times
    assert [sorted(block) for block in blocks] == [
        sorted({LINES[0], LINES[3], LINES[4]}),
        sorted({LINES[7], LINES[8], LINES[9]}),
        sorted({LINES[10], LINES[14]}),
        [LINES[15]],
    ]


@pytest.mark.parametrize("block_size", [5, 100])
def test_truncated_lines_are_counted_over_all_blocks_of_a_stopped_job(
    config, monkeypatch, caplog, block_size
):
    # One word fits: 3 + 3 + 2 + 1 lines have more. A repeated one is shared by all blocks.
    config = config.replace(max_sequence_length=3, cache_size=3, block_size=block_size)
    with monkeypatch.context() as patch:
        stop_at(patch, 2 if block_size == 5 else 1)
        with pytest.raises(Stopped):
            job.embed(config)
    job.embed(config)
    (told,) = [text for text in caplog.messages if "`max_sequence_length`" in text]
    assert told.startswith("9 lines have more than the 3 tokens")


@pytest.mark.parametrize("name", ["in.txt.gz", "in.zip"])
def test_compressed_input(config, expected, tmp_path, name):
    content = "\r\n".join(LINES).encode()  # and no end of the last line
    path = tmp_path / name
    if name.endswith("gz"):
        path.write_bytes(gzip.compress(content))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("in.txt", content)
    np.testing.assert_allclose(run(config.replace(input=str(path))), expected, atol=1e-5)


@pytest.mark.parametrize("count", [1, 4])
def test_a_stopped_job_goes_on_to_the_same_bytes(config, tmp_path, monkeypatch, count):
    whole = tmp_path / "whole.npy"
    job.embed(config.replace(output=str(whole)))
    with monkeypatch.context() as patch:
        stop_at(patch, count)
        with pytest.raises(Stopped):
            job.embed(config)
    assert names(tmp_path) == ["in.txt", "out.npy.dcse_tf-partial", "whole.npy"]
    said = []
    monkeypatch.setattr(job.logging, "info", lambda form, *values: said.append(form % values))
    job.embed(config)
    assert [line for line in said if line.startswith("resum")] == (
        [f"resuming after {5 * (count - 1)} of {len(LINES)} rows"] if count > 1 else []
    )
    assert (tmp_path / "out.npy").read_bytes() == whole.read_bytes()
    assert names(tmp_path) == ["in.txt", "out.npy", "whole.npy"]


def test_several_processes_write_the_same_bytes(config, tmp_path, optimized_graphs):
    job.embed(config)
    output = tmp_path / "several.npy"
    job.embed(config.replace(output=str(output), workers=2))
    assert output.read_bytes() == (tmp_path / "out.npy").read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_tokens": 17}, "`batch_tokens`: 17 (was 16)"),
        ({"block_size": 6}, "`block_size`: 6 (was 5)"),
        ({"pooling": "cls"}, "`pooling`: cls (was mean)"),
        ({"compute_dtype": "bfloat16"}, "`compute_dtype`: bfloat16 (was float32)"),
        ({"truncate_dim": 8}, "`truncate_dim`: 8 (was none)"),
    ],
    ids=str,
)
def test_other_settings_are_refused(config, monkeypatch, changes, message):
    stop_at(monkeypatch, 3)
    with pytest.raises(Stopped):
        job.embed(config)
    monkeypatch.undo()
    with pytest.raises(InputError) as caught:
        job.embed(config.replace(**changes))
    assert message in str(caught.value)
    anew = config.replace(**changes, overwrite=True)
    assert run(anew).shape == (len(LINES), changes.get("truncate_dim", DIM))


def test_another_input_or_model_is_refused(config, tmp_path, monkeypatch):
    stop_at(monkeypatch, 3)
    with pytest.raises(Stopped):
        job.embed(config)
    monkeypatch.undo()
    state = os.stat(config.input)
    os.utime(config.input, ns=(state.st_atime_ns, state.st_mtime_ns + 10**9))
    with pytest.raises(InputError, match=r"`input`: \d+ bytes of .* \(was \d+ bytes of"):
        job.embed(config)
    os.utime(config.input, ns=(state.st_atime_ns, state.st_mtime_ns))
    other = tmp_path / "model"
    _save_model(other, build_backbone(seed=4))
    with pytest.raises(InputError, match=r"contents of `model`: .* \(was "):
        job.embed(config.replace(model=str(other)))
    assert len(run(config)) == len(LINES)


def test_an_output_that_exists_is_not_replaced_unasked(config, tmp_path):
    output = tmp_path / "out.npy"
    output.write_text("precious")
    with pytest.raises(FileExistsError, match=r"out\.npy already exists.*`overwrite`"):
        job.embed(config)
    assert output.read_text() == "precious"
    assert run(config.replace(overwrite=True)).shape == (len(LINES), DIM)
    output.unlink()
    output.mkdir()
    with pytest.raises(FileExistsError, match=r"out\.npy is a folder; give the name of a file"):
        job.embed(config.replace(overwrite=True))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "no lines"), (b"ok\n" * 7 + b"\xd6\xd0\n", "in.txt:8: not UTF-8: ")],
    ids=["empty", "not UTF-8"],
)
def test_bad_input_leaves_nothing(config, tmp_path, content, message):
    (tmp_path / "in.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        job.embed(config)
    assert names(tmp_path) == ["in.txt"]


def test_input_that_changes_meanwhile_is_not_passed_over(config, tmp_path, monkeypatch):
    embed_block = embed.embed_block

    def change(*arguments):
        (tmp_path / "in.txt").write_text("short\n")
        return embed_block(*arguments)

    monkeypatch.setattr(job, "embed_block", change)
    with pytest.raises(InputError, match=r"in\.txt"):
        job.embed(config)
    assert names(tmp_path) == ["in.txt", "out.npy.dcse_tf-partial"]


def test_a_users_own_files_and_folders_beside_the_output_stay(config, tmp_path):
    ends = (".partial", ".previous", ".lock")
    for end in ends:
        (tmp_path / f"out.npy{end}").mkdir()
        (tmp_path / f"out.npy{end}" / "thesis").write_text("precious")
    (tmp_path / "out.lock").write_text("precious")
    run(config)
    run(config.replace(overwrite=True))
    assert len(names(tmp_path)) == 3 + len(ends)
    assert (tmp_path / "out.lock").read_text() == "precious"
    for end in ends:
        assert (tmp_path / f"out.npy{end}" / "thesis").read_text() == "precious"


def test_a_link_is_replaced_where_that_is_allowed_and_what_it_points_to_is_kept(config, tmp_path):
    (tmp_path / "kept").write_text("old")
    for target in ("kept", "nothing"):
        (tmp_path / "out.npy").unlink(missing_ok=True)
        (tmp_path / "out.npy").symlink_to(tmp_path / target)
        with pytest.raises(FileExistsError):
            run(config)
        run(config.replace(overwrite=True))
        assert names(tmp_path) == ["in.txt", "kept", "out.npy"]
    assert (tmp_path / "kept").read_text() == "old"


def test_bfloat16_is_near(config, expected):
    found = run(config.replace(compute_dtype="bfloat16"))
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert np.mean(np.sum(found * expected, 1) / norms) > 0.999


def _embed_shards(config, count, numbers):
    return [job.embed(config.replace(shard=f"{number}/{count}")) for number in numbers]


@pytest.mark.parametrize(
    ("count", "numbers"), [(2, [1, 0]), (3, [0, 2]), (4, [])], ids=["all", "some", "none"]
)
def test_shards_are_taken_over_and_what_is_missing_is_embedded(
    config, tmp_path, monkeypatch, count, numbers
):
    job.embed(config.replace(output=str(tmp_path / "alone.npy")))
    shapes = _embed_shards(config, count, numbers)
    # 18 lines are 4 blocks, the last of 3 lines.
    lines = {2: [10, 8], 3: [5, 5, 8], 4: [5, 5, 5, 3]}[count]
    assert shapes == [(lines[number], DIM) for number in numbers]

    embedded = note_lines(monkeypatch)
    run(config)
    assert len(embedded) == sum(lines) - sum(lines[number] for number in numbers)
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "alone.npy").read_bytes()

    # A part is what numpy.concatenate needs.
    parts = [np.load(tmp_path / f"out-{n:05d}-of-{count:05d}.npy") for n in sorted(numbers)]
    if len(parts) == count:
        np.testing.assert_array_equal(np.concatenate(parts), np.load(tmp_path / "alone.npy"))


def test_a_shard_is_resumed_where_it_stopped(config, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, 1)
        with pytest.raises(Stopped):
            _embed_shards(config, 2, [1])
    _embed_shards(config, 2, [1])
    rows = np.load(tmp_path / "out-00001-of-00002.npy")
    np.testing.assert_array_equal(rows, run(config)[10:])


def test_a_shard_of_other_settings_or_damaged_is_left_aside(config, tmp_path, monkeypatch):
    _embed_shards(config.replace(cache_size=1), 2, [0])
    _embed_shards(config, 2, [1])
    path = tmp_path / "out-00001-of-00002.npy"
    path.write_bytes(path.read_bytes()[:-1])
    embedded = note_lines(monkeypatch)
    run(config)
    assert len(embedded) == len(LINES)


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        ("2/2", "expected NUMBER/COUNT"),
        ("-1/2", "expected NUMBER/COUNT"),
        ("1", "expected NUMBER/COUNT"),
        ("0/5", "the file has only 4 blocks of 5 lines"),
    ],
)
def test_a_shard_that_cannot_be_is_refused(config, tmp_path, shard, message):
    with pytest.raises(OptionError, match=message):
        job.embed(config.replace(shard=shard))
    assert names(tmp_path) == ["in.txt"]


def test_progress_is_in_lines_by_the_share_of_tokens(config, monkeypatch):
    told = []
    monkeypatch.setattr(job.Progress, "update", lambda _, *counts: told.append(counts))
    run(config.replace(block_size=100, batch_tokens=1))
    blocks = [done for done, total in told if total == len(LINES)]
    # The ten distinct lines have 2, 3, 4, 4, 5, 6, 6, 6, 6, 10 tokens, 52 in all; of 18 lines are
    # done 18 x 2/52, 18 x 5/52, 18 x 9/52, and so on; the last is said again as it is written.
    assert blocks == [0, 1, 3, 4, 6, 8, 10, 12, 14, 18, 18]


def test_the_defaults_of_the_library_are_those_of_the_command_line():
    defaults = {
        name: parameter.default or ""
        for name, parameter in inspect.signature(SentenceEncoder.load).parameters.items()
        if name not in ("model", "option")
    }
    options = ModelOptions(model="m")
    assert defaults == {name: getattr(options, name) or "" for name in defaults}
    assert set(vars(options)) == {"model", *defaults}
