"""Imports TensorFlow without the messages that mean nothing to a user.

Importing TensorFlow prints a dozen lines about oneDNN, CUDA and its own logging. The environment
variable TF_CPP_MIN_LOG_LEVEL=3 silences later messages, but not those written while its libraries
are loaded. So stderr passes through a filter during the import.

If the user sets TF_CPP_MIN_LOG_LEVEL to another value, nothing is filtered.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence

_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
_FATAL_ONLY = "3"

# C++ messages below "fatal", the announcement before them, and the second line of one of them.
_NOISE = (
    r"^[IWE][0-9]{4} [0-9:.]+ +[0-9]+ [a-z0-9_]+\.cc:[0-9]+\]"
    "|^WARNING: All log messages before absl::InitializeLog"
    "|^To enable the following instructions: "
)


def quiet_tensorflow() -> None:
    """Makes a later import of TensorFlow, by any module, quiet; does not import it."""
    started = "tensorflow" in sys.modules
    if not started and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds TensorFlow in its usual place and wraps its loading, once."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec and spec.loader and os.environ.setdefault(_VARIABLE, _FATAL_ONLY) == _FATAL_ONLY:
            execute = spec.loader.exec_module

            def execute_quietly(module: types.ModuleType) -> None:
                with filter_stderr(_NOISE):
                    execute(module)

            spec.loader.exec_module = execute_quietly  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def filter_stderr(pattern: str) -> Iterator[None]:
    """Removes lines that match an extended regular expression from stderr.

    This includes output of C++ code and child processes. The filter is a separate process, so that
    the last messages of this process are passed on even if it crashes.
    """
    command = ["grep", "--line-buffered", "-a", "-v", "-E", pattern]
    reader = None
    with contextlib.suppress(OSError):  # without grep or stderr, nothing is filtered
        # In its own session, so that Ctrl-C does not end the filter before this process.
        reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, start_new_session=True)
    if reader is None or reader.stdin is None:
        yield
        return

    print(end="", file=sys.stderr, flush=True)
    unfiltered = os.dup(2)
    os.dup2(reader.stdin.fileno(), 2)
    reader.stdin.close()
    try:
        yield
    finally:
        print(end="", file=sys.stderr, flush=True)
        os.dup2(unfiltered, 2)
        os.close(unfiltered)
        # A child process started meanwhile that still runs keeps the pipe open.
        with contextlib.suppress(subprocess.TimeoutExpired):
            reader.wait(timeout=1)
