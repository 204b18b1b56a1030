"""The base of all configurations: options with help texts, validation, JSON input and output.

A configuration is a frozen dataclass. One field is a flag of the command line, a keyword of the
library's function, a key of the JSON and a check at once, and says itself what it is: what it
names on disk, whether it may change when a run is resumed, where `--help` shows it.
"""

import collections
import contextlib
import dataclasses
import functools
import importlib.metadata
import numbers
import os
import pathlib
import sys
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Literal, NoReturn, Self

from dcse_tf.errors import InputError, name_input
from dcse_tf.input_files import is_encodable, read_json_object, resolve_inputs

# The ranges of TensorFlow's int32 and float32.
_LARGEST_INT = 2**31 - 1
_LARGEST_FLOAT = 3e38
# Folders that a job reads when it is given their run directory or prepared corpus.
_PARTS = ("encoder", "checkpoints", "vocabulary")
_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_NUMBERS = {int: (str, numbers.Integral), float: (str, numbers.Real)}  # what they are made from


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
    words: Mapping[str, float] = types.MappingProxyType({}),
    required: bool = False,
    path: Literal["", "reads", "files", "writes", "renews", "resumes"] = "",
    resume: Literal["same", "free"] = "same",
    group: str = "",
) -> Any:
    """Declares a field of a configuration; its command-line flag is made from it.

    Args:
        default: the value when the option is not given.
        help: the text of `--help`, with the unit.
        choices: the allowed values, if there are only a few. May be a registry that grows later;
            in a mapping, the `help` attribute of each entry describes it.
        minimum, maximum: the smallest and the largest number allowed.
        or_zero: whether 0 is allowed although it is below `minimum`; the job then chooses a value.
        words: word -> number, for numbers that may be given as a word.
        required: whether the option must be given.
        path: what it names on disk, if anything. "reads": folders, or files that may not be there
            by this name, such as a checkpoint on a hub; "files": files, checked to exist before
            anything is loaded; "writes": an output that is replaced only with `overwrite`;
            "renews": one that is replaced; "resumes": a folder that a later run continues.
        resume: what a training run that is resumed says to another value. "same": it is refused;
            of what the job reads, the content is compared and not the name. "free": what was
            learnt so far does not depend on it.
        group: the heading in `--help`, by default its class' `class C(Options, group="encoder")`.
    """
    return dataclasses.field(default=default, metadata=locals())  # these arguments


@functools.cache
def load_plugins() -> None:
    """Loads the entry points of the group dcse_tf.plugins, once per process: modules, or functions
    without arguments, that register something, see docs/extending.md. Raises InputError if one
    cannot be loaded.
    """
    for point in importlib.metadata.entry_points(group="dcse_tf.plugins"):
        try:
            loaded = point.load()
            if callable(loaded):
                loaded()
        except Exception as error:
            # Whatever a plug-in raises, the message must name the plug-in.
            raise InputError(
                f"plug-in {point.name} ({point.value}) cannot be loaded: {error!r}; repair or "
                "uninstall it"
            ) from error


def is_edited(new: Any, old: Any) -> bool:
    """Whether two functions or classes have one module and name, as if a notebook's cell reran."""
    names = [(getattr(x, "__module__", ""), getattr(x, "__qualname__", id(x))) for x in (new, old)]
    return names[0] == names[1]


@typing.dataclass_transform(frozen_default=True)
@dataclasses.dataclass(frozen=True)
class Options:
    """Base class of the configurations, each a frozen dataclass; validates its values when made.

    A subclass gives an inherited option another default by a plain value, `epochs: float = 10.0`.
    Everything else about the option stays.
    """

    # For a class that stands for several, such as the options of `train`: the option that chooses
    # among them, and the registry of what it chooses, each entry with its `help` and the class of
    # its `options`.
    variants: ClassVar[tuple[str, Mapping[str, Any]] | None] = None

    def __init_subclass__(cls, group: str = "") -> None:
        fields = (vars(base).get("__dataclass_fields__", {}) for base in cls.__mro__[1:])
        inherited = collections.ChainMap[str, dataclasses.Field](*fields)
        for name in vars(cls).get("__annotations__", {}):
            own: Any = vars(cls).get(name, dataclasses.MISSING)
            if isinstance(own, dataclasses.Field):
                rules = {**own.metadata, "group": own.metadata.get("group") or group}
                setattr(cls, name, dataclasses.field(default=own.default, metadata=rules))
            elif name in inherited:
                field = dataclasses.field(default=own, metadata=inherited[name].metadata)
                setattr(cls, name, field)
        dataclasses.dataclass(frozen=True)(cls)

    def __post_init__(self) -> None:
        # What is missing is said after what is wrong.
        for name in sorted(self.fields(), key=lambda n: self.fields()[n].metadata["required"]):
            object.__setattr__(self, name, self.convert(name, getattr(self, name)))
        _refuse_loss(self)

    @classmethod
    @functools.cache
    def fields(cls) -> dict[str, dataclasses.Field]:
        """Name -> field, of each option."""
        return {field.name: field for field in dataclasses.fields(cls)}

    @classmethod
    @functools.cache
    def types(cls) -> dict[str, Any]:
        """Name -> the type of each option: bool, int, float, str, or tuple, which is of texts."""
        plain = {}
        for name, hint in typing.get_type_hints(cls).items():
            within = [each for each in typing.get_args(hint) if each is not type(None)]
            plain[name] = tuple if typing.get_origin(hint) is tuple else (within or [hint])[0]
        return {name: plain[name] for name in cls.fields()}

    @classmethod
    def choice(cls) -> tuple[str, Mapping[str, Any]]:
        """`variants` of this class itself, which do not apply to its subclasses; or ("", {})."""
        load_plugins()
        return vars(cls).get("variants") or ("", {})

    @classmethod
    def choose(cls, name: str | None = None) -> type["Options"]:
        """The class that a name chooses, or None by default; the class itself if it has no others.
        Raises OptionError if there is nothing of this name.
        """
        chooser, entries = cls.choice()
        if not chooser:
            return cls
        return entries[cls.convert(chooser, name or cls.fields()[chooser].default)].options

    def refuse(self, name: str, why: str) -> NoReturn:
        """Raises OptionError for a setting that contradicts others; `why` completes the message."""
        raise OptionError(f"`{name}`={show(getattr(self, name))}: {why}")

    def is_given(self, name: str) -> bool:
        """Whether a setting differs from its default."""
        return getattr(self, name) != self.fields()[name].default

    def check_needed(self, name: str, *others: str) -> None:
        """Refuses the first of `others` that is given although the option `name` is not in use."""
        for other in others:
            if self.is_given(other) and not getattr(self, name):
                self.refuse(other, f"has no meaning without `{name}`")

    def replace(self, **changes: Any) -> Self:
        """A copy with some values changed; unknown names raise OptionError."""
        return type(self).from_dict({**vars(self), **changes})

    def select(self, **rules: str) -> dict[str, Any]:
        """The values of the options of a kind, such as `select(resume="free")`."""
        return {
            name: getattr(self, name)
            for name, field in self.fields().items()
            if all(field.metadata[rule] == value for rule, value in rules.items())
        }

    def check_files(self) -> None:
        """Raises InputError if an option for files names one that is missing or overwritten."""
        if getattr(self, "spark_master", ""):
            return  # its cluster may read tables and URLs, which the job itself looks for
        outputs = (self.select(path="writes") | self.select(path="renews")).values()
        written = {os.path.realpath(path) for path in outputs if path}
        for name, value in self.select(path="files").items():
            if isinstance(value, tuple):
                for path in resolve_inputs(value, name):  # links and patterns of files, too
                    if os.path.realpath(path) in written:
                        raise InputError(f"`{name}`={path}: an output would overwrite it")
            elif value and not pathlib.Path(value).is_file():  # one file, and no pattern of files
                found = "is a folder" if pathlib.Path(value).is_dir() else "no such file"
                raise InputError(f"`{name}`={value}: {found}; expected one file")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Builds a configuration; of a class that stands for several, the one that is chosen.

        Values are texts of flags, or of Python, NumPy or JSON; for several, one or an iterable, or
        a dict for NAME:VALUE. Raises OptionError for unknown options and for invalid values.
        """
        if chooser := cls.choice()[0]:
            chosen: Any = cls.choose(values.get(chooser))
            known = chosen.fields()
            return chosen.from_dict({k: v for k, v in values.items() if k in known or k != chooser})
        if unknown := sorted(values.keys() - cls.fields().keys()):
            knows = ", ".join(sorted(cls.fields()))
            raise OptionError(f"unknown setting {', '.join(unknown)}; {cls.__name__} knows {knows}")
        return cls(**values)

    @classmethod
    def convert(cls, name: str, value: Any) -> Any:
        """Converts a value to the type of its option and checks it; see `from_dict`."""
        rules, kind, expected = cls.fields()[name].metadata, cls.types()[name], ""
        given, value = value, _convert(value, kind, rules)
        if rules["required"] and value in ("", None, ()):
            raise OptionError(f"`{name}` is required: {rules['help']}")
        if value is None:
            return None
        low, high = rules["minimum"], rules["maximum"]
        texts = value if isinstance(value, tuple) else (value,)
        if type(value) is not kind:
            value, expected = repr(given), _EXPECTED.get(kind, "texts or paths")
        elif rules["choices"] and value not in rules["choices"]:
            expected = f"one of {', '.join(map(repr, rules['choices']))}"
        elif low is not None and not value >= low and not (rules["or_zero"] and value == 0):
            expected = f"{'0 or ' if rules['or_zero'] else ''}at least {low}"
        elif high is not None and not value <= high:
            expected = f"at most {high}"
        elif kind is float and not abs(value) <= _LARGEST_FLOAT:
            expected = f"at most {_LARGEST_FLOAT:g}, a finite number"
        elif kind is int and value > _LARGEST_INT:
            expected = f"at most {_LARGEST_INT}"
        elif kind is tuple and not all(value):
            expected = "no empty entry"
        elif any("\0" in x or not is_encodable(x) for x in texts if isinstance(x, str)):
            expected = "text in UTF-8 without null characters"
        if expected:
            raise OptionError(f"`{name}`={show(value)}: expected {expected}")
        return value

    @classmethod
    def read_json(cls, path: pathlib.Path) -> Self:
        """Reads the JSON of `to_dict`; a broken file raises InputError with its name."""
        with name_input(f"{path}: not a {cls.__name__}", ValueError):
            return cls.from_dict(read_json_object(path, f"a {cls.__name__}"))


def _convert(value: Any, kind: Any, rules: Mapping[str, Any]) -> Any:
    """The value as the type of its option, if it can be; otherwise of any other type."""
    expand = os.path.expanduser if rules["path"] else str
    numpy: Any = sys.modules.get("numpy")  # without which no value is one of its scalars
    value = value.item() if numpy and isinstance(value, numpy.generic) else value
    if isinstance(value, str | os.PathLike):
        value = expand(os.fspath(value))
    if value is None or (isinstance(value, str) and value in rules["words"]):
        return rules["words"].get(value)
    if kind is tuple:
        if isinstance(value, Mapping):
            value = [f"{name}:{given}" for name, given in value.items()]
        # Numbers are texts here, as the command line has them: a list of shares is of texts.
        allowed = (str, os.PathLike) if rules["path"] else (str, os.PathLike, numbers.Real)
        value = [value] if isinstance(value, str) or not isinstance(value, Iterable) else [*value]
        return tuple(map(expand, value)) if all(isinstance(v, allowed) for v in value) else value
    if kind is bool and isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower(), value)
    # A bool is an int in Python, but not a valid number here.
    if isinstance(value, _NUMBERS.get(kind, ())) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


def show(value: Any, longest: int = 100) -> str:
    """Formats a value for a message: one line of limited length."""
    text = ",".join(value) if isinstance(value, tuple) else str(value)
    shown = (char if char.isprintable() else ascii(char)[1:-1] for char in text[:longest])
    return "".join(shown) + ("..." if len(text) > longest else "")


def _refuse_loss(options: Options) -> None:
    """Refuses an output that would overwrite an input or lie inside a part of one.

    An output may lie elsewhere in an input folder, such as RUN/export. Only paths are compared; no
    file is accessed.
    """
    read = options.select(path="reads") | options.select(path="files")
    for output, value in (options.select(path="writes") | options.select(path="renews")).items():
        if value and os.path.basename(os.path.normpath(value)) in ("", ".", ".."):
            options.refuse(output, "expected the name of a file or a folder")
        target = pathlib.Path(os.path.abspath(value))
        for name, sources in read.items() if value else ():
            for source in filter(None, sources if isinstance(sources, tuple) else [sources]):
                path = pathlib.Path(os.path.abspath(source))
                if path.is_relative_to(target):
                    options.refuse(output, f"would overwrite `{name}`={show(source)}")
                parts = [path / part for part in _PARTS] + [path] * (path.name in _PARTS)
                if any(map(target.is_relative_to, parts)):
                    options.refuse(output, f"lies inside what `{name}`={show(source)} reads")
