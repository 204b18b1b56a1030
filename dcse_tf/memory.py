"""Keeps memory for the next step of a computation instead of giving it back to the system.

Otherwise the kernel clears the pages of every step's large temporaries: on virtual machines 40% of
a training's processor time. TensorFlow's own allocator keeps tensors, and glibc is told to keep
what its libraries use. This module does not import TensorFlow.
"""

import ctypes
import os

_MIB = 2**20
# TensorFlow's allocator takes at most 64 GiB unless it is told otherwise.
_DEFAULT_LIMIT = 64 * 2**10  # MiB
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


def keep_memory() -> None:
    """Sets up the memory of this process and its children, on glibc; elsewhere it does nothing.

    What the user has set stays: TF_CPU_ALLOCATOR_USE_BFC and TF_CPU_BFC_MEM_LIMIT_IN_MB for
    TensorFlow, MALLOC_* and GLIBC_TUNABLES for glibc. TensorFlow reads its variables when it makes
    its first device; later ones have no effect.
    """
    try:
        os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):
        return
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB
    os.environ.setdefault("TF_CPU_BFC_MEM_LIMIT_IN_MB", str(max(whole, _DEFAULT_LIMIT)))
    if not any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        for parameter, value in _THRESHOLDS.items():
            ctypes.CDLL(None).mallopt(parameter, value)
