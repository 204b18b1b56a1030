"""The errors of input that cannot be used, and of output that cannot be written."""

import contextlib
import pathlib
from collections.abc import Iterator


class InputError(ValueError):
    """Input that cannot be used; the message names the file, the line and what was expected."""


class OutputError(OSError):
    """Output that cannot be written; the message names the path and what was being written."""


class LockedError(OutputError):
    """Another process is at work in a folder, or writes a file."""


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
