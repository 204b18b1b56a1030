"""The devices of a run."""

import tensorflow as tf


def make_strategy(logical_cpus: int, deterministic: bool) -> tf.distribute.MirroredStrategy:
    """Every visible GPU, or else so many logical CPU devices; one replica each.

    Args:
        logical_cpus: devices the CPU is divided into where there is no GPU.
        deterministic: whether every operation must give the same bits each time.
    """
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        return tf.distribute.MirroredStrategy()
    if logical_cpus > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(logical_cpus)]
        tf.config.set_logical_device_configuration(cpu, logical)
    # Between devices of one memory a plain sum is as good as collectives, whose keys are shared by
    # all strategies of a process.
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(logical_cpus)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
