"""Runs command lines, one after another or several at once, those alone that are not done yet.

Every run has a folder of its own in the work folder, with its log and a marker that holds the
commands it was begun with. Started again, what is done is used again, what was cut off goes on,
and what has another command now is done anew, with all that was made from it. Nothing is deleted:
the folder of a run that is done anew is moved aside.

Another commit of the code is no reason to do a run anew, since most commits change no result. The
marker has the commits that a run was made at, and reports name them.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from children import Children, last_lines
from run_markers import (
    MARKER,
    RunError,
    begin_marker,
    compute_digest,
    describe_change,
    read_commit,
    read_marker,
    write_marker,
)

from dcse_tf.files import lock_folder

WORK = "{work}"  # stands in commands for the work folder, which may be moved
_LOG = "log.txt"
_SHOWN = 8  # last lines of the log of a run that failed


@dataclasses.dataclass(frozen=True)
class Run:
    """One step of an experiment.

    Attributes:
        name: its folder in the work folder, such as "rows/ecd/cosine-seed0".
        commands: arguments of Python, one tuple a command, `WORK` standing for the work folder.
        outputs: files of its folder that are there when it is done.
        needs: names of the runs that it uses, which come before it.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...]
    needs: tuple[str, ...] = ()

    @property
    def kind(self) -> tuple:
        """Runs of a kind take about the same time."""
        return self.name.split("/")[0], tuple(command[:2] for command in self.commands)


_print = functools.partial(print, flush=True)


class Runner:
    """Does runs in their order.

    Args:
        work_dir: where all is written.
        runs: the runs; what one needs stands before it.
        say: takes a line on how far it is.
        jobs: how many runs at once, where what they need is done.

    Raises:
        ValueError: a run needs one that does not stand before it, or their folders overlap.
    """

    def __init__(
        self,
        work_dir: pathlib.Path,
        runs: Sequence[Run],
        say: Callable[[str], None] = _print,
        jobs: int = 1,
    ):
        self._work_dir = work_dir.resolve()
        self._runs = list(runs)
        self._say = say
        self._jobs = jobs
        self._digests: dict[str, str] = {}
        for run in self._runs:
            missing = [name for name in run.needs if name not in self._digests]
            inside = [n for n in self._digests if _inside(n, run.name) or _inside(run.name, n)]
            if missing or inside:
                raise ValueError(f"{run.name}: {missing} not before it, or in one folder: {inside}")
            needs = [self._digests[name] for name in run.needs]
            self._digests[run.name] = compute_digest(run.commands, needs)

    def run_all(self, dry_run: bool = False) -> None:
        """Does what is not done, or only says what that is.

        Raises:
            RunError: a run failed, or a folder is not of these scripts.
            LockedError: another start is at work.
        """
        if dry_run:
            for run in self._runs:
                state = self._state(run)
                self._say(f"# {run.name}: {state}")
                for command in run.commands if state != "done" else ():
                    self._say(f"python {' '.join(self._fill_in(command))}")
            return
        self._work_dir.mkdir(parents=True, exist_ok=True)
        with _locked(self._work_dir) as lock:
            children = Children(self._say, lock, self._jobs)
            with concurrent.futures.ThreadPoolExecutor(self._jobs) as pool:
                try:
                    self._run_ready(pool, children)
                finally:  # before the pool waits for its threads
                    children.stop()

    def _run_ready(self, pool: concurrent.futures.Executor, children: Children) -> None:
        """Begins every run as soon as what it needs is done and a place is free."""
        waiting = dict(enumerate(self._runs, start=1))
        busy: dict[concurrent.futures.Future, str] = {}
        while waiting or busy:
            open_names = {run.name for run in waiting.values()} | set(busy.values())
            for number, run in list(waiting.items()):
                if len(busy) == self._jobs:
                    break
                if open_names.isdisjoint(run.needs):
                    del waiting[number]
                    state = self._state(run)
                    if state == "done":
                        open_names.discard(run.name)
                        continue
                    place = f"[{number} of {len(self._runs)}] {run.name}"
                    self._say(f"{place}: {state}{self._remaining()}")
                    busy[pool.submit(self._do, run, state, children)] = run.name
            ended, _ = concurrent.futures.wait(busy, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ended:
                del busy[future]
                future.result()

    def _state(self, run: Run) -> str:
        folder = self._folder(run)
        marker = read_marker(folder)
        if marker is None:
            return "new"
        if marker["digest"] != self._digests[run.name]:
            return f"CHANGED, done anew: {describe_change(marker, run.commands)}"
        if marker["finished"] < len(run.commands):
            return "goes on"
        lost = self._lacking(run)
        return f"done anew, for {', '.join(lost)} is gone" if lost else "done"

    def _do(self, run: Run, state: str, children: Children) -> None:
        folder = self._folder(run)
        if state not in ("new", "goes on"):
            aside = _free_name(folder)
            folder.rename(aside)
            self._say(f"  what was there is now {aside}")
        marker = read_marker(folder)
        if marker is None:
            if folder.exists() and any(folder.iterdir()):
                raise RunError(
                    f"{folder}: no {MARKER} in it, so these scripts did not write it; move it "
                    "away, or give another --work_dir"
                )
            marker = begin_marker(folder, run.commands, self._digests[run.name])
        for command in run.commands[marker["finished"] :]:
            started = time.monotonic()
            marker["commits"] = list(dict.fromkeys([*marker["commits"], read_commit()]))
            write_marker(folder, marker)
            try:
                self._launch(run, command, children)
                if marker["finished"] + 1 == len(run.commands) and self._lacking(run):
                    lacking = ", ".join(self._lacking(run))
                    raise RunError(
                        f"{run.name}: ended without writing {lacking}; see {folder / _LOG}"
                    )
                marker["finished"] += 1
            finally:
                marker["seconds"] += time.monotonic() - started
                write_marker(folder, marker)

    def _launch(self, run: Run, command: tuple[str, ...], children: Children) -> None:
        log = self._folder(run) / _LOG
        words = self._fill_in(command)
        self._say(f"  $ python {' '.join(words)}")
        code = children.run(words, log)
        if code:
            last = "\n".join(f"    {line}" for line in last_lines(log, _SHOWN))
            raise RunError(f"{run.name}: exit status {code}; its log is {log}, which ends\n{last}")

    def _lacking(self, run: Run) -> list[str]:
        return [name for name in run.outputs if not (self._folder(run) / name).exists()]

    def _remaining(self) -> str:
        """What is left by the mean time of the runs of a kind that are done already."""
        spent: dict[tuple, list[float]] = {}
        to_do = []
        for run in self._runs:
            if self._state(run) != "done":
                to_do.append(run)
            elif marker := read_marker(self._folder(run)):
                spent.setdefault(run.kind, []).append(marker["seconds"])
        known = [spent[run.kind] for run in to_do if run.kind in spent]
        if not known:
            return ""
        left = sum(sum(seconds) / len(seconds) for seconds in known) / self._jobs
        unknown = len(to_do) - len(known)
        others = f", and {unknown} run(s) of a kind not timed yet" if unknown else ""
        return f" (about {left / 60:.0f} min left{others})"

    def _folder(self, run: Run) -> pathlib.Path:
        return self._work_dir / run.name

    def _fill_in(self, command: tuple[str, ...]) -> list[str]:
        return [word.replace(WORK, str(self._work_dir)) for word in command]


def _inside(name: str, other: str) -> bool:
    return name == other or name.startswith(f"{other}/")


def _free_name(folder: pathlib.Path) -> pathlib.Path:
    number = 1
    while (path := folder.with_name(f"{folder.name}.before-{number}")).exists():
        number += 1
    return path


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[int]:
    """Holds a lock that two starts cannot have at once; SIGTERM ends the children too."""

    def stop(*_: Any) -> None:
        raise SystemExit("stopped")

    with lock_folder(folder, "wait for it, or give another --work_dir") as lock:
        before = signal.signal(signal.SIGTERM, stop)
        try:
            yield lock
        finally:
            signal.signal(signal.SIGTERM, before)
