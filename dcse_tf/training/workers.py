"""Training by several processes, on one machine or many: who this one is, and their devices."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from dcse_tf.errors import InputError
from dcse_tf.input_files import parse_json

VARIABLE = "TF_CONFIG"
_EXPECTED = (
    f'{VARIABLE}: expected {{"cluster": {{"worker": ["HOST:PORT", ...]}}, "task": {{"type": '
    '"worker", "index": 0}}, the same cluster for all and another index for each'
)


class WorkersError(RuntimeError):
    """The other workers cannot be reached any more."""


@dataclasses.dataclass(frozen=True)
class Worker:
    """A process among those that train together.

    Attributes:
        index: its number, from 0.
        count: how many there are.
        address: where the others reach it.
    """

    index: int = 0
    count: int = 1
    address: str = ""

    @property
    def is_chief(self) -> bool:
        """Whether it is the one that evaluates and writes."""
        return self.index == 0


def read_worker(environment: Mapping[str, str] = os.environ) -> Worker:
    """Which worker this process is by TF_CONFIG; without one it is alone.

        read_worker({"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": '
                                  '"worker", "index": 1}}'})  # Worker(1, 2, "b:1")

    Raises:
        InputError: TF_CONFIG is of another form, or names tasks that do not train.
    """
    text = environment.get(VARIABLE, "")
    if not text.strip():
        return Worker()
    try:
        config = parse_json(text)
        cluster, task = config["cluster"], config["task"]
        others = cluster.keys() - {"chief", "worker"}
        # A chief, where there is one, comes before the workers, as TensorFlow numbers them.
        addresses = [*cluster.get("chief", []), *cluster.get("worker", [])]
        before = len(cluster.get("chief", [])) if task["type"] == "worker" else 0
        number = int(task["index"])
        own = cluster[task["type"]][number]
        if number < 0 or not all(isinstance(a, str) and ":" in a for a in addresses):
            raise ValueError(addresses)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(_EXPECTED) from error
    if others:
        raise InputError(f"{VARIABLE}: {', '.join(sorted(others))}: expected workers alone")
    return Worker(before + number, len(addresses), own)


def join_workers(logical_cpus: int) -> tf.distribute.Strategy:
    """Waits for all workers; then every GPU of each, or so many CPU devices, is a replica."""
    worker = read_worker()
    logging.info(
        "worker %d of %d at %s: waiting for the others", worker.index, worker.count, worker.address
    )
    if logical_cpus == 1 or tf.config.list_physical_devices("GPU"):
        return tf.distribute.MultiWorkerMirroredStrategy()
    return _join_with_logical_cpus(logical_cpus)


def _join_with_logical_cpus(count: int) -> tf.distribute.Strategy:
    # TensorFlow takes one CPU device of a worker, however many there are.
    from tensorflow.python.distribute import collective_all_reduce_strategy as collective

    class Extended(collective.CollectiveAllReduceExtended):
        def _initialize_local_devices(self, cluster_resolver: Any, worker_device: str) -> Any:
            return tuple(f"{worker_device}/device:CPU:{i}" for i in range(count)), "CPU"

    class Strategy(tf.distribute.MultiWorkerMirroredStrategy):
        def __init__(self) -> None:
            options = tf.distribute.experimental.CommunicationOptions()
            tf.distribute.Strategy.__init__(self, Extended(self, None, options))

    return Strategy()


@contextlib.contextmanager
def name_lost_workers(worker: Worker) -> Iterator[None]:
    """Turns the errors of collectives whose other side is gone into one sentence.

    Raises:
        WorkersError: another worker has ended.
    """
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError) as error:
        if worker.count == 1:
            raise
        raise WorkersError("another worker has ended, or cannot be reached any more") from error
