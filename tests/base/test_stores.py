"""Files of stores: what is fetched, what is sent and when."""

import pathlib

import fsspec
import pytest

from dcse_tf.errors import InputError, OutputError
from dcse_tf.options import OptionError, Options, option
from dcse_tf.stores import fetch, list_files, stage


class Job(Options):
    """One of each kind of option."""

    input: tuple[str, ...] = option((), "", path="files")
    model: str = option("", "", path="reads")
    output: str = option("", "", path="writes")
    run_dir: str = option("", "", path="resumes")
    prefix: str = option("", "")
    overwrite: bool = option(False, "")


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path):
    """An empty store, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    return memory


def names(store, folder):
    return {name.removeprefix(f"/{folder}").lstrip("/") for name in store.find(folder)}


def test_files_of_a_pattern_have_its_form(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    expected = [f"file://{tmp_path}/a", f"file://{tmp_path}/b"]
    assert list_files(f"file://{tmp_path}/[ab]") == expected
    with pytest.raises(InputError, match="no such file"):
        list_files(f"file://{tmp_path}/c*")


def test_what_is_read_is_fetched_and_again_when_it_has_changed(store, monkeypatch, tmp_path):
    for name in ("in/b", "in/a", "in/c", "model/one", "model/sub/two"):
        store.pipe_file(f"/{name}", name.encode())
    (tmp_path / "here.txt").touch()
    here = str(tmp_path / "here.txt")
    options = Job(input=("memory://in/[ab]", here), model="memory://model", prefix="a://b")

    def read():
        with stage(options) as staged:
            assert staged.prefix == "a://b"  # a text, whatever it looks like
            assert staged.input[2] == here
            folder = pathlib.Path(staged.model)
            assert folder == tmp_path / "cache/dcse_tf/memory/model"
            files = [*map(pathlib.Path, staged.input[:2]), *folder.rglob("*")]
            return {path.name: path.read_text() for path in files if path.is_file()}

    assert read() == {"a": "in/a", "b": "in/b", "one": "model/one", "two": "model/sub/two"}
    fetched = []
    get = type(store).get_file
    monkeypatch.setattr(
        type(store),
        "get_file",
        lambda fs, name, *to, **more: [fetched.append(name), get(fs, name, *to, **more)],
    )
    store.pipe_file("/in/b", b"other")
    store.rm_file("/model/one")
    assert read() == {"a": "in/a", "b": "other", "two": "model/sub/two"}
    assert [name for name in fetched if store.isfile(name)] == ["/in/b", "/model/sub/two"]
    with pytest.raises(InputError, match="memory://nowhere: no such file or folder"):
        fetch("memory://nowhere")
    with pytest.raises(InputError, match="without empty parts"):
        fetch("memory://model/../other")
    assert fetch("here.txt") == "here.txt"


def test_an_output_is_sent_when_the_job_has_succeeded(store):
    def write(folder, name):
        pathlib.Path(folder).mkdir()
        (pathlib.Path(folder) / name).write_text(name)

    def work(name, fail=False, **changes):
        with stage(Job(output="memory://out/data", **changes)) as staged:
            write(staged.output, name)
            if fail:
                raise KeyError

    with pytest.raises(KeyError):
        work("half", fail=True)
    assert names(store, "out") == set()
    work("whole")
    assert names(store, "out/data") == {"whole"}
    with pytest.raises(FileExistsError, match="`overwrite`"):
        work("new")
    work("new", overwrite=True)
    assert names(store, "out/data") == {"new"}


def test_what_a_later_run_continues_is_not_on_a_store():
    with pytest.raises(OptionError, match="`run_dir`=memory://run: expected a folder on a disk"):
        stage(Job(run_dir="memory://run")).__enter__()


def test_a_store_that_cannot_be_used_is_one_sentence(store, monkeypatch):
    with pytest.raises(InputError, match="no-such-protocol://a: cannot be read: "):
        fetch("no-such-protocol://a")

    def refuse(*_, **__):
        raise RuntimeError("no room\ntrace")

    monkeypatch.setattr(type(store), "put", refuse)
    said = "memory://out: cannot be written: no room; the complete output is in .*/memory/out$"
    with pytest.raises(OutputError, match=said), stage(Job(output="memory://out")) as staged:
        pathlib.Path(staged.output).write_text("rows")
