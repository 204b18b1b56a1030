"""The runner of the experiments, on commands that take no time."""

import importlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from dcse_tf.errors import LockedError

FOLDER = pathlib.Path(__file__).parents[2] / "experiments"


@pytest.fixture
def runner(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("runner")


def write(name, text, more=""):
    """A command that appends a text to a run's out.txt."""
    return ("-c", f"{more}\nwith open('{{work}}/{name}/out.txt', 'a') as f: f.write({text!r})")


def make(runner, **commands):
    """A run for each command; each needs the one before."""
    names = list(commands)
    return {
        name: runner.Run(name, command, "out.txt", tuple(names[max(0, i - 1) : i]))
        for i, (name, command) in enumerate(commands.items())
    }


def chain(runner, first="a", second="b"):
    """Two runs, the second copying what the first wrote."""
    copy = f"open('{{work}}/one/out.txt').read() + {second!r}"
    command = ("-c", f"open('{{work}}/two/out.txt', 'w').write({copy})")
    return make(runner, one=write("one", first), two=command)


def go(runner, work_dir, runs, jobs=1):
    said = []
    runner.Runner(work_dir, runs, jobs, said.append).run_all()
    return "\n".join(said)


def test_runs_are_done_in_order_and_once(runner, tmp_path):
    said = go(runner, tmp_path, dict(reversed(chain(runner).items())))
    assert said.index("[1 of 2] one: new") < said.index("[2 of 2] two: new")
    assert (tmp_path / "two/out.txt").read_text() == "ab"
    assert go(runner, tmp_path, chain(runner)) == ""
    assert (tmp_path / "one/out.txt").read_text() == "a"


def test_a_changed_command_is_done_anew_with_what_depends_on_it_and_nothing_is_lost(
    runner, tmp_path
):
    other = make(runner, other=write("other", "o"))
    go(runner, tmp_path, {**chain(runner), **other})
    said = go(runner, tmp_path, {**chain(runner, first="c"), **other})
    assert "one: changed" in said
    assert "two: changed" in said
    assert "other" not in said
    assert (tmp_path / "two/out.txt").read_text() == "cb"
    assert (tmp_path / "one.before-1/out.txt").read_text() == "a"
    assert (tmp_path / "two.before-1/out.txt").read_text() == "ab"
    go(runner, tmp_path, {**chain(runner, first="d"), **other})
    assert (tmp_path / "one.before-2/out.txt").read_text() == "c"


def test_a_changed_flag_file_is_a_changed_command(runner, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    (tmp_path / "flags").mkdir()
    (tmp_path / "flags/a.flags").write_text("# A\n--flagfile=b.flags\n")
    (tmp_path / "flags/b.flags").write_text("# B\n--steps=1\n")
    command = ("-c", "open('{work}/run/out.txt', 'w')", "--flagfile=flags/a.flags")
    runs = make(runner, run=command)
    work = tmp_path / "work"
    go(runner, work, runs)
    (tmp_path / "flags/b.flags").write_text("# Another remark\n--steps=1\n")
    assert go(runner, work, runs) == ""
    (tmp_path / "flags/b.flags").write_text("--steps=2\n")
    assert "run: changed" in go(runner, work, runs)


@pytest.mark.parametrize("word", ["--input={0},{1}", "jsonl:{0},{1}", "{1}"])
def test_a_changed_input_file_is_done_anew_with_what_depends_on_it(runner, tmp_path, word):
    paths = [tmp_path / name for name in ("a.txt", "b.txt")]
    for path in paths:
        path.write_text("old")
    copy = f"open('{{work}}/one/out.txt', 'w').write(open({str(paths[1])!r}).read())"
    runs, other = chain(runner), make(runner, other=write("other", "o"))
    command = ("-c", copy, word.format(*paths))
    runs = {**runs, "one": runner.Run("one", command, "out.txt"), **other}
    work = tmp_path / "work"
    go(runner, work, runs)
    assert go(runner, work, runs) == ""
    paths[1].write_text("new")
    said = go(runner, work, runs)
    assert "one: changed" in said
    assert "two: changed" in said
    assert "] other" not in said
    assert (work / "two/out.txt").read_text() == "newb"
    assert (work / "two.before-1/out.txt").read_text() == "oldb"
    # A record from before the files were recorded is kept.
    record = json.loads((work / "one/run.json").read_text())
    del record["inputs"]
    (work / "one/run.json").write_text(json.dumps(record))
    paths[1].write_text("newer")
    assert "one: changed" not in go(runner, work, runs)


@pytest.mark.parametrize("file", ["model.safetensors", "vocab.txt", "config.json"])
@pytest.mark.parametrize("below", ["", "encoder"])
def test_a_changed_encoder_is_done_anew_with_what_depends_on_it(runner, tmp_path, below, file):
    folder, work = tmp_path / "encoder-of-mine", tmp_path / "work"
    for name in ("model.safetensors", "vocab.txt", "config.json"):
        (folder / below).mkdir(parents=True, exist_ok=True)
        (folder / below / name).write_text("{}")
    (tmp_path / "other").mkdir()  # no encoder
    words = (f"--encoder={folder}", f"--output={tmp_path}/other")
    runs = chain(runner)
    runs["one"] = runner.Run("one", (*runs["one"].command, *words), "out.txt")
    go(runner, work, runs)
    assert go(runner, work, runs) == ""
    (folder / below / file).write_text("{} ")
    said = go(runner, work, runs)
    assert "one: changed" in said
    assert "two: changed" in said
    # A record from before encoders were recorded is kept.
    record = json.loads((work / "one/run.json").read_text())
    del record["encoders"]
    (work / "one/run.json").write_text(json.dumps(record))
    (folder / below / file).write_text("{}  ")
    assert "one: changed" not in go(runner, work, runs)


def test_files_of_former_commands_and_inputs_are_left_out(runner, tmp_path):
    names = ("one", "two")
    paths = {name: [tmp_path / name / "out.txt"] for name in names}

    def kept(runs):
        return [key for key, each in runner.Runner(tmp_path, runs).keep_done(paths).items() if each]

    assert kept(chain(runner)) == []
    go(runner, tmp_path, chain(runner))
    assert kept(chain(runner)) == ["one", "two"]
    assert kept(chain(runner, second="c")) == ["one"]
    assert kept(chain(runner, first="c")) == []  # the second needs the first


def test_a_failure_stops_and_names_the_log(runner, tmp_path):
    bad = make(runner, bad=("-c", "import sys; sys.exit('error: no such file')"))
    after = {**bad, "after": runner.Run("after", write("after", "1"), "out.txt", ("bad",))}
    with pytest.raises(runner.RunError, match="no such file") as caught:
        go(runner, tmp_path, after)
    assert str(tmp_path / "bad/log.txt") in str(caught.value)
    assert "exit status 1" in str(caught.value)
    assert not (tmp_path / "after").exists()


def test_what_was_cut_off_is_resumed_in_its_folder(runner, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "read_commit", lambda: "c1")
    check = "import os; open('{work}/run/part', 'a').write('1'); assert os.path.exists('{work}/go')"
    runs = make(runner, run=write("run", "out", check))
    with pytest.raises(runner.RunError):
        go(runner, tmp_path, runs)
    (tmp_path / "go").touch()
    monkeypatch.setattr(runner, "read_commit", lambda: "c2")
    assert "[1 of 1] run: resumed" in go(runner, tmp_path, runs)
    assert (tmp_path / "run/part").read_text() == "11"
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["commits"] == ["c1", "c2"]
    # Another commit is no reason to do it anew.
    monkeypatch.setattr(runner, "read_commit", lambda: "c3")
    assert go(runner, tmp_path, runs) == ""


def test_a_run_that_a_stop_prevents_is_not_done_by_what_it_left_before(runner, tmp_path):
    """As a training that was cut off after it had kept its first encoder."""
    runs = make(runner, run=write("run", "out", "import sys"))
    folder = tmp_path / "run"
    folder.mkdir()
    started = runner.Runner(tmp_path, runs, say=lambda line: None)
    begun = {"digest": started._digests["run"], "commits": ["c1"]}
    (folder / "run.json").write_text(json.dumps(begun))
    (folder / "out.txt").write_text("early")
    started._stopped = True
    with pytest.raises(runner.RunError, match="run: not begun"):
        started._do(runs["run"])
    assert not started.is_done("run")
    assert (folder / "out.txt").read_text() == "early"


@pytest.mark.parametrize(
    ("job", "there", "state"),
    [
        ("prepare_data", False, "resumed"),
        # It refuses to overwrite what it wrote just before it could be recorded.
        ("prepare_data", True, "done anew, for it ended without being recorded"),
        ("train", True, "resumed"),  # which writes its encoder long before it ends
        ("evaluate", True, "resumed"),
    ],
)
def test_output_without_a_record_of_its_end_is_in_no_jobs_way(runner, tmp_path, job, there, state):
    command = ("-m", f"dcse_tf.cli.{job}", "--output={work}/run/out.txt")
    started = runner.Runner(tmp_path, make(runner, run=command))
    (tmp_path / "run").mkdir()
    record = {"digest": started._digests["run"], "commits": []}
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    if there:
        (tmp_path / "run/out.txt").touch()
    assert started.list_work()[0] == f"# run: {state}"


def test_a_run_that_ends_without_its_output_has_failed_each_time(runner, tmp_path):
    for _ in range(2):
        with pytest.raises(runner.RunError, match=r"out\.txt"):
            go(runner, tmp_path, make(runner, run=("-c", "pass")))


def test_lost_output_is_made_again(runner, tmp_path):
    go(runner, tmp_path, chain(runner))
    (tmp_path / "one/out.txt").unlink()
    assert "one: done anew, for out.txt is gone" in go(runner, tmp_path, chain(runner))
    assert (tmp_path / "one/out.txt").read_text() == "a"


def test_a_folder_of_somebody_else_is_left_alone(runner, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one/thesis.txt").write_text("mine")
    with pytest.raises(runner.RunError, match="one"):
        go(runner, tmp_path, chain(runner))
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["thesis.txt"]


def test_a_list_of_the_work_has_the_commands_and_writes_nothing(runner, tmp_path):
    work = tmp_path / "work"
    lines = runner.Runner(work, chain(runner)).list_work()
    assert [line for line in lines if line.startswith("#")] == ["# one: new", "# two: new"]
    assert f"python -c open('{work}/two/out.txt', 'w')" in "\n".join(lines)
    assert not work.exists()
    go(runner, work, chain(runner))
    before = sorted(work.rglob("*"))
    assert runner.Runner(work, chain(runner)).list_work() == ["# one: done", "# two: done"]
    assert sorted(work.rglob("*")) == before


def test_a_moved_work_folder_stays_done(runner, tmp_path):
    go(runner, tmp_path / "old", chain(runner))
    (tmp_path / "old").rename(tmp_path / "new")
    assert go(runner, tmp_path / "new", chain(runner)) == ""


def meet(own, other):
    """A command that ends only while the other's is at work too."""
    return (
        "-c",
        f"""
import os, time
open('{{work}}/{own}/out.txt', 'w').close()
end = time.monotonic() + 60
while not os.path.exists('{{work}}/{other}/out.txt'):
    assert time.monotonic() < end, 'the other never began'
    time.sleep(0.02)
""",
    )


def test_several_at_once(runner, tmp_path):
    pair = {
        name: runner.Run(name, meet(name, other), "out.txt")
        for name, other in (("left", "right"), ("right", "left"))
    }
    said = go(runner, tmp_path, {**chain(runner), **pair}, jobs=2)
    assert said.count(": new") == 4
    assert (tmp_path / "two/out.txt").read_text() == "ab"


def test_a_failure_ends_what_is_at_work_beside_it(runner, tmp_path):
    wait = "import os, time\nwhile not os.path.exists('{work}/long/out.txt'): time.sleep(0.02)\n"
    sleep = "import time; open('{work}/long/out.txt', 'w').close(); time.sleep(600)"
    runs = {
        "bad": runner.Run("bad", ("-c", f"{wait}raise SystemExit(3)"), "out.txt"),
        "long": runner.Run("long", ("-c", sleep), "out.txt"),
    }
    started = time.monotonic()
    with pytest.raises(runner.RunError, match="bad: exit status 3"):
        go(runner, tmp_path, runs, jobs=2)
    assert time.monotonic() - started < 300
    assert "seconds" not in json.loads((tmp_path / "long/run.json").read_text())


def test_cores_are_shared_out_unless_the_caller_has_done_so(runner, tmp_path, monkeypatch):
    code = "import os; print(os.environ.get('TF_NUM_INTRAOP_THREADS'), file=open({out!r}, 'w'))"

    def shown(name, jobs):
        command = ("-c", code.format(out=f"{{work}}/{name}/out.txt"))
        go(runner, tmp_path, make(runner, **{name: command}), jobs)
        return (tmp_path / name / "out.txt").read_text().strip()

    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    assert [shown("one", 1), shown("two", 3), shown("three", 20)] == ["None", "2", "1"]
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "5")
    assert shown("four", 3) == "5"


SLEEPER = """
import pathlib, sys
from runner import Run, Runner
code = "import time; open('{work}/run/begun', 'w').close(); time.sleep(600)"
Runner(pathlib.Path(sys.argv[1]), {"run": Run("run", ("-c", code), "begun")}).run_all()
"""


def test_one_start_at_a_time_and_a_stop_ends_the_child(runner, tmp_path):
    paths = {"PYTHONPATH": f"{FOLDER}:{FOLDER.parent}"}
    process = subprocess.Popen([sys.executable, "-c", SLEEPER, str(tmp_path)], env=paths)
    deadline = time.monotonic() + 60
    while not (tmp_path / "run/begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(LockedError, match=str(process.pid)):
        go(runner, tmp_path, chain(runner))
    process.send_signal(signal.SIGTERM)
    # It waits for its child, which would sleep for longer.
    assert process.wait(timeout=60) != 0
    assert go(runner, tmp_path, chain(runner)).count(": new") == 2


def git(folder, *words):
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_a_commit_is_that_of_the_checkout_and_says_if_a_tracked_file_differs(
    runner, tmp_path, monkeypatch
):
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    assert runner.read_commit() == "unknown"
    git(tmp_path, "init")
    assert runner.read_commit() == "unknown"  # no commit yet
    (tmp_path / "experiments/results").mkdir(parents=True)
    for name in ("code.py", "experiments/results/a.md"):
        (tmp_path / name).write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert len(commit) == 40
    (tmp_path / "new.py").touch()
    (tmp_path / "experiments/results/a.md").write_text("a new report\n")
    assert runner.read_commit() == commit
    (tmp_path / "code.py").write_text("2\n")
    assert runner.read_commit() == f"{commit}-dirty"
    monkeypatch.setattr(runner, "ROOT", tmp_path / "experiments")  # a copy inside a checkout
    assert runner.read_commit() == "unknown"
