"""What all configurations share: options with help, validation, JSON in and out."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self

from dcse_tf.files import atomic_file
from dcse_tf.input_files import parse_json

# What TensorFlow takes: int32 and float32.
_LARGEST_INT = 2**31 - 1
_LARGEST_FLOAT = 3e38
_LONGEST_SHOWN = 100
# Folders of a run directory and of a prepared corpus, which are read where those are named.
_PARTS = ("encoder", "checkpoints", "vocabulary")


class OptionError(ValueError):
    """A setting that cannot be used; the message names the flag and what was expected."""


def option(
    default: Any,
    help: str,
    *,
    choices: Collection[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    or_zero: bool = False,
    required: bool = False,
    words: Mapping[str, int] | None = None,
    reads: bool = False,
    files: bool = False,
    writes: bool = False,
    ignored_elsewhere: bool = False,
) -> Any:
    """A field of a configuration, from which its command-line flag is made.

    Args:
        default: the value when the option is not given.
        help: what `--help` says, with the unit.
        choices: the values allowed, if they are few; may be a registry that grows later. Entries
            of a mapping say in their `help` what they are.
        minimum: the smallest number allowed.
        maximum: the largest number allowed.
        or_zero: whether 0 is allowed below the smallest, for a value that the job works out.
        required: whether the job cannot run without it.
        words: numbers that the command line may give as a word.
        reads: whether it names files or folders that the job reads.
        files: whether it names files that the job reads; the command line looks for them before
            anything is loaded.
        writes: whether it names a file or a folder that the job replaces.
        ignored_elsewhere: whether a sibling class without this option ignores it where it is
            given, so that one flag file can serve them all; otherwise it is refused there.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "or_zero": or_zero,
        "required": required,
        "words": words or {},
        "reads": reads or files,
        "files": files,
        "writes": writes,
        "ignored_elsewhere": ignored_elsewhere,
    }
    return dataclasses.field(default=default, metadata=metadata)


def redefault(owner: "type[Options]", name: str, default: Any) -> Any:
    """An option of a base class with another default, and the same help and bounds.

    For example `learning_rate: float = redefault(TrainOptions, "learning_rate", 2e-5)`.
    """
    metadata = next(field.metadata for field in dataclasses.fields(owner) if field.name == name)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Options:
    """Base of the configurations. Checks itself when it is made."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))
        _refuse_loss(self)

    @classmethod
    def all_fields(cls) -> Sequence[dataclasses.Field]:
        """The options that a command line offers; a family of classes offers those of all."""
        return dataclasses.fields(cls)

    def refuse(self, name: str, why: str) -> NoReturn:
        """Raises OptionError: a setting contradicts the others."""
        raise OptionError(f"`{name}`={show(getattr(self, name))}: {why}")

    def is_given(self, name: str) -> bool:
        """Whether a setting has another value than its default."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return getattr(self, name) != defaults[name]

    def replace(self, **changes: Any) -> Self:
        """A copy with some values changed; unknown names raise OptionError."""
        _refuse_unknown(type(self), changes)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Builds a configuration; unknown names raise OptionError."""
        _refuse_unknown(cls, values)
        # JSON has lists only; list options are tuples, so that a configuration cannot change.
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})

    def write_json(self, path: pathlib.Path) -> None:
        """Writes the configuration, atomically."""
        with atomic_file(path) as partial:
            partial.write_text(json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n")

    @classmethod
    def read_json(cls, path: pathlib.Path) -> Self:
        """Reads what `write_json` wrote; a broken file raises OptionError with its name."""
        try:
            return cls.from_dict(parse_json(path.read_text()))
        except (ValueError, TypeError) as error:
            raise OptionError(f"{path}: not a {cls.__name__}: {error}") from error


def _refuse_unknown(cls: type, values: Mapping[str, Any]) -> None:
    known = {field.name for field in dataclasses.fields(cls)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise OptionError(
            f"unknown setting {', '.join(unknown)}; {cls.__name__} knows {', '.join(sorted(known))}"
        )


def _check(field: dataclasses.Field, value: Any) -> None:
    rules = field.metadata
    if rules["required"] and value in ("", None, ()):
        raise OptionError(f"`{field.name}` is required: {rules['help']}")
    if value is None:
        return
    if rules["choices"] and value not in rules["choices"]:
        raise OptionError(
            f"`{field.name}`={show(value)}: expected one of "
            f"{', '.join(map(repr, rules['choices']))}"
        )
    zero = rules["or_zero"] and value == 0
    if rules["minimum"] is not None and not value >= rules["minimum"] and not zero:
        raise OptionError(
            f"`{field.name}`={show(value)}: expected {'0 or ' if rules['or_zero'] else ''}"
            f"at least {rules['minimum']}"
        )
    if rules["maximum"] is not None and not value <= rules["maximum"]:
        raise OptionError(f"`{field.name}`={show(value)}: expected at most {rules['maximum']}")
    _check_type(field.name, value)


def _check_type(name: str, value: Any) -> None:
    """What no setting may be: a number that the job cannot count with, a name no file can have."""
    texts = value if isinstance(value, tuple) else (value,)
    if isinstance(value, tuple) and not all(value):
        raise OptionError(f"`{name}`={show(value)}: an entry is empty")
    for text in texts:
        if isinstance(text, str) and not _is_plain(text):
            raise OptionError(f"`{name}`={show(value)}: holds a null character or is not UTF-8")
    if isinstance(value, float) and not abs(value) <= _LARGEST_FLOAT:
        raise OptionError(f"`{name}`={value}: expected at most {_LARGEST_FLOAT:g}, a finite number")
    if isinstance(value, int) and value > _LARGEST_INT:
        raise OptionError(f"`{name}`={show(value)}: expected at most {_LARGEST_INT}")


def _is_plain(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, or bytes of a name that is not UTF-8
        return False
    return "\0" not in text


def show(value: Any) -> str:
    """A value as a message has it: a line, and not a long one."""
    if isinstance(value, tuple):
        return show(",".join(value))
    if isinstance(value, int) and abs(value) > _LARGEST_INT:
        return f"{'-' if value < 0 else ''}(a number of {value.bit_length()} bits)"
    text = str(value)[: _LONGEST_SHOWN + 1]
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return shown if len(text) <= _LONGEST_SHOWN else f"{shown}..."


def _refuse_loss(options: Options) -> None:
    """What a job writes must not take the place of what it reads, nor lie in a part of it.

    Elsewhere in a folder that is read it may lie: RUN/export is nobody's. No file is looked at.
    """
    fields = dataclasses.fields(options)
    for output in (field.name for field in fields if field.metadata["writes"]):
        written = getattr(options, output)
        if not written:
            continue
        if os.path.basename(os.path.normpath(written)) in ("", ".", ".."):
            raise OptionError(f"`{output}`={show(written)}: expected a name, not a folder's place")
        target = os.path.abspath(written)
        for name, source in _sources(options):
            path = os.path.abspath(source)
            if _lies_in(path, target):
                raise OptionError(
                    f"`{output}`={show(written)}: would take the place of `{name}`={show(source)}"
                )
            parts = [path] if os.path.basename(path) in _PARTS else []
            parts += [os.path.join(path, part) for part in _PARTS]
            if any(_lies_in(target, part) for part in parts):
                raise OptionError(
                    f"`{output}`={show(written)}: lies in what `{name}`={show(source)} reads"
                )


def _lies_in(path: str, folder: str) -> bool:
    """Whether an absolute path is the other, or below it."""
    return path == folder or path.startswith(os.path.join(folder, ""))


def _sources(options: Options) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.metadata["reads"]:
            paths = value if isinstance(value, tuple) else (value,)
            yield from ((field.name, path) for path in paths if path)
