"""Writes dcse_tf/__init__.pyi, the signatures that editors and type checkers read.

They follow from the classes of options; run this file after an option has changed.
"""

import inspect
import pathlib
import re

import dcse_tf
from dcse_tf import api

PATH = pathlib.Path(dcse_tf.__file__).with_suffix(".pyi")
HEAD = """# Made from the classes of options by tests/helpers/write_signatures.py.
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

"""


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
        signature = inspect.signature(getattr(api, name))
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
