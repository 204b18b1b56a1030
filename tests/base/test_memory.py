"""Memory stays with the process that will need it again, within bounds, unless the user says
otherwise."""

import ctypes
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from tiny_bert import DIM, VOCABULARY, VOCABULARY_SIZE

from dcse_tf import memory
from dcse_tf.bert import bert

# What the module does not touch if the user has set it: TensorFlow's allocator, and glibc's value.
AS_BEFORE = {"TF_CPU_ALLOCATOR_USE_BFC": "false", "MALLOC_TOP_PAD_": "131072"}
VARIABLES = ("TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB")
BATCHES, LINES, WORDS = 6, 128, 30


def start(command, folder, **variables):
    """Runs a command as a user would who sets these variables; returns its page faults and peak
    memory in kilobytes."""
    names = ("TF_CPU_", "MALLOC_", "GLIBC_")
    environment = {name: x for name, x in os.environ.items() if not name.startswith(names)}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, *command], env=environment | variables, stdout=log, stderr=log
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (folder / "log").read_text()
    return usage.ru_minflt, usage.ru_maxrss


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The command line of `embed` for batches of some 130 MB, without its output."""
    folder = tmp_path_factory.mktemp("wide")
    model = folder / "model"
    model.mkdir()
    config = bert.make_bert_config(1, DIM, VOCABULARY_SIZE)
    config["intermediate_size"] = 8192
    backbone = bert.build_backbone(config, 0.0)
    bert.initialize_weights(backbone.trainable_variables, 3, 0.05)
    bert.save_backbone(model, backbone, config)
    VOCABULARY.write(model)
    drawn = random.Random(0)
    words = VOCABULARY.tokens[5:20]
    lines = [" ".join(drawn.choices(words, k=WORDS)) for _ in range(BATCHES * LINES)]
    (folder / "lines.txt").write_text("\n".join(lines) + "\n")
    tokens = LINES * (WORDS + 2)
    return [
        *("-m", "dcse_tf.cli", "embed", f"--model={model}", f"--input={folder / 'lines.txt'}"),
        f"--batch_tokens={tokens}",
    ]


def test_a_job_does_not_take_the_memory_of_each_batch_anew(job, tmp_path):
    outputs = [tmp_path / name for name in ("kept.npy", "anew.npy")]
    kept, peak = start([*job, f"--output={outputs[0]}"], tmp_path)
    anew, peak_anew = start([*job, f"--output={outputs[1]}"], tmp_path, **AS_BEFORE)
    # Two temporaries of 4096 x 8192 floats a batch, in pages of 4 kB.
    assert anew - kept > 0.5 * 2 * BATCHES * 4096 * 8192 * 4 / 4096
    assert peak < 1.5 * peak_anew
    np.testing.assert_array_equal(*map(np.load, outputs))


GROWS = """
import dcse_tf, numpy, resource, tensorflow as tf

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20

kernel = tf.random.stateless_normal([16, 4096], [1, 2])
def batch(rows):
    return tf.reduce_sum(tf.nn.relu(tf.matmul(tf.ones([rows, 16]), kernel)))

# Batches of every size, the largest 64 MB.
rows = numpy.random.default_rng(0).integers(1, 4097, 300)
rows[0] = 4096
for count in rows[:100]:
    batch(int(count))
first = peak()
for count in rows[100:]:
    batch(int(count))
print("grown", peak() - first)

before = resident()
block = numpy.ones(2**26, numpy.uint8)
filled = resident() - before
del block
print("taken", filled, "left", resident() - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
def test_what_is_kept_has_a_bound(tmp_path):
    """Batches of many sizes reuse it, and what NumPy takes is given back."""
    start(["-c", GROWS], tmp_path)
    said = (tmp_path / "log").read_text().split()
    grown, taken, left = (float(said[said.index(name) + 1]) for name in ("grown", "taken", "left"))
    assert grown < 64
    assert taken > 60
    assert left < 4


class Library:
    def __init__(self):
        self.calls = {}

    def mallopt(self, parameter, value):
        self.calls[parameter] = value
        return 1


@pytest.fixture
def library(monkeypatch):
    """Stands for the C library; the environment is a new user's."""
    for name in list(os.environ):
        if name in VARIABLES or name.startswith(("MALLOC_", "GLIBC_")):
            monkeypatch.delenv(name)
    stand_in = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: stand_in)
    return stand_in


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"])
def test_what_the_user_has_set_stays(library, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "0")
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "100")
    memory.keep_memory()
    assert [os.environ[name] for name in VARIABLES] == ["0", "100"]
    assert not library.calls


@pytest.mark.parametrize(("pages", "limit"), [(2**21, 64 * 1024), (2**26, 256 * 1024)])
def test_tensorflow_may_use_all_memory_of_the_machine(library, monkeypatch, pages, limit):
    """Its own limit is 64 GB, whatever the machine has."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": pages}.get)
    memory.keep_memory()
    assert [os.environ.pop(name) for name in VARIABLES] == ["true", str(limit)]
    assert library.calls == {-1: 2**26, -2: 2**26, -3: 2**25}


@pytest.mark.parametrize("error", [AttributeError, ValueError, OSError])
def test_nothing_is_set_without_glibc(library, monkeypatch, error):
    def confstr(name):
        raise error

    monkeypatch.setattr(os, "confstr", confstr)
    memory.keep_memory()
    assert not library.calls
    assert not set(VARIABLES) & set(os.environ)
