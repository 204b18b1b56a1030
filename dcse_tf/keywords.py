"""A job's options as keyword arguments of a function: its signature, and values made from them."""

import dataclasses
import inspect
import numbers
import os
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from dcse_tf.arguments import find_files, plain_type, read_flags
from dcse_tf.options import OptionError, Options, show

T = TypeVar("T", bound=Options)

_EXPECTED = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}


def make_signature(kind: type[Options], returns: Any) -> inspect.Signature:
    """The keywords of a job's function: its options, with their types and defaults.

    Where a class stands for several, these are the options of all; a default that differs among
    them is None, and further keywords are those of plug-ins.
    """
    chooser, entries = kind.choice()
    kinds = [entry.options for entry in entries.values()] or [kind]
    fields = {chooser: kind.fields()[chooser]} if chooser else {}
    fields |= {name: field for each in reversed(kinds) for name, field in each.fields().items()}
    types = {
        name: hint for each in (kind, *kinds) for name, hint in typing.get_type_hints(each).items()
    }

    keyword = inspect.Parameter.KEYWORD_ONLY
    texts = "str | Sequence[str]"
    parameters = [inspect.Parameter("preset", keyword, default=(), annotation=texts)]
    for name, field in fields.items():
        own = [each.fields()[name] for each in kinds if name in each.fields()] or [field]
        default, annotation = own[0].default, _annotate(field, plain_type(types[name]))
        if all(each.metadata["required"] for each in own) and len(own) == len(kinds):
            default = inspect.Parameter.empty
        elif default is None or any(each.default != default for each in own):
            default, annotation = None, f"{annotation} | None"
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=annotation))
    if entries:
        further = inspect.Parameter.VAR_KEYWORD
        parameters.append(inspect.Parameter("further", further, annotation="Any"))
    return inspect.Signature(parameters, return_annotation=returns)


def _annotate(field: dataclasses.Field, expected: type) -> str:
    """What `_convert` accepts for an option."""
    rules, path = field.metadata, "str | os.PathLike[str]"
    if expected is tuple:
        return f"{path} | Iterable[{path} | float]"
    if rules["choices"] and not isinstance(rules["choices"], Mapping):
        return f"Literal[{', '.join(map(repr, rules['choices']))}]"
    if expected is str and rules["path"]:
        return path
    words = f" | Literal[{', '.join(map(repr, rules['words']))}]" if rules["words"] else ""
    return expected.__name__ + words


def make_options(
    kind: type[T], job: str, preset: str | Sequence[str], given: Mapping[str, Any]
) -> T:
    """Builds a job's options from presets and keyword arguments; the latter take precedence.

    Args:
        kind: the class of the options.
        job: the job's name, as in presets.
        preset: one preset's name or several.
        given: option name -> value; None counts as not given. Options for several files take one
            file or an iterable; files may be text or paths. Likewise for several numbers or names.

    Raises:
        OptionError: an option is unknown, of the wrong type, missing or out of range, or
            contradicts another.
        InputError: a file does not exist.
    """
    flags = [f"--preset={name}" for name in ([preset] if isinstance(preset, str) else preset)]
    chooser = kind.choice()[0]
    if given.get(chooser) is not None:
        flags.append(f"--{chooser}={given[chooser]}")
    chosen, values = read_flags(kind, job, flags)
    fields, types = chosen.fields(), typing.get_type_hints(chosen)
    for name, value in given.items():
        if value is not None:
            known = name in fields and name != chooser
            values[name] = (
                _convert(fields[name], plain_type(types[name]), value) if known else value
            )
    options = kind.from_dict(values)
    find_files(options)
    return options


def _convert(field: dataclasses.Field, expected: type, value: Any) -> Any:
    """Converts a value to the type of its option.

    Raises:
        OptionError: the value has the wrong type.
    """
    if expected is tuple:
        several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
        # Numbers are texts here, as the command line has them: a list of shares is of texts.
        entries = tuple(
            str(entry) if isinstance(entry, numbers.Real) and not field.metadata["path"] else entry
            for entry in map(_as_text, value if several else [value])
        )
        if not all(isinstance(entry, str) for entry in entries):
            raise OptionError(f"`{field.name}`={show(repr(value))}: expected texts or paths")
        return entries

    value = _as_text(value)
    if isinstance(value, str) and value in field.metadata["words"]:
        return field.metadata["words"][value]
    # NumPy's numbers are accepted. A bool is an int in Python, but not a valid number here.
    if not isinstance(value, bool):
        if expected is int and isinstance(value, numbers.Integral):
            return int(value)
        if expected is float and isinstance(value, numbers.Real):
            return float(value)
    if type(value) is not expected:
        raise OptionError(f"`{field.name}`={show(repr(value))}: expected {_EXPECTED[expected]}")
    return value


def _as_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value
