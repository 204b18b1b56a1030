"""How a process uses the memory, processors and GPUs of a machine; does not import TensorFlow."""

import ctypes
import os

_MIB = 2**20
# Parameters of mallopt(3). Setting one of them ends glibc's own adjustment of all.
_THRESHOLDS = {
    # What glibc itself would raise these two to, at most. Larger blocks, such as NumPy's, still go
    # back to the system as soon as they are freed.
    -3: 32 * _MIB,  # M_MMAP_THRESHOLD
    -1: 64 * _MIB,  # M_TRIM_THRESHOLD
    # The size of a thread's heap. With a smaller value, a heap is given back each time that it is
    # empty, which is after every operation.
    -2: 64 * _MIB,  # M_TOP_PAD
}


def set_up() -> None:
    """Sets what TensorFlow and glibc read when they start, also in child processes.

    Memory is kept for the next step of a computation instead of being given back to the system.
    Otherwise the kernel clears the pages of every step's large temporaries: on virtual machines 40%
    of a training's processor time. What the user has set stays.
    """
    # TensorFlow says of its devices and libraries what means nothing to a user; errors are raised.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Each process takes the memory of a GPU that it needs, so that several can share it.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    try:
        os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):
        return
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
    # TensorFlow's allocator takes at most 64 GiB unless it is told otherwise.
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB
    os.environ.setdefault("TF_CPU_BFC_MEM_LIMIT_IN_MB", str(max(whole, 64 * 2**10)))
    if not any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        for parameter, value in _THRESHOLDS.items():
            ctypes.CDLL(None).mallopt(parameter, value)


def count_threads() -> int:
    """The number of threads for an operation: as set for TensorFlow, or one for each processor that
    this process may use.
    """
    # From Python 3.13 on, os.process_cpu_count() does this. macOS has no affinity.
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(os.environ.get("TF_NUM_INTRAOP_THREADS") or 0) or own or 1
