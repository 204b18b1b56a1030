"""Memory stays with the process that needs it again, a GPU's does not, unless the user says so."""

import ctypes
import os
import types

import pytest

from dcse_tf import machine

VARIABLES = ("TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB")
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


@pytest.fixture
def options(monkeypatch):
    """What the C library is told; the environment is a new user's."""
    for name in list(os.environ):
        if name in (*VARIABLES, GROWTH) or name.startswith(("MALLOC_", "GLIBC_")):
            monkeypatch.delenv(name)
    options = {}
    library = types.SimpleNamespace(mallopt=options.__setitem__)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    yield options
    for name in (*VARIABLES, GROWTH):
        os.environ.pop(name, None)


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_what_the_user_has_set_stays(options, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "0")
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "100")
    machine.set_up()
    assert [os.environ[name] for name in VARIABLES] == ["0", "100"]
    assert not options


@pytest.mark.parametrize(("pages", "limit"), [(2**21, 64 * 1024), (2**26, 256 * 1024)])
def test_tensorflow_may_use_all_memory_of_the_machine(options, monkeypatch, pages, limit):
    """Its own limit is 64 GB, whatever the machine has."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": pages}.get)
    machine.set_up()
    assert [os.environ[name] for name in VARIABLES] == ["true", str(limit)]
    assert options == {-1: 2**26, -2: 2**26, -3: 2**25}


@pytest.mark.parametrize("error", [AttributeError, ValueError, OSError])
def test_nothing_is_set_without_glibc(options, monkeypatch, error):
    def confstr(name):
        raise error

    monkeypatch.setattr(os, "confstr", confstr)
    machine.set_up()
    assert not options
    assert not set(VARIABLES) & set(os.environ)


@pytest.mark.parametrize("given", [None, "false"])
def test_processes_share_a_gpu_unless_the_user_says_otherwise(options, monkeypatch, given):
    if given:
        monkeypatch.setenv(GROWTH, given)
    machine.set_up()
    assert os.environ[GROWTH] == (given or "true")


def test_an_operation_has_the_threads_that_tensorflow_s_have(monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    assert machine.count_threads() == 3
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "")
    assert machine.count_threads() == len(os.sched_getaffinity(0))
