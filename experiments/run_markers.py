"""What a run leaves in its folder to be known by: `run.json`."""

import hashlib
import json
import os
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any

from dcse_tf.files import atomic_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
MARKER = "run.json"
UNKNOWN = "unknown"
Commands = Sequence[Sequence[str]]


class RunError(RuntimeError):
    """A run failed, or cannot be begun; the message names the folder or the log."""


def begin_marker(folder: pathlib.Path, commands: Commands, digest: str) -> dict[str, Any]:
    """Makes the folder and its marker; nothing is finished."""
    marker: dict[str, Any] = {
        "digest": digest,
        "commands": [list(command) for command in commands],
        "flag_files": read_flag_files(commands),
        "commits": [],
        "finished": 0,
        "seconds": 0.0,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_marker(folder, marker)
    return marker


def read_marker(folder: pathlib.Path) -> dict[str, Any] | None:
    """The marker of a folder; None where there is none.

    Raises:
        RunError: there is a file of this name that is something else.
    """
    path = folder / MARKER
    if not path.is_file():
        return None
    try:
        marker = json.loads(path.read_text(encoding="utf-8"))
        for name in ("digest", "commands", "flag_files", "finished", "seconds"):
            marker[name]
        marker.setdefault("commits", [UNKNOWN])  # before they were recorded
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: not a marker of these scripts: {error!r}") from error
    return marker


def write_marker(folder: pathlib.Path, marker: dict[str, Any]) -> None:
    with atomic_file(folder / MARKER) as partial:
        partial.write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")


def read_commit() -> str:
    """The commit of this checkout, with "-dirty" where a tracked file differs; or "unknown".

    Reports are tracked, but no code: writing one leaves the code as it is.
    """

    def git(*words: str) -> str:
        command = ["git", "--no-optional-locks", *words]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True
        ).stdout

    try:
        folder, commit = git("rev-parse", "--show-toplevel", "HEAD").splitlines()
        if pathlib.Path(folder).resolve() != ROOT.resolve():
            return UNKNOWN  # a copy of the files inside some other checkout
        changes = git(
            "status", "--porcelain", "--untracked-files=no", "--", ".", ":!experiments/results"
        )
    except (OSError, ValueError, subprocess.CalledProcessError):
        return UNKNOWN
    return f"{commit}-dirty" if changes else commit


def compute_digest(commands: Commands, needs: Sequence[str]) -> str:
    """Of the commands, of what their flag files say, and of the runs that are needed."""
    content = [[list(command) for command in commands], read_flag_files(commands), list(needs)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def describe_change(marker: dict[str, Any], commands: Commands) -> str:
    """What another digest comes from."""
    before = {word for command in marker["commands"] for word in command}
    now = {word for command in commands for word in command}
    if before != now:
        gone, come = (" ".join(sorted(words)) for words in (before - now, now - before))
        return f"was {gone or '(less)'}, is {come or '(less)'}"
    if marker["commands"] != [list(command) for command in commands]:
        return "the same flags in another order"
    if marker["flag_files"] != read_flag_files(commands):
        return "a flag file has another content"
    return "what it needs has changed"


def read_flag_files(commands: Commands) -> dict[str, list[str]]:
    """Lines of the flag files that the commands name, and of those that these name.

    A command's names are relative to the repository, those in a file to its own folder.
    """
    found: dict[str, list[str]] = {}
    words = [(ROOT, word) for command in commands for word in command]
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
