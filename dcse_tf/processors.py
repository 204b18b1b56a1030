"""The number of available processors. This module does not import TensorFlow."""

import os


def available_processors() -> int:
    """The number of processors that this process may use."""
    # From Python 3.13 on, os.process_cpu_count() does this.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS
