"""The engine of the experiments, on commands that take no time."""

import importlib
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from dcse_tf.errors import LockedError

FOLDER = pathlib.Path(__file__).parent.parent / "experiments"


@pytest.fixture(autouse=True)
def experiments_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def load(name):
    return importlib.import_module(name)


def write(path, text, more=""):
    """A command that appends a text to a file."""
    return ("-c", f"{more}\nwith open({path!r}, 'a') as f: f.write({text!r})")


def make_run(name, *commands, outputs=("out.txt",), needs=()):
    return load("runs").Run(name, commands, outputs, needs)


def chain(first="a", second="b"):
    """Two runs, the second copying what the first wrote."""
    text = f"open('{{work}}/one/out.txt').read() + {second!r}"
    copy = f"open('{{work}}/two/out.txt', 'w').write({text})"
    return [
        make_run("one", write("{work}/one/out.txt", first)),
        make_run("two", ("-c", copy), needs=("one",)),
    ]


def go(work_dir, runs, jobs=1, **options):
    said = []
    load("runs").Runner(work_dir, runs, said.append, jobs).run_all(**options)
    return "\n".join(said)


def test_runs_are_done_in_order_and_once(tmp_path):
    said = go(tmp_path, chain())
    assert "[1 of 2] one: new" in said
    assert "[2 of 2] two: new" in said
    assert (tmp_path / "two/out.txt").read_text() == "ab"
    assert go(tmp_path, chain()) == ""
    assert (tmp_path / "one/out.txt").read_text() == "a"


def test_a_changed_command_is_done_anew_with_what_depends_on_it_and_nothing_is_lost(tmp_path):
    other = make_run("other", write("{work}/other/out.txt", "o"))
    go(tmp_path, [*chain(), other])
    said = go(tmp_path, [*chain(first="c"), other])
    assert "one: CHANGED, done anew: was" in said
    assert "two: CHANGED, done anew: what it needs has changed" in said
    assert "other" not in said
    assert (tmp_path / "two/out.txt").read_text() == "cb"
    assert (tmp_path / "one.before-1/out.txt").read_text() == "a"
    assert (tmp_path / "two.before-1/out.txt").read_text() == "ab"
    go(tmp_path, [*chain(first="d"), other])
    assert (tmp_path / "one.before-2/out.txt").read_text() == "c"


def test_a_changed_flag_file_is_a_changed_command(tmp_path, monkeypatch):
    markers = load("run_markers")
    monkeypatch.setattr(markers, "ROOT", tmp_path)
    (tmp_path / "flags").mkdir()
    (tmp_path / "flags/a.flags").write_text("# A\n--flagfile=b.flags\n")
    (tmp_path / "flags/b.flags").write_text("# B\n--steps=1\n")
    commands = (("-m", "job", "--flagfile=flags/a.flags"),)
    before = markers.compute_digest(commands, [])
    marker = markers.begin_marker(tmp_path / "run", commands, before)
    (tmp_path / "flags/b.flags").write_text("# Another remark\n--steps=1\n")
    assert markers.compute_digest(commands, []) == before
    (tmp_path / "flags/b.flags").write_text("--steps=2\n")
    assert markers.compute_digest(commands, []) != before
    assert markers.describe_change(marker, commands) == "a flag file has another content"


def git(folder, *words):
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_a_commit_is_that_of_the_checkout_and_says_if_a_tracked_file_differs(tmp_path, monkeypatch):
    markers = load("run_markers")
    monkeypatch.setattr(markers, "ROOT", tmp_path)
    assert markers.read_commit() == "unknown"
    git(tmp_path, "init")
    assert markers.read_commit() == "unknown"  # no commit yet
    (tmp_path / "experiments/results").mkdir(parents=True)
    for name in ("code.py", "experiments/results/a.md"):
        (tmp_path / name).write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert len(commit) == 40
    (tmp_path / "new.py").touch()
    (tmp_path / "experiments/results/a.md").write_text("a new report\n")
    assert markers.read_commit() == commit
    (tmp_path / "code.py").write_text("2\n")
    assert markers.read_commit() == f"{commit}-dirty"
    monkeypatch.setattr(markers, "ROOT", tmp_path / "experiments")  # a copy inside a checkout
    assert markers.read_commit() == "unknown"
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(markers, "ROOT", tmp_path)
    assert markers.read_commit() == "unknown"


def test_a_run_has_the_commits_that_it_was_made_at_and_another_is_no_reason_to_do_it_anew(
    tmp_path, monkeypatch
):
    def at(commit, runs):
        monkeypatch.setattr(load("runs"), "read_commit", lambda: commit)
        return go(tmp_path, runs)

    out = "{work}/long/out.txt"
    check = "import os; assert os.path.exists('{work}/ready')"
    long = make_run("long", write(out, "1"), write(out, "2", check))
    at("c1", chain())
    with pytest.raises(load("run_markers").RunError):
        at("c1", [*chain(), long])
    (tmp_path / "ready").touch()
    said = at("c2", [*chain(), long])
    assert "one" not in said
    read = load("run_markers").read_marker
    assert [read(tmp_path / name)["commits"] for name in ("one", "long")] == [["c1"], ["c1", "c2"]]
    path = tmp_path / "one/run.json"
    marker = json.loads(path.read_text())
    del marker["commits"]
    path.write_text(json.dumps(marker))
    assert read(tmp_path / "one")["commits"] == ["unknown"]


def test_a_failure_stops_and_names_the_log(tmp_path):
    bad = make_run(
        "bad", ("-c", "import sys; print('warming up'); sys.exit('error: no such file')")
    )
    with pytest.raises(load("run_markers").RunError) as caught:
        go(tmp_path, [bad, *chain()])
    assert str(tmp_path / "bad/log.txt") in str(caught.value)
    assert "error: no such file" in str(caught.value)
    assert "exit status 1" in str(caught.value)
    assert not (tmp_path / "one").exists()


def test_after_a_failure_the_same_command_goes_on_with_what_was_left(tmp_path):
    """The second command fails until a file is there; the first is not done again."""
    out = "{work}/run/out.txt"
    check = "import os; assert os.path.exists('{work}/ready')"
    run = make_run("run", write(out, "1"), write(out, "2", check))
    with pytest.raises(load("run_markers").RunError):
        go(tmp_path, [run])
    (tmp_path / "ready").touch()
    assert "[1 of 1] run: goes on" in go(tmp_path, [run])
    assert (tmp_path / "run/out.txt").read_text() == "12"
    assert json.loads((tmp_path / "run/run.json").read_text())["seconds"] > 0


def test_a_run_that_ends_without_its_output_has_failed(tmp_path):
    run = make_run("run", ("-c", "pass"))
    with pytest.raises(load("run_markers").RunError, match=r"without writing out\.txt"):
        go(tmp_path, [run])
    with pytest.raises(load("run_markers").RunError, match=r"without writing out\.txt"):
        go(tmp_path, [run])


def test_lost_output_is_made_again(tmp_path):
    go(tmp_path, chain())
    (tmp_path / "one/out.txt").unlink()
    assert "one: done anew, for out.txt is gone" in go(tmp_path, chain())
    assert (tmp_path / "one/out.txt").read_text() == "a"


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one/thesis.txt").write_text("mine")
    with pytest.raises(load("run_markers").RunError, match="did not write it"):
        go(tmp_path, chain())
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["thesis.txt"]


def test_a_dry_run_prints_the_commands_and_writes_nothing(tmp_path):
    work = tmp_path / "work"
    said = go(work, chain(), dry_run=True)
    assert "# one: new" in said
    assert f"python -c open('{work}/two/out.txt', 'w')" in said
    assert not work.exists()
    go(work, chain())
    before = sorted(work.rglob("*"))
    assert go(work, chain(), dry_run=True) == "# one: done\n# two: done"
    assert "# two: CHANGED" in go(work, chain(first="c"), dry_run=True)
    assert sorted(work.rglob("*")) == before


def test_a_moved_work_folder_stays_done(tmp_path):
    go(tmp_path / "old", chain())
    (tmp_path / "old").rename(tmp_path / "new")
    assert go(tmp_path / "new", chain()) == ""


def test_time_left_is_told_from_runs_of_the_kind(tmp_path):
    def runs(count):
        return [make_run(f"rows/{i}", ("-c", "pass"), outputs=()) for i in range(count)]

    assert "min left" not in go(tmp_path, runs(1))
    path = tmp_path / "rows/0/run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 120.0}))
    said = go(tmp_path, [*runs(3), make_run("data/x", ("-c", "pass"), outputs=())])
    assert "rows/1: new (about 4 min left, and 1 run(s) of a kind not timed yet)" in said


@pytest.mark.parametrize(
    "runs",
    [lambda: chain()[::-1], lambda: [*chain(), make_run("one/more")]],
    ids=["order", "inside"],
)
def test_a_plan_that_cannot_be_run_is_refused(runs, tmp_path):
    with pytest.raises(ValueError, match=r"not before it, or in one folder"):
        load("runs").Runner(tmp_path, runs())


def meet(own, other):
    """A command that ends only while the other's is at work too."""
    return (
        "-c",
        f"""
import os, time
open('{{work}}/{own}/out.txt', 'w').close()
end = time.monotonic() + 30
while not os.path.exists('{{work}}/{other}/out.txt'):
    assert time.monotonic() < end, 'the other never began'
    time.sleep(0.02)
""",
    )


def test_several_at_once_wait_for_what_they_need_alone(tmp_path):
    pair = [make_run("left", meet("left", "right")), make_run("right", meet("right", "left"))]
    said = go(tmp_path, [*chain(), *pair], jobs=2)
    assert said.count("new") == 4
    assert (tmp_path / "two/out.txt").read_text() == "ab"
    assert go(tmp_path, [*chain(), *pair], jobs=2) == ""


def test_a_failure_ends_what_is_at_work_beside_it(tmp_path):
    wait = "import os, time\nwhile not os.path.exists('{work}/long/out.txt'): time.sleep(0.02)\n"
    bad = make_run("bad", ("-c", f"{wait}raise SystemExit(3)"))
    sleep = "import time; open('{work}/long/out.txt', 'w').close(); time.sleep(60)"
    started = time.monotonic()
    with pytest.raises(load("run_markers").RunError, match="bad: exit status 3"):
        go(tmp_path, [bad, make_run("long", ("-c", sleep)), *chain()], jobs=2)
    assert time.monotonic() - started < 30
    assert json.loads((tmp_path / "long/run.json").read_text())["finished"] == 0
    assert not (tmp_path / "one").exists()


def test_cores_are_shared_out_unless_the_caller_has_done_so(tmp_path, monkeypatch):
    show = "import os; print(os.environ.get('TF_NUM_INTRAOP_THREADS'))"

    def shown(name, jobs):
        go(tmp_path, [make_run(name, ("-c", show), outputs=())], jobs)
        return (tmp_path / name / "log.txt").read_text().splitlines()[-1]

    monkeypatch.setattr(load("children").os, "cpu_count", lambda: 7)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    assert [shown("one", 1), shown("two", 3), shown("three", 20)] == ["None", "2", "1"]
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "5")
    assert shown("four", 3) == "5"


SLEEPER = """
import pathlib, sys
from runs import Run, Runner
code = "import time; open('{work}/run/begun', 'w').close(); time.sleep(60)"
Runner(pathlib.Path(sys.argv[1]), [Run("run", (("-c", code),), ())]).run_all()
"""


def test_one_start_at_a_time_and_a_stop_ends_the_child(tmp_path):
    command = [sys.executable, "-c", SLEEPER, str(tmp_path)]
    paths = {"PYTHONPATH": f"{FOLDER}:{FOLDER.parent}"}
    process = subprocess.Popen(command, env=paths, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while not (tmp_path / "run/begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(LockedError, match=f"process {process.pid} is at work in it"):
        go(tmp_path, chain())
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=30)
    assert process.returncode == 1
    # The child held the lock too; it is free because the child is gone.
    assert go(tmp_path, chain()).count("new") == 2
