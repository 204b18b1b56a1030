"""Training by several processes, on one machine or many: their devices, and when one is lost."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from dcse_tf.worker import Worker, read_worker


class WorkersError(RuntimeError):
    """The other workers cannot be reached any more."""


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
