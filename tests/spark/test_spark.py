"""Spark's jobs against those of one machine: the same records, the same embeddings."""

import json
import lzma
import os
import random
import shutil
import socket

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from written_dialogues import json_lines, make_dialogues

from dcse_tf.data.corpus import PrepareOptions
from dcse_tf.data.prepare import prepare
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.search.embed_file import EmbedOptions
from dcse_tf.spark import embed_column
from dcse_tf.spark.cluster import connect, explain_fault
from dcse_tf.spark.embed_on_spark import embed_on_spark
from dcse_tf.spark.prepare_on_spark import prepare_on_spark

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("java"), reason="Spark needs Java 17 or later"),
]


@pytest.fixture(scope="module")
def session():
    """One session for all jobs: small ones need neither 200 partitions nor pages to look at."""
    flags = "--conf spark.sql.shuffle.partitions=2 --conf spark.ui.enabled=false pyspark-shell"
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", flags)
    with connect("local[2]", "tests") as session:
        yield session


def _config(folder, model, **changes):
    settings = {
        "format": "jsonl", "input": (f"{folder}/*.jsonl",), "output_dir": f"{folder}/out",
        "vocab": str(model), "shards": 3, "max_sequence_length": 6, "dev_fraction": 0.2,
        "test_fraction": 0.2, "spark_master": "local[2]",
    }  # fmt: skip
    return PrepareOptions(**settings | changes)


def _read(folder):
    files = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    manifest = json.loads(files.pop("manifest.json"))
    del manifest["settings"]
    return files, manifest


def test_the_records_are_those_of_one_machine(session, model, tmp_path):
    dialogues = make_dialogues(90)
    lines = json_lines(dialogues).splitlines()
    silent = json.dumps({"session_id": "s", "turns": [{"role": "a", "text": " "}] * 3})
    # Of unequal length, one without a session that is kept, one with a bad line.
    # And with copies of sessions of the first file under other ids.
    copies = json_lines({f"copy of {name}": turns for name, turns in dialogues.items()})
    parts = [lines[:50], [silent], ["{", *lines[50:60]], [*copies.splitlines(), *lines[60:]]]
    for number, part in enumerate(parts):
        (tmp_path / f"{number}.jsonl").write_text("".join(f"{line}\n" for line in part))
    config = _config(tmp_path, model, max_bad_lines=1)
    one, many = (config.replace(output_dir=str(tmp_path / name)) for name in ("one", "many"))
    prepare(one)
    prepare_on_spark(many)
    files, manifest = _read(tmp_path / "one")
    assert (files, manifest) == _read(tmp_path / "many")
    assert manifest["dropped"]["bad_lines"] == 1
    assert manifest["splits"]["dev"]["sessions"] > 5

    with pytest.raises(InputError, match=r"2\.jsonl:1: .*`max_bad_lines`=0"):
        prepare_on_spark(many.replace(max_bad_lines=0, overwrite=True))
    (tmp_path / "4.jsonl").write_text("{\n")  # each file is within the limit, but not together
    with pytest.raises(InputError, match=r"2 bad lines in all files .*`max_bad_lines`=1"):
        prepare_on_spark(many.replace(overwrite=True))
    assert _read(tmp_path / "many") == (files, manifest)
    # By a URL, which Spark reads.
    (tmp_path / "4.jsonl").unlink()
    prepare_on_spark(many.replace(input=(f"file://{tmp_path}/*.jsonl",), overwrite=True))
    assert _read(tmp_path / "many") == (files, manifest)


def test_rows_of_tables_in_any_order_are_gathered(session, model, tmp_path, monkeypatch):
    """Shuffled over files of two kinds and a table, they have the records of a table in order."""
    monkeypatch.setattr("dcse_tf.spark.cluster._FILES", 5)  # each is a task, and another to read it
    rows = [
        {"id": name, "at": str(at), "role": role, "text": text}
        for name, turns in make_dialogues(40).items()
        for at, (role, text) in enumerate(turns, start=9)
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    pq.write_table(pa.table(columns), tmp_path / "whole.parquet")
    settings = {"format": "table", "columns": ("session_id:id", "time:at")}
    paths = {"input": (f"{tmp_path}/whole.parquet",), "output_dir": f"{tmp_path}/one"}
    one = _config(tmp_path, model, **paths, **settings)
    prepare(one)
    random.Random(0).shuffle(rows)
    frames = [session.createDataFrame(rows[start::3]).select(*columns) for start in range(3)]
    frames[0].write.orc(f"file://{tmp_path}/a.orc")
    frames[1].write.parquet(f"file://{tmp_path}/b.parquet")
    frames[2].createOrReplaceTempView("turns")
    paths = (f"{tmp_path}/a.orc/**/part*.orc", f"{tmp_path}/b.parquet", "turns")
    many = one.replace(input=paths, output_dir=f"{tmp_path}/many")
    prepare_on_spark(many)
    files, manifest = _read(tmp_path / "one")
    assert (files, manifest) == _read(tmp_path / "many")
    assert manifest["splits"]["train"]["sessions"] > 10
    (tmp_path / "rows.csv").write_text("id,at,role,text\n1,2,a,hi\n" * 9)
    for changes, problem in (
        ({"columns": ("session_id:id",)}, "rows are unordered"),
        ({"columns": ("session_id:no", "time:at")}, "no column 'no'"),
        ({"input": ("nowhere",)}, "neither a file nor a Spark table"),
        ({"input": (f"{tmp_path}/rows.csv",)}, r"rows\.csv is not a Parquet file"),
    ):
        with pytest.raises(InputError, match=problem):
            prepare_on_spark(many.replace(overwrite=True, **changes))


def test_texts_are_embedded_as_on_one_machine(session, model, tmp_path):
    texts = ["where is my parcel", "thanks", "where is my parcel", None, "on its way " * 90]
    table = pa.table({"text": texts, "number": range(5)})
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in/a.parquet")
    paths = {"input": f"{tmp_path}/in/a.parquet", "output": f"{tmp_path}/out"}
    config = EmbedOptions(model=str(model), spark_master="local[2]", **paths)
    encoder = SentenceEncoder.load(str(model))
    assert embed_on_spark(config) == (5, encoder.dim)
    rows = sorted(pq.read_table(tmp_path / "out").to_pylist(), key=lambda row: row["number"])
    assert [row["text"] for row in rows] == texts
    assert rows[3]["embedding"] is None
    found = [row["embedding"] for row in rows if row["text"]]
    expected = encoder.encode([text for text in texts if text])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(FileExistsError):
        embed_on_spark(config)
    by_url = config.replace(input=f"file://{tmp_path}/in", overwrite=True)
    (tmp_path / "a.xz").write_bytes(lzma.compress(b"thanks"))
    with pytest.raises(InputError, match=r"no \.xz"):
        embed_on_spark(by_url.replace(input=f"{tmp_path}/a.xz"))
    assert embed_on_spark(by_url) == (5, encoder.dim)

    frame = session.read.parquet(f"file://{tmp_path}/in")
    again = embed_column(frame, "text", model=str(model), name="vector").collect()
    assert {row["number"] for row in again} == set(range(5))
    for column, name in (("number", "vector"), ("none", "vector"), ("text", "number")):
        with pytest.raises(InputError, match="column "):
            embed_column(frame, column, model=str(model), name=name)


def test_a_cluster_that_cannot_be_used_is_one_sentence():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(InputError, match=f"`spark_master`={master}: no master answers"):
        connect(master, "x").__enter__()
    missing = Exception("Traceback\n  x\nModuleNotFoundError: No module named 'dcse_tf'\n")
    assert "its workers have no dcse_tf: install" in explain_fault(missing)
    nested = Exception("org.apache.SparkException: Job\npyspark.errors.ValueError: a cause\n  at x")
    assert explain_fault(nested) == "ValueError: a cause"
