"""Errors of input that cannot be used, and of output that cannot be written."""

import contextlib
import importlib
import pathlib
from collections.abc import Iterator
from typing import Any

# Of a job that may be started again as it was: sysexits.h EX_TEMPFAIL. No other end has it.
EXIT_STATUS = 75


class InputError(ValueError):
    """Input that cannot be used; the message names the file, the line and what was expected."""


class OutputError(OSError):
    """Output that cannot be written; the message names the path."""


class LockedError(OutputError):
    """Another process is writing the file, or is at work in the folder."""


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
    """Adds the path to write errors that name no file, such as that of a full disk.

    Raises:
        OutputError: a write failed without saying of which file.
    """
    try:
        yield
    except OSError as error:
        # Errors of system calls have a number. NumPy raises a plain OSError without one when it
        # could not write everything. Any other type, such as that of a worker process that was
        # killed, is no write error.
        is_write_error = error.errno is not None or type(error) is OSError
        if error.filename is None and is_write_error:
            reason = error.strerror or error
            raise OutputError(f"{path}: cannot be written: {reason}") from error
        raise
