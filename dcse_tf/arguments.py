"""Reads a job's settings: flags of a command line, flag files, and the presets of the package.

Lies below the command line and the library's functions, which both take presets.
"""

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from dcse_tf.input_files import resolve_inputs
from dcse_tf.options import OptionError, Options, show
from dcse_tf.stores import is_url

T = TypeVar("T", bound=Options)

# The comment line "# Command: dcse train --preset=mlm ..." of a flag file; JOB stands for any job.
_COMMAND = re.compile(r"^# Command: dcse (\w+)", re.MULTILINE)
_FLAG = re.compile(r"--?(\w+)(?:=(.*))?", re.DOTALL)


def parse_flags(options: type[T], job: str, arguments: Sequence[str]) -> T:
    """Parses a command line into a job's options.

    Args:
        options: the class of the job's options. If it stands for several, the first argument may
            name the one: `dcse train mlm` is `dcse train --task=mlm`.
        job: the job's name.
        arguments: the flags.

    Raises:
        OptionError: a flag is unknown or has the wrong type, an argument is not a flag, a flag file
            cannot be read, or an option is missing, out of range or contradicts another.
    """
    return options.from_dict(read_flags(options, job, arguments)[1])


def read_flags(
    options: type[Options], job: str, arguments: Sequence[str]
) -> tuple[type[Options], dict[str, Any]]:
    """The class of options that the flags choose, and the values given; the last one counts.

    The flags of a preset come before all others, so that every other flag overrides them, wherever
    it stands. Those of a flag file take its place.

    Args, Raises: see `parse_flags`.
    """
    chooser = options.choice()[0]
    if chooser and arguments and not arguments[0].startswith("-"):
        arguments = [f"--{chooser}={arguments[0]}", *arguments[1:]]
    given = list(_split(arguments))
    presets = [name for flag, value in given if flag == "preset" for name in str(value).split(",")]
    known = {preset.name: preset.path for preset in list_presets(job)} if presets else {}
    for name in presets:
        if name not in known:
            expected = f"expected one of {', '.join(known)} for the job {job}"
            raise OptionError(f"`preset`={show(name)}: {expected}")
    of_presets = _split(f"--flagfile={known[name]}" for name in presets)
    given = [*of_presets, *(pair for pair in given if pair[0] != "preset")]
    # What a file for several jobs may hold although a job does not know it.
    ignored = {name for flag, value in given if flag == "undefok" for name in str(value).split(",")}

    chosen = options.choose(dict(given).get(chooser))
    types = options.types() | chosen.types()
    values: dict[str, Any] = {}
    for flag, value in given:
        name = flag.removeprefix("no") if value is True and flag not in types else flag
        if name not in types and flag in {*ignored, "undefok"}:
            continue
        if name not in types:
            raise OptionError(f"unknown flag --{show(flag)}; see --help")
        if types[name] is tuple and value is not True:
            value = [each.strip() for each in value.split(",")] if value else []
        values[name] = value if name == flag else False
    return chosen, values


def _split(arguments: Iterable[str], within: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yields the name and the value of each flag, also of those in flag files, recursively.

    The value is a text, or True for a flag alone. Names in a flag file are relative to it.

    Args:
        arguments: --name=value, or a name and a value by themselves.
        within: the nested flag files that the flags come from, outermost first.
    """
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not (found := _FLAG.fullmatch(argument)):
            raise OptionError(
                f"{show(argument)!r} is not a flag: expected --flag=value, files with commas "
                "between them"
            )
        name, value = found.groups()
        if value is None:
            value = rest.pop(0) if rest and not re.match("--?[a-z]", rest[0]) else True
        if name != "flagfile":
            yield name, value
            continue
        file = "" if value is True else os.path.expanduser(str(value).strip())
        path = os.path.join(os.path.dirname(within[-1]), file) if within else file
        try:
            itself = any(os.path.samefile(path, other) for other in within)
            lines = pathlib.Path(path).read_text(encoding="utf-8-sig").split("\n")
        except (OSError, ValueError) as error:  # ValueError: not a file name, or not UTF-8
            raise OptionError(f"--flagfile={show(path)} cannot be read: {error}") from error
        if itself:
            raise OptionError(f"--flagfile={path}: the file names itself, in {within[-1]}")
        flags = [line.strip() for line in lines if not re.match(r"\s*(#|//|$)", line)]
        yield from _split(flags, (*within, path))


def find_files(options: Options) -> None:
    """Checks that the files named by the options exist, before the job loads anything.

    Raises:
        InputError: a file does not exist.
    """
    for name, files in options.list_files():
        resolve_inputs([file for file in files if not is_url(file)], name)


@dataclasses.dataclass(frozen=True)
class Preset:
    """A flag file that comes with the package.

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
    package = pathlib.Path(__file__).parent
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
