"""Reads a job's settings: flags of a command line, flag files, and the presets of the package.

Lies below the command line and the library's functions, which both take presets.
"""

import dataclasses
import os
import pathlib
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from absl import flags

from dcse_tf.input_files import resolve_inputs
from dcse_tf.options import OptionError, Options, show
from dcse_tf.stores import is_url

T = TypeVar("T", bound=Options)

_DEFINE: dict[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    tuple: flags.DEFINE_list,
}
# The comment line "# Command: dcse train --preset=mlm ..." of a flag file; JOB stands for any job.
_COMMAND = re.compile(r"^# Command: dcse (\w+)", re.MULTILINE)


class _NumberOrWord(flags.ArgumentParser):
    """Parses a number, or a word that stands for one."""

    def __init__(self, kind: type, words: Mapping[str, float]):
        super().__init__()
        self._number: Any = flags.IntegerParser() if kind is int else flags.FloatParser()
        self._words = words

    def parse(self, argument: Any) -> Any:
        return self._words[argument] if argument in self._words else self._number.parse(argument)


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

    Args, Raises: see `parse_flags`.
    """
    chosen, given = choose_options(options, job, arguments)
    holder = define_flags(options, chosen)
    try:
        _, *others = holder([job, *given])
    except flags.Error as error:
        raise OptionError(f"{error}; see --help") from error
    if others:
        raise OptionError(
            f"{others[0]!r} is not a flag: expected --flag=VALUE, files with commas between them"
        )
    names = {field.name for kind in (options, chosen) for field in dataclasses.fields(kind)}
    return chosen, {name: holder[name].value for name in names if holder[name].present}


def define_flags(*options: type[Options]) -> flags.FlagValues:
    """Defines a flag for each option of these classes; the options themselves check bounds."""
    holder = flags.FlagValues()
    for kind in options:
        types = typing.get_type_hints(kind)
        for name, field in kind.fields().items():
            rules, type_ = field.metadata, plain_type(types[name])
            where: dict[str, Any] = {"flag_values": holder, "help": "", "allow_override": True}
            if rules["choices"]:
                flags.DEFINE_enum(name, None, list(rules["choices"]), **where)
            elif rules["words"]:
                where["serializer"] = flags.ArgumentSerializer()
                flags.DEFINE(_NumberOrWord(type_, rules["words"]), name, None, **where)
            else:
                _DEFINE[type_](name, None, **where)
    return holder


def choose_options(
    options: type[Options], job: str, arguments: Sequence[str]
) -> tuple[type[Options], list[str]]:
    """The class of options that a command line chooses, and its flags, see `expand_arguments`.

    Args, Raises: see `parse_flags`.
    """
    chooser = options.choice()[0]
    if chooser and arguments and not arguments[0].startswith("-"):
        arguments = [f"--{chooser}={arguments[0]}", *arguments[1:]]
    given, chosen = expand_arguments(arguments, job), None
    for argument, following in zip(given, [*given, ""][1:], strict=True):
        flag, has_value, value = argument.partition("=")
        if chooser and flag in (f"--{chooser}", f"-{chooser}"):
            chosen = value if has_value else following
    return options.choose(chosen), given


def plain_type(hint: Any) -> type:
    """The type under `X | None` and `tuple[X, ...]`."""
    arguments = [a for a in typing.get_args(hint) if a is not type(None)]
    if typing.get_origin(hint) is tuple:
        return tuple
    return arguments[0] if arguments else hint


def expand_arguments(arguments: Iterable[str], job: str) -> list[str]:
    """Replaces flag files and presets in the arguments by the flags they contain.

    The flags of a flag file take its place, so that later flags override them. The flags of a
    preset come before all others, so that every other flag overrides them, wherever it stands.

    Raises:
        OptionError: a file cannot be read, or a preset does not exist.
    """
    names: list[str] = []
    others: list[str] = []
    rest = iter(_expand_flag_files(arguments))
    for argument in rest:
        flag, given, value = argument.partition("=")
        if flag in ("--preset", "-preset"):
            names += (value if given else next(rest, "")).split(",")
        else:
            others.append(argument)
    known = {preset.name: preset.path for preset in list_presets(job)} if names else {}
    for name in names:
        if name not in known:
            raise OptionError(
                f"`preset`={show(name)}: expected one of {', '.join(known)} for the job {job}"
            )
    return [*_expand_flag_files(f"--flagfile={known[name]}" for name in names), *others]


def _expand_flag_files(arguments: Iterable[str], within: tuple[str, ...] = ()) -> list[str]:
    """Replaces every --flagfile among flags by the flags in the file, recursively.

    absl could do this, but resolves names in a flag file relative to the working folder, so that
    nested flag files would work from one folder only. Here they are relative to the flag file.

    Args:
        arguments: the flags, one per entry.
        within: the nested flag files that the flags come from, outermost first.
    """
    found: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        flag, given, name = argument.partition("=")
        if flag not in ("--flagfile", "-flagfile"):
            found.append(argument)
            continue
        name = os.path.expanduser((name if given else next(rest, "")).strip())
        path = os.path.join(os.path.dirname(within[-1]), name) if within else name
        try:
            itself = any(os.path.samefile(path, other) for other in within)
            with open(path, encoding="utf-8-sig") as file:
                lines = [line.strip() for line in file]
        except (OSError, ValueError) as error:  # ValueError: not a file name, or not UTF-8
            raise OptionError(f"--flagfile={path} cannot be read: {error}") from error
        if itself:
            raise OptionError(f"--flagfile={path}: the file names itself, in {within[-1]}")
        flags_of_it = [line for line in lines if line and not line.startswith(("#", "//"))]
        found += _expand_flag_files(flags_of_it, (*within, path))
    return found


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
