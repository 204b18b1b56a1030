"""Errors of input that cannot be used, and of output that cannot be written."""

import contextlib
import pathlib
from collections.abc import Iterator


class InputError(ValueError):
    """Input that cannot be used; the message names the file, the line and what was expected."""


class OutputError(OSError):
    """Output that cannot be written; the message names the path."""


class LockedError(OutputError):
    """Another process is writing the file, or is at work in the folder."""


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
