"""Errors for input that cannot be used and output that cannot be written."""

import contextlib
import importlib
import pathlib
from collections.abc import Iterator
from typing import Any

# Exit status of a job that the same command can resume, and of nothing else: EX_TEMPFAIL.
EXIT_STATUS = 75


class InputError(ValueError):
    """Input that cannot be used; the message names the file, the line and what was expected."""


class OutputError(OSError):
    """Output that cannot be written; the message names the path."""


class LockedError(OutputError):
    """Another process is writing the file or working in the folder."""


def first_line(error: Exception) -> str:
    """The first line of an error's message; below it, libraries add traces of their own code."""
    text = getattr(error, "message", None) or str(error)
    return next(iter(text.strip().splitlines()), repr(error))


@contextlib.contextmanager
def name_input(problem: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turns errors of these kinds into InputError, whose message begins with the problem, such as
    "a.json: cannot be read". An InputError stays as it is.
    """
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        # Of a KeyError, for instance, the message is just the key.
        short = isinstance(error, LookupError | TypeError | AttributeError)
        reason = repr(error) if short else first_line(error)
        raise InputError(f"{problem}: {reason:.200}") from error


# The packages of each extra in setup.py, by their names on PyPI, where dcse_tf itself is not.
PACKAGES = {
    "chinese": "jieba",
    "discover": "scikit-learn",
    "onnx": "onnx onnxruntime",
    "parquet": "pyarrow",
    "plots": "matplotlib",
    "search": "faiss-cpu",
    "spark": "pyspark",
    "server": "fastapi uvicorn",
    "vectors": "gensim",
}


def require(name: str, extra: str, why: str) -> Any:
    """Imports a module such as "matplotlib.figure", which an extra of dcse_tf installs. Raises
    InputError if it is not installed; the message begins with `why`, which needs it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        needed = f"{name.partition('.')[0]} ({error}): pip install {PACKAGES[extra]}"
        raise InputError(f"{why} needs {needed}") from error


@contextlib.contextmanager
def name_missing_tensorflow(what: str) -> Iterator[None]:
    """Raises InputError where TensorFlow or a package above it, which `what` needs, is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("tensorflow", "tensorflow_text", "keras", "keras_hub"):
            raise
        raise InputError(
            f"{what} needs TensorFlow, and {package} is not installed: pip install tensorflow "
            "tensorflow-text keras-hub (for Linux, and macOS on arm64); ONNX and static exports "
            "are used without them"
        ) from error


@contextlib.contextmanager
def name_output(path: pathlib.Path, *kinds: type[Exception]) -> Iterator[None]:
    """Turns write errors that name no file, such as those of a full disk, and errors of the kinds
    given into OutputError.
    """
    try:
        yield
    except kinds as error:
        raise OutputError(f"{path}: cannot be written: {first_line(error)}") from error
    except OSError as error:
        # Errors of system calls have an errno; NumPy raises a plain OSError after an incomplete
        # write. Other subclasses, such as that of a killed worker process, are no write errors.
        is_write_error = error.errno is not None or type(error) is OSError
        if error.filename is None and is_write_error:
            raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
        raise
