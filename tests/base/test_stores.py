"""Files of stores: what is fetched, when it is sent, and what never is."""

import dataclasses
import json
import pathlib
import time

import fsspec
import pytest
from conftest import make_dialogues

from dcse_tf import api, stores
from dcse_tf.cli.commands import list_options
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError, OutputError
from dcse_tf.options import Options, option
from dcse_tf.search.search_options import SearchOptions
from dcse_tf.staging import stage


@dataclasses.dataclass(frozen=True)
class Job(Options):
    """One of each kind of option."""

    input: tuple[str, ...] = option((), "", path="files")
    file: str = option("", "", path="files")
    model: str = option("", "", path="reads")
    output: str = option("", "", path="writes")
    run_dir: str = option("", "", path="resumes")
    prefix: str = option("", "")
    overwrite: bool = option(False, "")


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path):
    """An empty store, and an empty cache."""
    monkeypatch.setenv(stores.CACHE_VARIABLE, str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    return memory


def _names(store, folder):
    return {name.removeprefix(f"/{folder}").lstrip("/") for name in store.find(folder)}


@pytest.mark.parametrize(
    "url", ["s3://bucket/a/b", "hdfs://host:9000/a", "file:///a/b", "hdfs:///a"]
)
def test_a_copy_tells_its_url(url):
    assert stores.url_of(stores.local_path(url)) == url
    assert stores.url_of(pathlib.Path("/elsewhere")) is None


def test_files_of_a_pattern_have_its_form(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    assert stores.list_files(f"file://{tmp_path}/[ab]") == [
        f"file://{tmp_path}/a",
        f"file://{tmp_path}/b",
    ]


def test_what_is_read_is_fetched_once_and_again_when_it_has_changed(store, monkeypatch):
    for name in ("in/b", "in/a", "in/c", "model/one", "model/sub/two"):
        store.pipe_file(f"/{name}", name.encode())
    inputs = ("memory://in/[ab]", "here.txt")
    options = Job(input=inputs, model="memory://model", prefix="a://b")
    folder = stores.local_path("memory://model")

    def read():
        with stage(options) as staged:
            assert staged.prefix == "a://b"  # a text, whatever it looks like
            assert staged.input[2] == "here.txt"
            assert staged.model == str(folder)
            files = [*map(pathlib.Path, staged.input[:2]), *folder.rglob("*")]
            return {path.name: path.read_text() for path in files if path.is_file()}

    fetched = []
    get = type(store).get_file
    monkeypatch.setattr(
        type(store),
        "get_file",
        lambda fs, name, *rest: [fetched.append(name), get(fs, name, *rest)],
    )
    assert read() == {"a": "in/a", "b": "in/b", "one": "model/one", "two": "model/sub/two"}
    assert len(fetched) == 4
    time = store.modified("/model/one").timestamp()
    assert (folder / "one").stat().st_mtime == pytest.approx(time, abs=1e-3)
    read()
    assert len(fetched) == 4

    store.pipe_file("/in/b", b"new")
    store.rm_file("/model/one")
    (folder / "sub/two").write_text("damaged")
    assert read() == {"a": "in/a", "b": "new", "two": "model/sub/two"}
    assert len(fetched) == 6


def test_a_file_of_equal_size_is_told_from_the_one_before(store, tmp_path):
    store.pipe_file("/away/a.txt", b"one")
    (tmp_path / "a.txt").write_bytes(b"one")
    names = ["memory://away/a.txt", str(tmp_path / "a.txt")]
    before = [stores.sign_file(name) for name in names]
    assert [stores.sign_file(name) for name in names] == before
    store.pipe_file("/away/a.txt", b"two")
    (tmp_path / "a.txt").write_bytes(b"two")
    for name, sign in zip(names, before, strict=True):
        assert stores.sign_file(name) != sign


def test_every_option_that_is_a_file_or_a_folder_may_be_a_url():
    left = [
        (job, field.name)
        for job, kind in list_options()
        for field in dataclasses.fields(kind)
        if field.metadata["help"].startswith(("File", "Folder")) and not field.metadata["path"]
    ]
    assert not left


def test_an_output_is_sent_when_the_job_has_succeeded(store):
    options = Job(output="memory://out/data")

    def write(names, fail=False, **changes):
        with stage(options.replace(**changes)) as staged:
            path = stores.local_path("memory://out/data")
            assert staged.output == str(path)
            assert not path.exists()
            path.mkdir(parents=True)
            for name in names:
                (path / name).write_text(name)
            (path / "unfinished.dcse_tf-partial").write_text("")
            if fail:
                raise InputError("bad")

    with pytest.raises(InputError, match="bad"):
        write(["a"], fail=True)
    assert not store.exists("/out/data")

    with pytest.raises(FileExistsError, match="could not be sent"):
        write(["a"])
    order = []
    put = type(store).put_file
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(store),
            "put_file",
            lambda fs, source, target, **more: [
                order.append(target.rpartition("/")[2]),
                put(fs, source, target, **more),
            ],
        )
        write(["manifest.json", "a", "z"], overwrite=True)
    assert order == ["a", "z", "manifest.json"]  # what says that the others are whole comes last

    with pytest.raises(FileExistsError, match="memory://out/data already exists"):
        write(["a"])
    write(["a", "b"], overwrite=True)
    assert _names(store, "out/data") == {"a", "b"}


def test_answers_of_search_are_replaced_without_overwrite_which_is_of_the_index(store):
    store.pipe_file("/answers.jsonl", b"before")
    options = SearchOptions(model="m", index="index", output="memory://answers.jsonl")
    with stage(options) as staged:
        pathlib.Path(staged.output).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(staged.output).write_text("after")
    assert store.cat_file("/answers.jsonl") == b"after"


def test_parts_that_lie_beside_an_output_come_and_go_with_it(store):
    store.pipe_file("/out/rows-00000-of-00002.npy", b"first")
    with stage(Job(output="memory://out/rows.npy")) as staged:
        path = stores.local_path("memory://out/rows.npy")
        assert staged.output == str(path)
        first, second = (path.with_name(f"rows-0000{n}-of-00002.npy") for n in (0, 1))
        assert first.read_text() == "first"
        second.write_text("second")
    assert _names(store, "out") == {"rows-00000-of-00002.npy", "rows-00001-of-00002.npy"}

    store.rm_file("/out/rows-00001-of-00002.npy")
    with stage(Job(output="memory://out/rows.npy")) as staged:
        assert first.exists()
        assert not second.exists()


def test_a_run_is_sent_while_it_is_at_work_and_when_it_is_stopped(store):
    options = Job(run_dir="memory://runs/one")
    path = stores.local_path("memory://runs/one")

    def work():
        with stage(options, every=0.01) as staged:
            assert staged.run_dir == str(path)
            (path / "checkpoints").mkdir(parents=True)
            (path / "checkpoints/1").write_text("1")
            until = time.monotonic() + 20
            while not store.exists("/runs/one/checkpoints/1"):
                assert time.monotonic() < until
                time.sleep(0.01)
            (path / "checkpoints/1").unlink()
            (path / "checkpoints/2").write_text("2")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert _names(store, "runs/one") == {"checkpoints/2"}

    # Another machine goes on.
    with stage(options):
        path.joinpath("checkpoints/2").unlink()
        path.joinpath("checkpoints/3").write_text("3")
    assert _names(store, "runs/one") == {"checkpoints/3"}

    # Whoever removes a run wants it anew.
    store.rm("/runs/one", recursive=True)
    with stage(options):
        assert not path.exists()


def test_only_the_first_worker_sends(store, monkeypatch):
    store.pipe_file("/run/a", b"a")
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with stage(Job(run_dir="memory://run"), every=0.01) as staged:
        path = stores.local_path("memory://run")
        assert staged.run_dir == str(path)
        assert (path / "a").read_text() == "a"
        (path / "b").write_text("b")
        time.sleep(0.1)
    assert _names(store, "run") == {"a"}


def test_what_cannot_be_used_is_one_sentence(store, monkeypatch):
    for name in ("a", "b"):
        store.pipe_file(f"/two/{name}", name.encode())
    for options, said in (
        (Job(model="memory://none"), "memory://none: no such file or folder"),
        (Job(input=("memory://none/*",)), r"memory://none/\*: no such file"),
        (Job(file="memory://two/[ab]"), r"`file`=memory://two/\[ab\]: matches 2 files; expected"),
        (Job(model="nothing://x"), "nothing://x: cannot be read: .*nothing"),
        (Job(model="memory://a/../b"), "expected a path without empty parts"),
    ):
        with pytest.raises(InputError, match=said), stage(options):
            pass

    def refuse(*_, **__):
        raise RuntimeError("credentials\nand a page of more")

    monkeypatch.setattr(type(store), "put_file", refuse)
    said = "memory://out: cannot be written: credentials; the complete output is in "
    path = stores.local_path("memory://out")
    path.parent.mkdir(parents=True)
    with pytest.raises(OutputError, match=said), stage(Job(output="memory://out")):
        path.write_text("x")
    assert path.exists()


@pytest.mark.slow
def test_a_training_in_a_store_goes_on_on_another_machine(store, monkeypatch, tmp_path):
    lines = "".join(f"{json.dumps(dialogue)}\n" for dialogue in make_dialogues(60))
    store.pipe_file("/in/dialogues.jsonl", lines.encode())
    data, run = "memory://away/data", "memory://away/run"
    api.prepare_data(
        format="jsonl",
        input="memory://in/*.jsonl",
        vocab_size=200,
        max_sequence_length=12,
        output_dir=data,
    )
    settings = {"decay": "constant", "global_batch_size": 4, "dev_samples": 0}
    for steps in (1, 2):
        monkeypatch.setenv(stores.CACHE_VARIABLE, str(tmp_path / f"machine-{steps}"))
        api.train(
            task="mlm", data_dir=data, encoder_size="tiny", run_dir=run, steps=steps, **settings
        )
        names = {name for name in _names(store, "away/run") if name.endswith("manifest.json")}
        # Of the second machine both: it began with the first one's.
        assert names == {f"checkpoints/step-00000000{n}/manifest.json" for n in (1, 2)[:steps]}
    assert SentenceEncoder.load(run).encode(["a"]).shape == (1, 128)
