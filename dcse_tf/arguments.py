"""Reads a job's settings: flags of a command line, flag files, and the presets of the package.

Lies below the command line and the library's functions, which both take presets.
"""

import importlib
import os
import pathlib
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from absl import flags

from dcse_tf.options import OptionError, Options, show

T = TypeVar("T", bound=Options)


def load(path: str) -> Any:
    """What a path such as "training.merge:merge" names in the package."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f"dcse_tf.{module}"), name)


# The comment line "# Command: dcse train --preset=mlm ..." of a flag file; JOB stands for any job.
_COMMAND = re.compile(r"^# Command: dcse (\w+)", re.MULTILINE)


def parse_flags(options: type[T], job: str, arguments: Sequence[str]) -> T:
    """Parses a job's command line into its options.

    If their class stands for several, the first argument may name the one: `dcse train mlm` is
    `dcse train --task=mlm`.
    """
    return options.from_dict(read_flags(options, job, arguments)[1])


def read_flags(
    options: type[Options], job: str, arguments: Sequence[str]
) -> tuple[type[Options], dict[str, Any]]:
    """The class of options that the flags choose, and the values given; the last one counts.

    The flags of a preset come before all others, so that every other flag overrides them, wherever
    it stands. Those of a flag file take its place.
    """
    chooser = options.choice()[0]
    if chooser and arguments and not arguments[0].startswith("-"):
        arguments = [f"--{chooser}={arguments[0]}", *arguments[1:]]
    presets, others = _take("preset", _expand_flag_files(arguments))
    names = [name for value in presets for name in value.split(",")]
    known = {preset.name: preset.path for preset in list_presets(job)} if names else {}
    for name in names:
        if name not in known:
            expected = f"expected one of {', '.join(known)} for the job {job}"
            raise OptionError(f"`preset`={show(name)}: {expected}")
    given = [*_expand_flag_files(f"--flagfile={known[name]}" for name in names), *others]

    chosen = options.choose(*_take(chooser, given)[0][-1:])
    holder = flags.FlagValues()
    for name, type_ in (options.types() | chosen.types()).items():
        # All else is converted and checked by the options themselves.
        define = {bool: flags.DEFINE_bool, tuple: flags.DEFINE_list}.get(type_, flags.DEFINE_string)
        define(name, None, "", flag_values=holder)
    try:
        _, *strays = holder([job, *given])
    except flags.Error as error:
        raise OptionError(f"{error}; see --help") from error
    if strays:
        raise OptionError(
            f"{strays[0]!r} is not a flag: expected --flag=VALUE, files with commas between them"
        )
    return chosen, {name: holder[name].value for name in holder if holder[name].present}


def _take(name: str, arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """The values of a flag, and the other arguments."""
    values, others, rest = [], [], iter(arguments)
    for argument in rest:
        flag, given, value = argument.partition("=")
        if flag in (f"--{name}", f"-{name}"):
            values.append(value if given else next(rest, ""))
        else:
            others.append(argument)
    return values, others


def _expand_flag_files(arguments: Iterable[str], within: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields the arguments with the flags of each file in its place, recursively.

    Here, unlike in absl, a name in a flag file is relative to the file, not to the working folder.
    `within` are the nested flag files that the arguments come from, outermost first.
    """
    rest = iter(arguments)
    for argument in rest:
        flag, given, name = argument.partition("=")
        if flag not in ("--flagfile", "-flagfile"):
            yield argument
            continue
        name = os.path.expanduser((name if given else next(rest, "")).strip())
        path = os.path.join(os.path.dirname(within[-1]), name) if within else name
        try:
            itself = any(os.path.samefile(path, other) for other in within)
            lines = pathlib.Path(path).read_text(encoding="utf-8-sig").split("\n")
        except (OSError, ValueError) as error:  # ValueError: not a file name, or not UTF-8
            raise OptionError(f"--flagfile={path} cannot be read: {error}") from error
        if itself:
            raise OptionError(f"--flagfile={path}: the file names itself, in {within[-1]}")
        # A prefix may end in a space.
        flags_of_it = [line.lstrip() for line in lines if not re.match(r"\s*(#|//|$)", line)]
        yield from _expand_flag_files(flags_of_it, (*within, path))


class Preset(typing.NamedTuple):
    """A flag file that comes with the package."""

    name: str  # the path below the presets' folder without its suffix, such as "ecd/mlm"
    path: pathlib.Path
    summary: str  # the first line of the file's comment
    job: str  # the job that the flags are for; "any" for every job


def list_presets(job: str = "") -> list[Preset]:
    """The presets of a job, or of all jobs, sorted by path."""
    package = pathlib.Path(__file__).parent
    # In a wheel the folder lies inside the package, in a clone of the repository beside it.
    folder = next(f for f in (package / "flags", package.parent / "flags") if f.is_dir())
    presets = []
    for path in sorted(folder.rglob("*.flags")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(folder).with_suffix("").as_posix()
        of = [*_COMMAND.findall(text), "any"][0].replace("JOB", "any")
        presets.append(Preset(name, path, text.partition("\n")[0].removeprefix("# "), of))
    return [preset for preset in presets if not job or preset.job in (job, "any")]
