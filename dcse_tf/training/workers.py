"""Training with several processes, on one or many machines: their devices, and lost workers."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from dcse_tf.worker import Worker, read_worker


class WorkersError(RuntimeError):
    """The other workers can no longer be reached."""


def join_workers(logical_cpus: int) -> tf.distribute.Strategy:
    """Waits for all workers; returns a strategy over the devices of all.

    Every GPU is a replica or, on workers without GPUs, each of `logical_cpus` CPU devices.
    """
    worker = read_worker()
    logging.info(
        "worker %d of %d at %s: waiting for the others", worker.index, worker.count, worker.address
    )
    if logical_cpus == 1 or tf.config.list_physical_devices("GPU"):
        return tf.distribute.MultiWorkerMirroredStrategy()
    return _join_with_logical_cpus(logical_cpus)


def _join_with_logical_cpus(count: int) -> tf.distribute.Strategy:
    # TensorFlow uses only one CPU device per worker, however many there are.
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
    """Converts the errors that collectives raise when a worker is lost into a clear one.

    Raises:
        WorkersError: another worker has ended or cannot be reached.
    """
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError) as error:
        if worker.count == 1:
            raise
        raise WorkersError("another worker has ended, or cannot be reached any more") from error
