"""Imports TensorFlow without the messages that mean nothing to a user.

Importing TensorFlow prints a dozen lines about oneDNN, CUDA and its own logging. The environment
variable TF_CPP_MIN_LOG_LEVEL=3 silences later messages, but not those written while its libraries
are loaded: they pass through a filter. With another value of the variable, nothing is filtered.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

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


class _Finder:
    """Finds TensorFlow in its usual place and wraps its loading, once."""

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
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
    """Removes lines that match an extended regular expression from stderr, also those of C++.

    The filter is a separate process, so that the last messages of this process are passed on even
    if it crashes. In its own session, Ctrl-C does not end it before this process.
    """
    command = ["grep", "--line-buffered", "-a", "-v", "-E", pattern]
    try:
        reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, start_new_session=True)
    except OSError:  # without grep or stderr, nothing is filtered
        yield
        return
    assert reader.stdin
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
