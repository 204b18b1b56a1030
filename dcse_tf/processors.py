"""How many processors there are. No TensorFlow here."""

import os


def available_processors() -> int:
    """How many processors this process may use."""
    # From Python 3.13 on: os.process_cpu_count().
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS
