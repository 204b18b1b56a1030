"""Runs commands that depend on one another, and only those that are not done yet.

Each run has its own folder in the work folder, with its log and `run.json`, which records the
command. When an experiment is started again, finished runs are reused, interrupted runs are resumed
by the same command in the same folder, and runs whose command or input files have changed are
repeated, together with all runs that depend on them. Nothing is deleted: the folder of a repeated
run is moved aside.

A new commit of the code does not make a run repeat, since most commits change no result. `run.json`
records the commits that a run was made at, and reports list them.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import graphlib
import hashlib
import heapq
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from settings import SettingsError

from dcse_tf.bert.checkpoints import hash_files, resolve_checkpoint
from dcse_tf.errors import InputError, LockedError
from dcse_tf.files import atomic_file, hash_file, lock_folder

K = TypeVar("K")

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = "{work}"  # placeholder in commands for the work folder, so that it may be moved
UNKNOWN = "unknown"
_RECORD, _LOG = "run.json", "log.txt"
_SHOWN = 8  # lines shown from the end of a failed run's log


@contextlib.contextmanager
def tell_errors() -> Iterator[None]:
    """Turns errors of input or runs, and Ctrl-C, into a one-line message and an exit status."""
    try:
        yield
    except (RunError, SettingsError, InputError, LockedError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command resumes it")


class RunError(RuntimeError):
    """A run failed or cannot be started; the message names the folder or the log."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One step of an experiment.

    Attributes:
        name: its folder in the work folder, such as "rows/ecd/cosine-seed0".
        command: the arguments of Python; `WORK` stands for the work folder.
        output: a file in its folder that exists once the run is done.
        needs: names of the runs that it depends on.
    """

    name: str
    command: tuple[str, ...]
    output: str
    needs: tuple[str, ...] = ()


_print = functools.partial(print, flush=True)


class Runner:
    """Executes runs, each after the runs that it needs.

    Args:
        work_dir: the folder that everything is written to.
        runs: name -> run. Of the runs that can be started, the first in this order comes first.
        jobs: how many runs at once. TensorFlow's threads are divided among them, unless the
            environment sets their number.
        say: called with lines that report progress.
        minutes: start no run after this time; None for no limit.
    """

    def __init__(
        self,
        work_dir: pathlib.Path,
        runs: dict[str, Run],
        jobs: int = 1,
        say: Callable[[str], None] = _print,
        minutes: float | None = None,
    ):
        self._given_dir, self._work_dir = work_dir, work_dir.resolve()
        self._runs, self._jobs, self._say = runs, jobs, say
        self._seconds = None if minutes is None else 60.0 * minutes
        self._order = self._list_in_order()
        self._digests: dict[str, str] = {}
        # What the runs read, and all that they need: files, and encoders' folders. These are not
        # part of the digest, so that runs recorded without them remain done.
        self._inputs: dict[str, str] = {}
        self._encoders: dict[str, str] = {}
        hash_once, hash_encoder = functools.cache(hash_file), functools.cache(hash_files)
        for name in self._order:
            run = runs[name]
            needs = [self._digests[need] for need in run.needs]
            self._digests[name] = _hash([run.command, read_flag_files(run.command), needs])
            files = {str(path): hash_once(path) for path in list_input_files(run.command)}
            self._inputs[name] = _hash([files, [self._inputs[need] for need in run.needs]])
            encoders = {str(path): hash_encoder(path) for path in list_encoders(run.command)}
            self._encoders[name] = _hash([encoders, [self._encoders[need] for need in run.needs]])
        self._processes: set[subprocess.Popen] = set()
        self._guard = threading.Lock()
        self._stopped = False

    def list_work(self) -> list[str]:
        """Lists what `run_all` would do: each run's state, and its command if it is not done."""
        lines = []
        for name in self._order:
            state = self._state(self._runs[name])
            lines.append(f"# {name}: {state}")
            if state != "done":
                lines.append(f"python {' '.join(self._fill_in(self._runs[name].command))}")
        return lines

    def is_done(self, name: str) -> bool:
        """Whether a run is done, by its present command and from the present input files."""
        return self._state(self._runs[name]) == "done"

    def keep_done(self, paths: Mapping[K, Sequence[pathlib.Path]]) -> dict[K, list[pathlib.Path]]:
        """Leaves out the files of runs that are not done, or were done with other settings.

        Args:
            paths: files, or folders, that lie directly in the folder of a run.
        """

        def is_done(path: pathlib.Path) -> bool:
            return self.is_done(path.parent.relative_to(self._given_dir).as_posix())

        return {key: list(filter(is_done, each)) for key, each in paths.items()}

    def run_all(self) -> bool:
        """Executes all runs that are not done.

        Returns:
            Whether all runs are done; False if the time was up before.

        Raises:
            RunError: a run failed, or a run's folder has other content.
            LockedError: another process is using the work folder.
        """
        with lock_folder(self._work_dir, "wait for it, or give another --work_dir"):
            before = signal.signal(signal.SIGTERM, signal.default_int_handler)
            try:
                return self._run_in_order()
            finally:
                signal.signal(signal.SIGTERM, before)

    def _run_in_order(self) -> bool:
        started, sorter = time.monotonic(), self._sort()
        sorter.prepare()
        ready: list[tuple[int, str]] = []
        with concurrent.futures.ThreadPoolExecutor(self._jobs) as pool:
            try:
                begun: dict[concurrent.futures.Future, str] = {}
                while sorter.is_active():
                    self._add_ready(sorter, ready)
                    late = self._seconds is not None and (
                        time.monotonic() - started >= self._seconds
                    )
                    while ready and len(begun) < self._jobs:
                        _, name = heapq.heappop(ready)
                        if not late or self._state(self._runs[name]) == "done":
                            begun[pool.submit(self._do, self._runs[name])] = name
                    if not begun:
                        return False
                    ended, _ = concurrent.futures.wait(
                        begun, return_when=concurrent.futures.FIRST_COMPLETED
                    )
                    for future in ended:
                        future.result()
                        sorter.done(begun.pop(future))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                with self._guard:
                    self._stopped = True
                    for process in self._processes:
                        process.terminate()
        return True

    def _add_ready(self, sorter: graphlib.TopologicalSorter, ready: list[tuple[int, str]]) -> None:
        """Adds the runs that can be started now to a heap, ordered by their place in the plan."""
        places = {name: place for place, name in enumerate(self._runs)}
        for name in sorter.get_ready():
            heapq.heappush(ready, (places[name], name))

    def _list_in_order(self) -> list[str]:
        """The names of the runs in the order in which a single job executes them."""
        order: list[str] = []
        ready: list[tuple[int, str]] = []
        sorter = self._sort()
        sorter.prepare()
        while sorter.is_active():
            self._add_ready(sorter, ready)
            _, name = heapq.heappop(ready)
            order.append(name)
            sorter.done(name)
        return order

    def _sort(self) -> graphlib.TopologicalSorter:
        return graphlib.TopologicalSorter({run.name: run.needs for run in self._runs.values()})

    def _state(self, run: Run) -> str:
        record = read_record(self._work_dir / run.name)
        if record is None:
            return "new"
        if record.get("digest") != self._digests[run.name]:
            return f"changed, done anew: {self._describe_change(record, run)}"
        for kind, now in (("inputs", self._inputs), ("encoders", self._encoders)):
            if record.get(kind, now[run.name]) != now[run.name]:
                return "changed, done anew: a file that it or what it needs reads has other content"
        there = (self._work_dir / run.name / run.output).exists()
        if "seconds" not in record:
            refused = there and _refuses_its_output(run.command)
            return "done anew, for it ended without being recorded" if refused else "resumed"
        return "done" if there else f"done anew, for {run.output} is gone"

    def _describe_change(self, record: dict[str, Any], run: Run) -> str:
        was, now = (dict.fromkeys(words) for words in (record.get("command", ()), run.command))
        gone, come = [w for w in was if w not in now], [w for w in now if w not in was]
        if gone or come:
            return f"was {' '.join(gone) or '(less)'}, is {' '.join(come) or '(less)'}"
        return "a flag file or what it needs has changed"

    def _do(self, run: Run) -> None:
        folder, state = self._work_dir / run.name, self._state(run)
        if state == "done":
            return
        place = f"[{self._order.index(run.name) + 1} of {len(self._order)}] {run.name}"
        command = self._fill_in(run.command)
        self._say(f"{place}: {state}\n  $ python {' '.join(command)}\n  log: {folder / _LOG}")
        if state not in ("new", "resumed"):
            aside = _find_free_name(folder)
            folder.rename(aside)
            self._say(f"  what was there is now {aside}")
        record = read_record(folder)
        if record is None and folder.exists() and any(folder.iterdir()):
            raise RunError(
                f"{folder}: no {_RECORD} in it, so this script did not write it; move it away, or "
                "give another --work_dir"
            )
        folder.mkdir(parents=True, exist_ok=True)
        record = record or {
            "digest": self._digests[run.name],
            "inputs": self._inputs[run.name],
            "encoders": self._encoders[run.name],
            "command": run.command,
            "commits": [],
        }
        record["commits"] = list(dict.fromkeys([*record["commits"], read_commit()]))
        _write_record(folder, record)

        started = time.monotonic()
        self._launch(run, command, folder / _LOG)
        if not (folder / run.output).exists():
            raise RunError(f"{run.name}: ended without writing {run.output}; see {folder / _LOG}")
        record["seconds"] = time.monotonic() - started
        _write_record(folder, record)
        self._say(f"{place}: done in {record['seconds'] / 60:.1f} min")

    def _launch(self, run: Run, command: Sequence[str], log: pathlib.Path) -> None:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if self._jobs > 1:
            threads = str(max(1, (os.cpu_count() or 1) // self._jobs))
            for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"):
                environment.setdefault(name, threads)
        with log.open("a", encoding="utf-8") as file:
            with self._guard:
                if self._stopped:
                    raise RunError(f"{run.name}: not begun, for all runs are being stopped")
                process = subprocess.Popen(
                    [sys.executable, *command],
                    cwd=ROOT,
                    env=environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C reaches only this process, which asks the others to save and end.
                    start_new_session=True,
                )
                self._processes.add(process)
            code = process.wait()
        with self._guard:
            self._processes.discard(process)
        if code:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN:]
            last = "\n".join(f"    {line}" for line in lines)
            raise RunError(f"{run.name}: exit status {code}; its log is {log}, which ends\n{last}")

    def _fill_in(self, command: Sequence[str]) -> list[str]:
        return [word.replace(WORK, str(self._work_dir)) for word in command]


def _refuses_its_output(command: Sequence[str]) -> bool:
    """Whether a command is a job that does not start if its output exists already."""
    job = command[2] if tuple(command[:2]) == ("-m", "dcse_tf.cli") else ""
    return bool(job) and job not in ("train", "evaluate")


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def list_input_files(command: Sequence[str]) -> list[pathlib.Path]:
    """The files that a command names by absolute paths: FILE,FILE or FORMAT:FILE,FILE or
    --flag=FILE,FILE. Files in the work folder are not among them; other runs make these.
    """
    return [path for path in _list_paths(command) if os.path.isfile(path)]


def list_encoders(command: Sequence[str]) -> list[pathlib.Path]:
    """The folders of the encoders that a command names by absolute paths, as with files."""
    found = []
    for path in _list_paths(command):
        if os.path.isdir(path):
            with contextlib.suppress(InputError):  # a folder of something else
                found.append(resolve_checkpoint(str(path), "encoder"))
    return found


def _list_paths(command: Sequence[str]) -> list[pathlib.Path]:
    words = [word.partition("=")[2] if word.startswith("--") else word for word in command]
    names = [name for word in words for part in word.split(",") for name in _spellings(part)]
    return [pathlib.Path(name) for name in dict.fromkeys(names) if os.path.isabs(name)]


def _spellings(part: str) -> tuple[str, str]:
    return part, part.partition(":")[2]


def read_record(folder: pathlib.Path) -> dict[str, Any] | None:
    """Reads a run's `run.json`; None if there is none.

    Raises:
        RunError: the file is not a record of a run.
    """
    path = folder / _RECORD
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise RunError(f"{path}: not a record of a run: {error}") from error


def _write_record(folder: pathlib.Path, record: dict[str, Any]) -> None:
    with atomic_file(folder / _RECORD) as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _find_free_name(folder: pathlib.Path) -> pathlib.Path:
    number = 1
    while (path := folder.with_name(f"{folder.name}.before-{number}")).exists():
        number += 1
    return path


def read_flag_files(command: Sequence[str]) -> dict[str, list[str]]:
    """Path -> lines, for the flag files and presets that a command names, directly or indirectly.

    Names in a command are relative to the repository, names in a flag file to the file's folder.
    """
    found: dict[str, list[str]] = {}
    words = [(ROOT, word) for word in command]
    for word in command:
        presets = word.partition("--preset=")[2].split(",")
        words += [(ROOT, f"--flagfile=flags/{name}.flags") for name in presets if name]
    while words:
        folder, word = words.pop()
        given = word.partition("--flagfile=")[2]
        path = pathlib.Path(os.path.normpath(folder / given))
        name = os.path.relpath(path, ROOT)
        if given and name not in found and path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            found[name] = [line for line in lines if line.strip() and not line.startswith("#")]
            words += [(path.parent, line) for line in found[name]]
    return found


def read_commit() -> str:
    """The commit of this checkout, with "-dirty" if a tracked file differs; or "unknown".

    Changes to reports do not count, since they are tracked but are not code.
    """

    def git(*words: str) -> str:
        command = ["git", "--no-optional-locks", *words]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True
        ).stdout

    try:
        folder, commit = git("rev-parse", "--show-toplevel", "HEAD").splitlines()
        if pathlib.Path(folder).resolve() != ROOT:
            return UNKNOWN  # the files are a copy inside another checkout
        tracked = ("status", "--porcelain", "--untracked-files=no")
        changes = git(*tracked, "--", ".", ":!experiments/results")
    except (OSError, ValueError, subprocess.CalledProcessError):
        return UNKNOWN
    return f"{commit}-dirty" if changes else commit
