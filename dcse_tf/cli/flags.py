"""Defines a job's flags from its options, and parses flags into options."""

import dataclasses
import os
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from absl import flags

from dcse_tf.cli.presets import find_presets
from dcse_tf.input_files import resolve_inputs
from dcse_tf.options import OptionError, Options
from dcse_tf.plugins import load_plugins
from dcse_tf.stores import is_url

T = TypeVar("T", bound=Options)

_DEFINE: dict[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    tuple: flags.DEFINE_list,
}
_LONGEST_MESSAGE = 1000  # characters
_OPTION = re.compile("`([a-z][a-z0-9_]*)`")


class _NumberOrWord(flags.ArgumentParser):
    """Parses a number, or a word that stands for one."""

    def __init__(self, kind: type, words: Mapping[str, float]):
        super().__init__()
        self._number: Any = flags.IntegerParser() if kind is int else flags.FloatParser()
        self._words = words
        self.syntactic_help = f"{self._number.syntactic_help} or {', '.join(words)}"

    def parse(self, argument: Any) -> Any:
        return self._words[argument] if argument in self._words else self._number.parse(argument)


def define_flags(options: type[Options], job: str) -> flags.FlagValues:
    """Defines a flag for each option, with its help and default.

    Args:
        options: the class of the job's options.
        job: the job's name, under which the help lists the flags.
    """
    holder = flags.FlagValues()
    for field in list_fields(options):
        rules = field.metadata
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        help_text = as_flags(rules["help"] + (" Required." if rules["required"] else ""))
        if isinstance(rules["choices"], Mapping):
            entries = (f"{name} ({entry.help})" for name, entry in rules["choices"].items())
            help_text += f" One of: {'; '.join(entries)}."
        where: dict[str, Any] = {"flag_values": holder, "module_name": job}
        # The options themselves check bounds.
        if rules["choices"]:
            flags.DEFINE_enum(field.name, default, list(rules["choices"]), help_text, **where)
        elif rules["words"]:
            parser = _NumberOrWord(plain_type(field.type), rules["words"])
            serializer = flags.ArgumentSerializer()
            flags.DEFINE(parser, field.name, default, help_text, serializer=serializer, **where)
        else:
            define = _DEFINE[plain_type(field.type)]
            define(field.name, default, help_text, **where)
    return holder


def list_fields(options: type[Options]) -> Sequence[dataclasses.Field]:
    """The options that a command line offers, including those of plug-ins."""
    load_plugins()
    return options.all_fields()


def plain_type(hint: Any) -> type:
    """The type under `X | None` and `tuple[X, ...]`."""
    arguments = [a for a in typing.get_args(hint) if a is not type(None)]
    if typing.get_origin(hint) is tuple:
        return tuple
    return arguments[0] if arguments else hint


def parse_flags(options: type[T], job: str, arguments: Sequence[str]) -> T:
    """Parses a command line into a job's options.

    Args:
        options: the class of the job's options.
        job: the job's name.
        arguments: the flags.

    Raises:
        OptionError: a flag is unknown or has the wrong type, an argument is not a flag, a flag file
            cannot be read, or an option is missing, out of range or contradicts another.
    """
    return options.from_dict(read_flags(options, job, arguments))


def read_flags(options: type[Options], job: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The values given on a command line; if a flag is repeated, the last value counts.

    Args, Raises: see `parse_flags`.
    """
    holder = define_flags(options, job)
    try:
        _, *others = holder([job, *expand_arguments(arguments, job)])
    except flags.Error as error:
        raise OptionError(f"{error}; see --help") from error
    if others:
        raise OptionError(
            f"{others[0]!r} is not a flag: expected --flag=VALUE, files with commas between them"
        )
    names = [field.name for field in list_fields(options)]
    return {name: holder[name].value for name in names if holder[name].present}


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
    files = find_presets(names, job) if names else []
    return [*_expand_flag_files(f"--flagfile={path}" for path in files), *others]


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


def as_flags(message: str) -> str:
    """Rewrites options in backticks in a message as flags: `seed` becomes --seed."""
    return _OPTION.sub(r"--\1", message)


def one_line(error: BaseException) -> str:
    """An error's message as one printable line of bounded length."""
    text = " ".join(as_flags(str(error)[: 2 * _LONGEST_MESSAGE]).splitlines())
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return shown if len(shown) <= _LONGEST_MESSAGE else f"{shown[:_LONGEST_MESSAGE]}..."
