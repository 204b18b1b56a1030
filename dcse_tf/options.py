"""The base of all configurations: options with help texts, validation, JSON input and output."""

import copy
import dataclasses
import os
import pathlib
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Self

from dcse_tf.files import atomic_file, write_json
from dcse_tf.input_files import parse_json
from dcse_tf.plugins import load_plugins

# The ranges of TensorFlow's int32 and float32.
_LARGEST_INT = 2**31 - 1
_LARGEST_FLOAT = 3e38
_LONGEST_SHOWN = 100
# Folders that a job reads when it is given their run directory or prepared corpus.
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
    words: Mapping[str, float] | None = None,
    reads: bool = False,
    files: bool = False,
    writes: bool = False,
    renews: bool = False,
    resumes: bool = False,
    on_cluster: bool = False,
    ignored_elsewhere: bool = False,
) -> Any:
    """Declares a field of a configuration; its command-line flag is made from it.

    Args:
        default: the value when the option is not given.
        help: the text of `--help`, with the unit.
        choices: the allowed values, if there are only a few. May be a registry that grows later;
            in a mapping, the `help` attribute of each entry describes it.
        minimum: the smallest number allowed.
        maximum: the largest number allowed.
        or_zero: whether 0 is allowed although it is below `minimum`; the job then chooses a value.
        required: whether the option must be given.
        words: word -> number, for numbers that the command line may give as a word.
        reads: whether it names files or folders that the job reads.
        files: whether it names files that the job reads; the command line checks that they exist
            before anything is loaded.
        writes: whether it names a file or folder that the job replaces.
        renews: whether the job replaces it without `overwrite`, which is about something else.
        resumes: whether it names a folder that a later run of the job continues or uses.
        on_cluster: whether, with `spark_master`, it names what the cluster's tasks read or write.
        ignored_elsewhere: whether the entries of a family without this option ignore it, so that
            one flag file can serve them all; otherwise they refuse it.
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
        "renews": renews,
        "resumes": resumes,
        "on_cluster": on_cluster,
        "ignored_elsewhere": ignored_elsewhere,
    }
    return dataclasses.field(default=default, metadata=metadata)


def redefault(owner: "type[Options]", name: str, default: Any) -> Any:
    """Redeclares an option of a base class with another default but the same help and bounds.

    For example `learning_rate: float = redefault(TrainOptions, "learning_rate", 2e-5)`.
    """
    metadata = next(field.metadata for field in dataclasses.fields(owner) if field.name == name)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Options:
    """Base class of the configurations; validates its values when constructed.

    Attributes:
        family: the family that this class stands for on the command line. It does not apply to
            subclasses.
    """

    family: ClassVar["Family | None"] = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))
        _refuse_loss(self)

    @classmethod
    def all_fields(cls) -> Sequence[dataclasses.Field]:
        """The options that the command line offers; for a family, those of all its entries."""
        family = vars(cls).get("family")
        return family.merge_fields(cls) if family else dataclasses.fields(cls)

    def refuse(self, name: str, why: str) -> NoReturn:
        """Raises OptionError for a setting that contradicts others; `why` completes the message."""
        raise OptionError(f"`{name}`={show(getattr(self, name))}: {why}")

    def is_given(self, name: str) -> bool:
        """Whether a setting differs from its default."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return getattr(self, name) != defaults[name]

    def check_needed(self, name: str, *others: str) -> None:
        """Refuses the first of `others` that is given although the option `name` is not in use."""
        for other in others:
            if self.is_given(other) and not getattr(self, name):
                self.refuse(other, f"has no meaning without `{name}`")

    def replace(self, **changes: Any) -> Self:
        """A copy with some values changed; unknown names raise OptionError."""
        _refuse_unknown(type(self), changes)
        return dataclasses.replace(self, **changes)

    def list_files(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yields (option name, files) for each option that names files the job reads."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata["files"] and value:
                yield field.name, value if isinstance(value, tuple) else (value,)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Builds a configuration; for a family, that of the entry that the values choose.

        Raises:
            OptionError: an option is unknown, belongs to other entries, or has an invalid value.
        """
        if family := vars(cls).get("family"):
            return family.choose(cls, values)
        _refuse_unknown(cls, values)
        # JSON has only lists; options are tuples, so that a configuration is immutable.
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})

    def write_json(self, path: pathlib.Path) -> None:
        """Writes the configuration, atomically."""
        with atomic_file(path) as partial:
            write_json(partial, self.to_dict(), sort_keys=True)

    @classmethod
    def read_json(cls, path: pathlib.Path) -> Self:
        """Reads what `write_json` wrote; a broken file raises OptionError with its name."""
        try:
            return cls.from_dict(parse_json(path.read_text()))
        except (ValueError, TypeError) as error:
            raise OptionError(f"{path}: not a {cls.__name__}: {error}") from error


class Entry(typing.Protocol):
    """What a family requires of an entry."""

    @property
    def name(self) -> str:
        """The value of the choosing option that selects this entry."""

    @property
    def options(self) -> type[Options]:
        """The class of its options."""


E = typing.TypeVar("E", bound=Entry)


@dataclasses.dataclass(frozen=True)
class Family(typing.Generic[E]):
    """Entries with options of their own; one option of the command line chooses among them.

    The command line has the options of all entries. An option that several entries have is one
    flag, so they must declare it identically, except for its default (see `redefault`).

    Attributes:
        chooser: the name of the option that chooses.
        entries: name -> entry, in the order of registration.
    """

    chooser: str
    entries: dict[str, E] = dataclasses.field(default_factory=dict)

    def register(self, entry: E) -> None:
        """Adds an entry.

        Raises:
            ValueError: the name is empty or taken, or another entry declares one of the options
                differently.
        """
        who = f"{self.chooser} {entry.name!r}"
        if not entry.name or entry.name in self.entries:
            raise ValueError(f"{who}: expected a name that no other has")
        declared = self._list_fields()
        for field in _resolve_fields(entry.options):
            for other, theirs in declared.get(field.name, {}).items():
                if (field.type, field.metadata) != (theirs.type, theirs.metadata):
                    raise ValueError(
                        f"{who}: declares option {field.name!r} differently from {other!r}, and "
                        "one flag stands for both; give it another name, or only another default "
                        "by redefault"
                    )
        self.entries[entry.name] = entry

    def choose(self, cls: type[Options], values: Mapping[str, Any]) -> Any:
        """Builds the options of the entry that the values choose, or of the default entry.

        Args:
            cls: the class that stands for the family.
            values: option name -> value.

        Raises:
            OptionError: an option is unknown, belongs to other entries, or has an invalid value.
        """
        load_plugins()
        field = self._find_chooser(cls)
        name: Any = values.get(self.chooser) or field.default
        _check(field, name)
        options = self.entries[name].options
        declared = self._list_fields()
        kept = {}
        for key, value in {**values, self.chooser: name}.items():
            owners = declared.get(key, {})
            if name in owners or not owners:  # `from_dict` refuses unknown ones
                kept[key] = value
            elif not any(field.metadata["ignored_elsewhere"] for field in owners.values()):
                raise OptionError(
                    f"`{key}`={show(value)}: has no meaning with `{self.chooser}`={name}, only "
                    f"with {', '.join(owners)}"
                )
        if self.chooser not in declared:
            del kept[self.chooser]
        return options.from_dict(kept)

    def merge_fields(self, cls: type[Options]) -> list[dataclasses.Field]:
        """The choosing option, and one field for each option that any entry has.

        The help text says where entries differ. If their defaults differ, the field's is None.
        """
        load_plugins()
        declared = self._list_fields()
        declared.pop(self.chooser, None)
        return [self._find_chooser(cls), *map(self._merge, declared.values())]

    def _merge(self, fields: dict[str, dataclasses.Field]) -> dataclasses.Field:
        """Merges the fields of one option; `fields` maps the names of entries to them."""
        merged = copy.copy(next(iter(fields.values())))
        text = merged.metadata["help"]
        if without := [name for name in self.entries if name not in fields]:
            few = len(without) < len(fields)
            text += f" Not for {', '.join(without)}." if few else f" Only for {', '.join(fields)}."

        by_default: dict[Any, list[str]] = {}
        for name, field in fields.items():
            by_default.setdefault(field.default, []).append(name)
        if len(by_default) > 1:
            merged.default = None
            usual = max(by_default, key=lambda value: len(by_default[value]))
            del by_default[usual]
            told = (f"{_tell(value)} ({', '.join(names)})" for value, names in by_default.items())
            text += f" Default: {'; '.join(told)}; otherwise {_tell(usual)}."
        merged.metadata = types.MappingProxyType({**merged.metadata, "help": text})
        return merged

    def _find_chooser(self, cls: type[Options]) -> dataclasses.Field:
        return next(field for field in _resolve_fields(cls) if field.name == self.chooser)

    def _list_fields(self) -> dict[str, dict[str, dataclasses.Field]]:
        """Option name -> entry name -> field, for every option of every entry."""
        found: dict[str, dict[str, dataclasses.Field]] = {}
        for name, entry in self.entries.items():
            for field in _resolve_fields(entry.options):
                found.setdefault(field.name, {})[name] = field
        return found


def _tell(default: Any) -> str:
    return show(default) or "none"


def _resolve_fields(cls: type[Options]) -> list[dataclasses.Field]:
    """Copies of the fields, with annotations resolved to types where they are strings."""
    hints = typing.get_type_hints(cls)
    fields = [copy.copy(field) for field in dataclasses.fields(cls)]
    for field in fields:
        field.type = hints[field.name]
    return fields


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
    """Refuses numbers that TensorFlow cannot represent and texts that cannot be file names."""
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
    except UnicodeEncodeError:  # a lone surrogate, for instance from a file name that is not UTF-8
        return False
    return "\0" not in text


def show(value: Any) -> str:
    """Formats a value for a message: one line of limited length."""
    if isinstance(value, tuple):
        return show(",".join(value))
    if isinstance(value, int) and abs(value) > _LARGEST_INT:
        return f"{'-' if value < 0 else ''}(a number of {value.bit_length()} bits)"
    text = str(value)[: _LONGEST_SHOWN + 1]
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return shown if len(text) <= _LONGEST_SHOWN else f"{shown}..."


def _refuse_loss(options: Options) -> None:
    """Refuses an output that would overwrite an input or lie inside a part of one.

    An output may lie elsewhere in an input folder, such as RUN/export. Only paths are compared; no
    file is accessed.
    """
    fields = dataclasses.fields(options)
    for output in (field.name for field in fields if field.metadata["writes"]):
        written = getattr(options, output)
        if not written:
            continue
        if os.path.basename(os.path.normpath(written)) in ("", ".", ".."):
            raise OptionError(
                f"`{output}`={show(written)}: expected the name of a file or a folder"
            )
        target = os.path.abspath(written)
        for name, source in _sources(options):
            path = os.path.abspath(source)
            if _lies_in(path, target):
                raise OptionError(
                    f"`{output}`={show(written)}: would overwrite `{name}`={show(source)}"
                )
            parts = [path] if os.path.basename(path) in _PARTS else []
            parts += [os.path.join(path, part) for part in _PARTS]
            if any(_lies_in(target, part) for part in parts):
                raise OptionError(
                    f"`{output}`={show(written)}: lies inside what `{name}`={show(source)} reads"
                )


def _lies_in(path: str, folder: str) -> bool:
    """Whether an absolute path is the folder itself or lies below it."""
    return path == folder or path.startswith(os.path.join(folder, ""))


def _sources(options: Options) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.metadata["reads"]:
            paths = value if isinstance(value, tuple) else (value,)
            yield from ((field.name, path) for path in paths if path)
