"""The errors of input that cannot be used, and of output that cannot be written."""

import contextlib
import importlib
import pathlib
from collections.abc import Iterator
from typing import Any


class InputError(ValueError):
    """Input that cannot be used; the message names the file, the line and what was expected."""


class OutputError(OSError):
    """Output that cannot be written; the message names the path and what was being written."""


class LockedError(OutputError):
    """Another process is at work in a folder, or writes a file."""


def require(name: str, extra: str, why: str) -> Any:
    """Imports a package that only some jobs need, and that an extra of the package installs.

    Args:
        name: of the module, such as "matplotlib.figure".
        extra: of setup.py.
        why: what needs it, the beginning of the message.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise InputError(
            f"{why} needs {package} ({error}): pip install 'dcse_tf[{extra}]'"
        ) from error


@contextlib.contextmanager
def name_output(path: pathlib.Path) -> Iterator[None]:
    """Gives an error of writing the path, where it has none, as that of a full disk.

    Raises:
        OutputError: a write failed without saying of which file.
    """
    try:
        yield
    except OSError as error:
        # A system call's has a number. Without one and of the plain type it is NumPy's, that wrote
        # less than it wanted; of another type, such as a worker's that was killed, it says enough.
        if error.filename is None and (error.errno is not None or type(error) is OSError):
            reason = error.strerror or error
            raise OutputError(f"{path}: cannot be written: {reason}") from error
        raise
