"""Flags from configurations, and configurations from flags."""

import dataclasses
import os
import re
import signal
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from absl import app, flags, logging

from dcse_tf.errors import InputError
from dcse_tf.input_files import resolve_inputs
from dcse_tf.options import OptionError, Options
from dcse_tf.plugins import load_plugins

T = TypeVar("T", bound=Options)

_DEFINE: dict[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    tuple: flags.DEFINE_list,
}


class _NumberOrWord(flags.IntegerParser):
    """An integer, or a word that stands for one."""

    def __init__(self, words: Mapping[str, int]):
        super().__init__()
        self._words = words
        self.syntactic_help = f"an integer or {', '.join(words)}"

    def convert(self, argument: Any) -> int:
        return self._words[argument] if argument in self._words else super().convert(argument)


_LONGEST = 1000  # characters of a message
_OPTION = re.compile("`([a-z][a-z0-9_]*)`")


def define_flags(
    config: type[Options], module: str, holder: flags.FlagValues = flags.FLAGS
) -> None:
    """Defines a flag for every setting, with its help and default.

    Args:
        config: the job's configuration.
        module: name of the job's module, under which --help lists the flags.
        holder: where they are defined.
    """
    for field in config.all_fields():
        rules, default = field.metadata, field.default
        help_text = as_flags(rules["help"] + (" Required." if rules["required"] else ""))
        if isinstance(rules["choices"], Mapping):
            entries = (f"{name} ({entry.help})" for name, entry in rules["choices"].items())
            help_text += f" One of: {'; '.join(entries)}."
        if isinstance(default, tuple):
            default = list(default)
        kind: Any = typing.get_origin(field.type) or field.type
        # Lower bounds are checked by the configuration too, which says which flag is wrong.
        if rules["choices"]:
            flags.DEFINE_enum(
                field.name,
                default,
                list(rules["choices"]),
                help_text,
                flag_values=holder,
                module_name=module,
            )
        elif rules["words"]:
            flags.DEFINE(
                _NumberOrWord(rules["words"]),
                field.name,
                default,
                help_text,
                flag_values=holder,
                serializer=flags.ArgumentSerializer(),
                module_name=module,
            )
        else:
            _DEFINE[kind](field.name, default, help_text, flag_values=holder, module_name=module)


def parse_flags(arguments: Sequence[str], holder: flags.FlagValues = flags.FLAGS) -> list[str]:
    """Parses a command line, the program's name first; returns the name.

    Raises:
        OptionError: a flag is not known or of another type, something is no flag, or a flag file
            cannot be read.
    """
    program, *given = arguments
    try:
        program, *others = holder([program, *_expand_flag_files(given)])
    except flags.Error as error:
        raise OptionError(f"{error}; see --help") from error
    if others:
        raise OptionError(
            f"{others[0]!r} is no flag: expected --flag=VALUE, files with commas between them"
        )
    return [program]


def _expand_flag_files(arguments: Sequence[str], within: tuple[str, ...] = ()) -> list[str]:
    """Arguments, or the lines of a flag file, with every --flagfile replaced by what is in it.

    absl would do it, but takes the names in a file relative to the working folder, so that a file
    which names another could be read from one place alone. Here they are relative to that file.

    Args:
        arguments: a flag each.
        within: the files that these are the lines of, the outermost first.
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
            with open(path, encoding="utf-8") as file:
                lines = [line.strip() for line in file]
        except (OSError, ValueError) as error:  # ValueError: no name of a file, or no UTF-8
            raise OptionError(f"--flagfile={path} cannot be read: {error}") from error
        if itself:
            raise OptionError(f"--flagfile={path}: the file names itself, in {within[-1]}")
        flags_of_it = [line for line in lines if line and not line.startswith(("#", "//"))]
        found += _expand_flag_files(flags_of_it, (*within, path))
    return found


def read_flags(config: type[T], holder: flags.FlagValues = flags.FLAGS) -> T:
    """The configuration that the flags given ask for; of all others it knows the defaults.

    Raises:
        OptionError: a setting is missing or out of range, or contradicts another.
    """
    found = [holder[field.name] for field in config.all_fields()]
    return config.from_dict({flag.name: flag.value for flag in found if flag.present})


def find_files(config: Options) -> None:
    """Looks for the files that the settings name, so that a job does not find out after loading.

    Raises:
        InputError: one of them is not there.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata["files"] and value:
            resolve_inputs(value if isinstance(value, tuple) else (value,), field.name)


def as_flags(message: str) -> str:
    """A message in which options, which elsewhere stand in backticks, are spelt as flags."""
    return _OPTION.sub(r"--\1", message)


def one_line(error: BaseException) -> str:
    """What an error says, on one line of bounded length, whatever the user's values hold."""
    text = " ".join(as_flags(str(error)[: 2 * _LONGEST]).splitlines())
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."


def _parse_or_exit(arguments: list[str]) -> list[str]:
    try:
        return parse_flags(arguments)
    except OptionError as error:
        sys.exit(f"error: {one_line(error)}")


def run(config: type[T], job: Callable[[T], None]) -> None:
    """Defines the flags, parses them and runs a job, with faults of the user's in one line.

    TensorFlow is imported by the job alone, so that --help and a wrong flag answer at once.
    """
    module = sys.argv[0]
    try:
        load_plugins()
    except InputError as error:
        sys.exit(f"error: {one_line(error)}")
    define_flags(config, module)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.set_verbosity(logging.INFO)

    def main(_: list[str]) -> None:
        try:
            settings = read_flags(config)
            find_files(settings)
            job(settings)
        except (OptionError, InputError, OSError) as error:
            sys.exit(f"error: {one_line(error)}")
        except MemoryError as error:
            sys.exit(f"error: out of memory {one_line(error)}".rstrip())
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            sys.exit(128 + signal.SIGINT)

    app.run(main, flags_parser=_parse_or_exit)
