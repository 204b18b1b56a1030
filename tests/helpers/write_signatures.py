"""Writes dcse_tf/__init__.pyi, the signatures that editors and type checkers read.

They follow from the classes of options; run this file after an option has changed.
"""

import inspect
import pathlib
import re
from collections.abc import Mapping

import dcse_tf
from dcse_tf import api

PATH = pathlib.Path(dcse_tf.__file__).with_suffix(".pyi")
HEAD = """# Made from the classes of options by tests/helpers/write_signatures.py.
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

"""


def make_signature(function):
    """The keywords of a job's function: its options, with their types and defaults.

    Where a class stands for several, these are the options of all; a default that differs among
    them is None, and further keywords are those of plug-ins.
    """
    kind = function.options
    _, entries = kind.choice()
    kinds = [entry.options for entry in entries.values()] or [kind]
    types = {name: type_ for each in (kind, *kinds) for name, type_ in each.types().items()}
    keyword, path = inspect.Parameter.KEYWORD_ONLY, "str | os.PathLike[str]"
    presets = "str | Sequence[str]"
    parameters = [inspect.Parameter("preset", keyword, default=(), annotation=presets)]
    for name, type_ in types.items():
        own = [each.fields()[name] for each in kinds if name in each.fields()]
        field = own[0] if own else kind.fields()[name]
        rules, default, annotation = field.metadata, field.default, type_.__name__
        if type_ is tuple:
            annotation = f"{path} | Iterable[{path} | float]"
        elif rules["choices"] and not isinstance(rules["choices"], Mapping):
            annotation = f"Literal[{', '.join(map(repr, rules['choices']))}]"
        elif type_ is str and rules["path"]:
            annotation = path
        elif rules["words"]:
            annotation += f" | Literal[{', '.join(map(repr, rules['words']))}]"
        if len(own) == len(kinds) and all(each.metadata["required"] for each in own):
            default = inspect.Parameter.empty
        elif default is None or any(each.default != default for each in own):
            default, annotation = None, f"{annotation} | None"
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=annotation))
    if entries:
        further = inspect.Parameter.VAR_KEYWORD
        parameters.append(inspect.Parameter("further", further, annotation="Any"))
    returns = inspect.signature(function).return_annotation
    return inspect.Signature(parameters, return_annotation=returns)


def write_stub() -> str:
    """The text of the file, in the form of ruff."""
    source = inspect.getsource(api)
    results = re.findall(r"^    (from dcse_tf\S+ import [A-Z]\w+)$", source, re.MULTILINE)
    exported = [
        f"from {dcse_tf._MODULES[name]} import {name} as {name}" for name in dcse_tf._MODULES
    ]
    exported += [
        "from dcse_tf.api import Embedded",
        "from dcse_tf.errors import InputError as InputError",
        "from dcse_tf.options import OptionError as OptionError",
    ]
    parts = [HEAD + "\n".join(sorted({*results, *exported})), "__version__: str"]
    for name in sorted({*dcse_tf.__all__} & {*vars(api)}):
        signature = make_signature(getattr(api, name))
        lines = [f"def {name}(", "    *,"]
        for each in signature.parameters.values():
            stars = "**" if each.kind is inspect.Parameter.VAR_KEYWORD else ""
            default = "..." if each.default and type(each.default) is tuple else repr(each.default)
            default = "" if each.default is inspect.Parameter.empty else f" = {default}"
            lines.append(f"    {stars}{each.name}: {each.annotation}{default},".replace("'", '"'))
        returns = inspect.formatannotation(signature.return_annotation).strip("'")
        returns = returns.replace("dcse_tf.api.", "")
        parts.append("\n".join([*lines, f") -> {returns}: ..."]))
    return "\n\n".join(parts[:2]) + "\n\n" + "\n".join(parts[2:]) + "\n"


if __name__ == "__main__":
    PATH.write_text(write_stub(), encoding="utf-8")
