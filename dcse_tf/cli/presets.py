"""Presets: the flag files that come with the package, selected by name."""

import dataclasses
import pathlib
import re
from collections.abc import Sequence

from dcse_tf.options import OptionError, show

# The comment line "# Command: dcse train --preset=mlm ..." of a flag file; JOB stands for any job.
_COMMAND = re.compile(r"^# Command: dcse (\w+)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Preset:
    """A flag file.

    Attributes:
        name: the path below the presets' folder without its suffix, such as "ecd/mlm".
        path: the file.
        summary: the first line of the file's comment.
        job: the job that the flags are for; "any" for every job.
    """

    name: str
    path: pathlib.Path
    summary: str
    job: str


def list_presets(job: str = "") -> list[Preset]:
    """The presets of a job, or of all jobs, sorted by path."""
    package = pathlib.Path(__file__).parent.parent
    # In a wheel the folder lies inside the package, in a clone of the repository beside it.
    folder = next(f for f in (package / "flags", package.parent / "flags") if f.is_dir())
    presets = []
    for path in sorted(folder.rglob("*.flags")):
        text = path.read_text(encoding="utf-8")
        command = _COMMAND.search(text)
        presets.append(
            Preset(
                name=path.relative_to(folder).with_suffix("").as_posix(),
                path=path,
                summary=text.partition("\n")[0].removeprefix("# "),
                job="any" if command is None or command[1] == "JOB" else command[1],
            )
        )
    return [preset for preset in presets if not job or preset.job in (job, "any")]


def find_presets(names: Sequence[str], job: str) -> list[pathlib.Path]:
    """The flag files of a job's presets.

    Raises:
        OptionError: a preset does not exist; the message lists those that do.
    """
    known = {preset.name: preset.path for preset in list_presets(job)}
    for name in names:
        if name not in known:
            raise OptionError(
                f"`preset`={show(name)}: expected one of {', '.join(known)} for the job {job}"
            )
    return [known[name] for name in names]


def describe_presets(job: str = "") -> str:
    """One line per preset: its name, its job unless `job` is given, and its summary."""
    presets = list_presets(job)
    width = max(len(preset.name) for preset in presets)
    lines = []
    for preset in presets:
        of = "" if job else f"{preset.job:16}"
        lines.append(f"  {preset.name:{width}}  {of}{preset.summary}")
    return "\n".join(lines)
