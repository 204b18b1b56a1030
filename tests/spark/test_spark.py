"""Spark's jobs against those of one machine: the same records, the same embeddings."""

import functools
import json
import os
import pickle
import random
import shutil
import socket
import types

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_dialogues
from tiny_bert import build_backbone, save_checkpoint

from dcse_tf import stores
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.cli.commands import prepare_data
from dcse_tf.data.corpus import read_raw_sessions
from dcse_tf.data.options import PrepareOptions
from dcse_tf.data.prepare import prepare
from dcse_tf.encoder.options import ModelOptions
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.files import MadeFrom
from dcse_tf.input_files import BadLines
from dcse_tf.options import OptionError
from dcse_tf.search.search_options import EmbedOptions
from dcse_tf.spark import embed as embed_job
from dcse_tf.spark import embed_column, tables
from dcse_tf.spark import prepare as spark_prepare
from dcse_tf.spark.cluster import connect, name_faults
from dcse_tf.spark.embed import embed_on_spark

# Before the first session starts Java: small jobs need neither 200 partitions nor pages to look at.
os.environ.setdefault(
    "PYSPARK_SUBMIT_ARGS",
    "--conf spark.sql.shuffle.partitions=4 --conf spark.ui.enabled=false pyspark-shell",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("java"), reason="Spark needs Java 17 or later"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("model") / "model", build_backbone())


def _config(folder, model, lines, **changes):
    """Files of dialogues, some lines each, and the options to prepare them."""
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(lines):
        (folder / f"{number}.jsonl").write_text("".join(f"{line}\n" for line in part))
    settings = {
        "format": "jsonl",
        "input": (f"{folder}/*.jsonl",),
        "output_dir": str(folder.parent / "out"),
        "vocab": str(model),
        "shards": 3,
        "max_sequence_length": 6,
        "dev_fraction": 0.2,
        "test_fraction": 0.2,
        "spark_master": "local[2]",
    }
    return PrepareOptions(**settings | changes)


def _read(folder):
    files = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    manifest = json.loads(files.pop("manifest.json"))
    del manifest["settings"]["output_dir"]
    return files, manifest


def test_the_records_are_those_of_one_machine(model, tmp_path):
    dialogues = make_dialogues(90)
    lines = [json.dumps(dialogue) for dialogue in dialogues]
    silent = json.dumps({"session_id": "s", "turns": [{"role": "a", "text": " "}] * 3})
    # Of unequal length, one without a session that is kept, one with a bad line.
    # And with copies of sessions of the first file under other ids.
    copies = [{**dialogue, "session_id": f"copy of {n}"} for n, dialogue in enumerate(dialogues)]
    parts = [lines[:50], [silent], ["{", *lines[50:60]], [*map(json.dumps, copies), *lines[60:]]]
    config = _config(tmp_path / "in", model, parts, max_bad_lines=1)
    one, many = (config.replace(output_dir=str(tmp_path / name)) for name in ("one", "many"))
    prepare(one, model)
    prepare_data(many)

    files, manifest = _read(tmp_path / "one")
    assert (files, manifest) == _read(tmp_path / "many")
    assert manifest["dropped"]["bad_lines"] == 1
    assert len(manifest["splits"]["train"]["shards"]) == 3
    assert manifest["splits"]["dev"]["sessions"] > 5
    assert (manifest["found"]["copies"], manifest["found"]["held_out_copies"]) == (90, 0)


def test_bad_lines_are_refused_as_on_one_machine(model, tmp_path):
    """A file that is refused says so by its summary; of all files the bad lines are added up."""
    config = _config(tmp_path / "in", model, [["{"], ["{"]])
    work = pickle.dumps((read_vocabulary(model), config))
    (summary,) = spark_prepare._read_file(work, {}, 0, f"{tmp_path}/in/0.jsonl")
    with pytest.raises(InputError, match=r"0\.jsonl:1: "):
        spark_prepare._check(config, [summary])

    config = config.replace(max_bad_lines=1)
    work = pickle.dumps((read_vocabulary(model), config))
    files = enumerate((f"{tmp_path}/in/0.jsonl", f"{tmp_path}/in/1.jsonl"))
    found = [summary for file in files for summary in spark_prepare._read_file(work, {}, *file)]
    assert [(each.bad_lines, each.error) for each in found] == [(1, ""), (1, "")]
    with pytest.raises(InputError, match=r"2 bad lines in all files .*`max_bad_lines`=1"):
        spark_prepare._check(config, found)


def test_what_needs_one_machine_is_refused(model, tmp_path):
    with pytest.raises(OptionError, match="train a vocabulary on one machine"):
        _config(tmp_path / "in", model, [], vocab="", vocab_size=100)
    with pytest.raises(OptionError, match="`max_sessions`"):
        _config(tmp_path / "in", model, [], max_sessions=3)


def _read_turns(config):
    """Session -> its turns."""
    sessions = read_raw_sessions(config, BadLines(0))
    return {name: [(turn.role, turn.text) for turn in turns] for name, turns in sessions}


def test_rows_in_any_order_are_gathered(model, tmp_path, monkeypatch):
    """Shuffled over files of two kinds, they have the records of a table in order."""
    monkeypatch.setattr(tables, "_FILES", 3)
    # The last two turns of each session are at one time, so that their roles decide.
    rows = [
        {"id": dialogue["session_id"], "at": min(at, len(dialogue["turns"]) - 2), **turn}
        for dialogue in make_dialogues(60)
        for at, turn in enumerate(dialogue["turns"])
    ]
    turns = {}
    for row in sorted(rows, key=lambda row: (row["at"], row["role"])):
        turns.setdefault(row["id"], []).append((row["role"], row["text"]))
    shuffled = random.Random(0).sample(rows, len(rows))
    pq.write_table(pa.Table.from_pylist(shuffled[:90]), tmp_path / "a.parquet")
    config = _config(
        tmp_path,
        model,
        [],
        format="table",
        input=(f"{tmp_path}/*.parquet", f"{tmp_path}/b.orc"),
        columns=("session_id:id", "time:at"),
    )
    with connect("local[1]", "test") as spark:
        schema = "id string, at long, role string, text string"
        frame = spark.createDataFrame(shuffled[90:], schema)
        frame.repartition(2).write.orc(f"{tmp_path}/b.orc")
        many = config.replace(output_dir=str(tmp_path / "many"))
        prepare(many, model, functools.partial(spark_prepare._write_splits, spark))
        spark.createDataFrame(rows, schema).createOrReplaceTempView("dialogues")
        config = config.replace(input=("dialogues",))
        gathered = tables.gather(spark, config, f"{tmp_path}/gathered")

        spark.createDataFrame([("s", None, "a", "hi")], schema).createOrReplaceTempView("unsure")
        for changes, message in [
            ({"input": ("unsure",)}, "`columns`=time:at: null in a row of session 's'"),
            ({"columns": ("session_id:id",)}, "unordered; expected .* `columns`=time:COLUMN"),
            ({"columns": ("session_id:id", "time:when")}, "no column 'when' for time"),
            ({"input": ("shop.none",)}, "`input`=shop.none: neither a file nor a Spark table"),
        ]:
            with pytest.raises(InputError, match=message):
                tables.gather(spark, config.replace(**changes), f"{tmp_path}/none")

        # A session a row needs no order.
        schema = "session_id string, turns array<struct<role string, text string>>"
        spark.createDataFrame(list(turns.items()), schema).createOrReplaceTempView("sessions")
        config = config.replace(input=("sessions",), columns=())
        sessions = tables.gather(spark, config, f"{tmp_path}/sessions")

    assert _read_turns(gathered) == _read_turns(sessions) == turns
    assert len(gathered.input) == 3
    prepare(gathered.replace(output_dir=str(tmp_path / "one"), spark_master=""), model)
    (one, local), (many, manifest) = (_read(tmp_path / name) for name in ("one", "many"))
    assert one == many
    assert manifest["settings"].pop("input") == [f"{tmp_path}/*.parquet", f"{tmp_path}/b.orc"]
    for name in ("format", "input", "columns"):
        local["settings"].pop(name)
        manifest["settings"].pop(name, None)
    assert local == manifest


TEXTS = ["where is my parcel", "ok", None, "ok", "the cup is blue", "", "好的发货"]


@pytest.fixture(scope="module")
def notebook(model, tmp_path_factory):
    """The texts as Parquet, and as a frame whose column is embedded."""
    folder = tmp_path_factory.mktemp("table") / "in.parquet"
    with connect("local[1]", "test") as spark:
        rows = [(f"k{number}", text) for number, text in enumerate(TEXTS)]
        frame = spark.createDataFrame(rows, "key string, text string").coalesce(1)
        frame.write.parquet(str(folder))
        found = embed_column(frame, "text", model=str(model)).collect()
        with pytest.raises(InputError, match=r"column texts: expected .* key \(string\)"):
            embed_column(frame, "texts", model=str(model))
        with pytest.raises(InputError, match="column key: there is one already"):
            embed_column(frame, "text", model=str(model), name="key")
    return folder, {row.key: row for row in found}


def _read_table(folder):
    with connect("local[1]", "test") as spark:
        return {row.key: row for row in spark.read.parquet(str(folder)).collect()}


def _check(found, model):
    texts = sorted({text for text in TEXTS if text is not None})
    expected = dict(zip(texts, SentenceEncoder.load(model).encode(texts)))
    assert len(found) == len(TEXTS)
    for number, text in enumerate(TEXTS):
        row = found[f"k{number}"]
        assert row.text == text
        if text is None:
            assert row.embedding is None
        else:
            np.testing.assert_allclose(row.embedding, expected[text], atol=1e-5)


def test_a_column_is_embedded_and_a_second_start_does_what_is_missing(
    notebook, model, tmp_path, monkeypatch
):
    config = EmbedOptions(
        model=str(model),
        input=f"{notebook[0]}/*.parquet",
        output=str(tmp_path / "out"),
        spark_master="local[1]",
    )

    class Stop(Exception):
        pass

    def stop(progress, done, total):
        if list(tmp_path.glob("out.dcse_tf-partial/embedded-*/_SUCCESS")):
            raise Stop

    monkeypatch.setattr(embed_job, "_PARTS", 3)
    with monkeypatch.context() as patch:
        patch.setattr(embed_job.Progress, "update", stop)
        with pytest.raises(Stop):
            embed_on_spark(config)
    assert len(list(tmp_path.glob("out.dcse_tf-partial/embedded-*/_SUCCESS"))) == 1

    (part,) = notebook[0].glob("*.parquet")
    before = part.stat()
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # as one of equal size has
    with pytest.raises(InputError, match=r"names, sizes and times of `input`: SHA-256 .*was SHA"):
        embed_on_spark(config)
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))

    embedded = []
    embed_texts = embed_job._embed_texts

    def note(texts, *arguments):
        embedded.extend(row.text for row in texts.collect())
        return embed_texts(texts, *arguments)

    monkeypatch.setattr(embed_job, "_embed_texts", note)
    assert embed_on_spark(config)[0] == len(TEXTS)
    # "ok" once, and not what was done before.
    assert 0 < len(embedded) < 5
    assert len(set(embedded)) == len(embedded)
    _check(_read_table(tmp_path / "out"), model)
    assert not list(tmp_path.glob("*partial*"))
    with pytest.raises(FileExistsError, match="`overwrite`"):
        embed_on_spark(config)


def test_workers_count_the_texts_that_they_cut(model, monkeypatch):
    options = ModelOptions(model=str(model), max_sequence_length=4)  # room for two words
    monkeypatch.setattr(embed_job, "_load", SentenceEncoder.from_options)
    monkeypatch.setattr(embed_job, "_AT_A_TIME", 2)
    counts = []
    truncated = types.SimpleNamespace(add=counts.append)
    rows = [(text,) for text in TEXTS if text is not None]
    found = list(embed_job._embed_rows(options, truncated, rows))
    assert [text for text, _ in found] == [text for (text,) in rows]
    assert counts == [1, 1, 1]  # of each two texts


def test_in_a_store_finished_parts_stay_until_all_rows_are_there(monkeypatch, tmp_path):
    monkeypatch.setenv(stores.CACHE_VARIABLE, str(tmp_path))
    store = fsspec.filesystem("memory")
    output, part = "memory://away/rows", "/away/rows.dcse_tf-partial/part"

    def resume(value, overwrite=False, stop=False):
        with embed_job._resume_in_store(output, MadeFrom({"x": value}), overwrite) as (work, rows):
            assert (work, rows) == (f"{output}.dcse_tf-partial", output)
            found = store.exists(part)
            store.pipe_file(part, b"")
            if stop:
                raise KeyboardInterrupt
        return found

    with pytest.raises(KeyboardInterrupt):
        resume(1, stop=True)
    with pytest.raises(InputError, match=r"begun with other settings .* x: 2 \(was 1\)"):
        resume(2)
    assert resume(1)
    assert not store.exists("/away/rows.dcse_tf-partial")

    with pytest.raises(KeyboardInterrupt):
        resume(1, stop=True)
    assert not resume(2, overwrite=True)


def test_shards_go_to_a_store(tmp_path):
    store = fsspec.filesystem("memory")

    def write(url, fail):
        with spark_prepare._place_files(url) as folder:
            (folder / "a").write_text("a")
            if fail:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write("memory://cut", fail=True)
    assert not store.exists("/cut")
    write("memory://whole", fail=False)
    assert store.cat_file("/whole/a") == b"a"


def test_a_frame_is_embedded_in_a_notebook(notebook, model):
    _check(notebook[1], model)


def test_a_master_that_is_not_there_is_told_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    with pytest.raises(InputError, match="no master answers there"), connect(master, "test"):
        pass


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "An error occurred\n: org.apache.spark.SparkException: Job aborted\n"
            "Traceback:\nModuleNotFoundError: No module named 'dcse_tf'\n",
            "its workers have no dcse_tf: install dcse_tf there",
        ),
        (
            "An error occurred\n: org.apache.spark.SparkException: Job aborted\n"
            "dcse_tf.errors.OutputError: /full: cannot be written\n",
            "`spark_master`=yarn: OutputError: /full: cannot be written",
        ),
        ("Connection lost\nsomewhere", "`spark_master`=yarn: Connection lost$"),
    ],
)
def test_what_a_task_failed_of_is_one_sentence(text, message):
    from py4j.protocol import Py4JError

    with pytest.raises(InputError, match=message), name_faults("yarn"):
        raise Py4JError(text)
