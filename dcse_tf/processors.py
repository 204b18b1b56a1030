"""The number of available processors and of threads. This module does not import TensorFlow."""

import os
import sys

# Variables in which TensorFlow takes the numbers of threads of a process, read when it starts.
_WITHIN, _BETWEEN = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"


def available_processors() -> int:
    """The number of processors that this process may use."""
    # From Python 3.13 on, os.process_cpu_count() does this.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def limit_threads(within: int, between: int | None = None) -> None:
    """Limits the threads of this process, before TensorFlow or onnxruntime starts in it.

    Args:
        within: the number of threads that compute an operation.
        between: the number of operations that TensorFlow computes at a time; None for its default.
    """
    os.environ[_WITHIN] = str(within)
    if between:
        os.environ[_BETWEEN] = str(between)


def choose_threads() -> int:
    """The number of threads for an operation: as set for TensorFlow, or one for each processor."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow and (count := tensorflow.config.threading.get_intra_op_parallelism_threads()):
        return count
    given = os.environ.get(_WITHIN, "")
    return int(given) if given.isdecimal() and int(given) else available_processors()
