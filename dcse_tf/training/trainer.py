"""The inner loop of training: processes and devices, optimizer and training steps."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging
from keras import ops

from dcse_tf.errors import InputError, name_input
from dcse_tf.input_files import parse_json
from dcse_tf.options import OptionError
from dcse_tf.tasks.objective import LOSS, average
from dcse_tf.tasks.spec import Tensors

# The exponential decay of the authors' code: times 0.98 every 10,000 steps, not below 1e-5.
_DECAY_RATE, _DECAY_STEPS, _FLOOR = 0.98, 10_000, 1e-5
# A loss above this counts as diverged, like one that is no finite number.
LOSS_LIMIT = 1000.0
VARIABLE = "TF_CONFIG"
_EXPECTED = (
    f'{VARIABLE}: expected {{"cluster": {{"worker": ["HOST:PORT", ...]}}, "task": {{"type": '
    '"worker", "index": 0}}, the same cluster for all and a different index for each'
)


@dataclasses.dataclass(frozen=True)
class Worker:
    """One of several processes that train together."""

    index: int = 0  # its number
    count: int = 1  # of processes
    address: str = ""  # HOST:PORT at which the others reach it; "" if it is the only one

    @property
    def is_chief(self) -> bool:
        """Whether this is the first worker, which evaluates and writes."""
        return self.index == 0

    def own_replicas(self, count: int) -> range:
        """The numbers of its replicas, which are consecutive, of the `count` of all workers."""
        each = count // self.count
        return range(self.index * each, (self.index + 1) * each)


def read_worker(environment: Mapping[str, str] = os.environ) -> Worker:
    """Reads from TF_CONFIG which worker this process is; without it, the only one. Raises
    InputError if it has the wrong form, or names tasks other than chief and worker.
    """
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return Worker()
    with name_input(_EXPECTED, ValueError, LookupError, TypeError, AttributeError):
        config = parse_json(text)
        cluster, task = config["cluster"], config["task"]
        # TensorFlow numbers a chief, if there is one, before the workers.
        addresses = [*cluster.get("chief", []), *cluster.get("worker", [])]
        before = len(cluster.get("chief", [])) if task["type"] == "worker" else 0
        number = int(task["index"])
        own = cluster[task["type"]][number]
        if number < 0 or not all(isinstance(a, str) and ":" in a for a in addresses):
            raise ValueError(addresses)
    if others := sorted(cluster.keys() - {"chief", "worker"}):
        raise InputError(f"{VARIABLE}: {', '.join(others)}: expected only workers")
    return Worker(before + number, len(addresses), own)


def make_strategy(logical_cpus: int, deterministic: bool) -> tf.distribute.Strategy:
    """Makes a strategy with one replica per visible GPU or, without GPUs, per logical CPU device.

    If TF_CONFIG names several workers, it waits for all, and has the GPUs, or the CPU, of each.
    """
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    divide_cpu(logical_cpus)
    worker, gpus = read_worker(), tf.config.list_physical_devices("GPU")
    if worker.count > 1:
        if logical_cpus > 1 and not gpus:
            # TensorFlow uses only one CPU device per worker, however many there are.
            raise OptionError(f"`logical_cpus`={logical_cpus}: expected 1 with several workers")
        logging.info("waiting for the others; this is %s", worker)
        return tf.distribute.MultiWorkerMirroredStrategy()
    if gpus:
        return tf.distribute.MirroredStrategy()
    # For devices that share one memory a plain sum is as good as collectives, whose keys all
    # strategies of a process would share.
    devices, total = [f"CPU:{i}" for i in range(logical_cpus)], tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=total)


def divide_cpu(logical_cpus: int) -> None:
    """Divides the CPU into logical devices, if there is no GPU, before TensorFlow computes."""
    if logical_cpus == 1 or tf.config.list_physical_devices("GPU"):
        return
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(logical_cpus)]
    try:
        tf.config.set_logical_device_configuration(cpu, logical)
    except RuntimeError as error:
        late = "TensorFlow has already computed, too late to divide the CPU; expected a new process"
        raise OptionError(f"`logical_cpus`={logical_cpus}: {late}") from error


class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, peak * (step + 1) / warmup_steps, then decay: "exponential" (times 0.98 every
    10,000 steps, not below 1e-5, or the peak if that is lower), "linear" (to 0 at the last of all
    steps) or "constant".
    """

    def __init__(self, peak: float, warmup_steps: int, decay: str, steps: int):
        super().__init__()
        self.peak, self.warmup_steps, self.decay, self.steps = peak, warmup_steps, decay, steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        warmup = (step + 1.0) / max(1, self.warmup_steps)
        since = ops.maximum(step - self.warmup_steps, 0.0)
        factor = ops.ones_like(since)
        if self.decay == "exponential":
            rate = ops.power(_DECAY_RATE, ops.floor(since / _DECAY_STEPS))
            factor = ops.maximum(rate, min(1.0, _FLOOR / self.peak) if self.peak else 1.0)
        elif self.decay == "linear":
            factor = ops.maximum(0.0, 1.0 - since / max(1, self.steps - self.warmup_steps))
        return self.peak * ops.minimum(warmup, factor)


class SummedAdamW(keras.optimizers.AdamW):
    """AdamW for gradients that are already summed over all devices, each of which updates its own
    copies of the variables; by one operation for each, since Keras' 30 take long to trace.
    """

    def _apply_weight_decay(self, variables):
        """Leaves it to the update."""

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        step = ops.cast(self.iterations + 1, "float32")
        constants = {"beta1": self.beta_1, "beta2": self.beta_2, "epsilon": self.epsilon}
        constants |= {"beta1_power": self.beta_1**step, "beta2_power": self.beta_2**step}
        every = zip(grads, trainable_variables, self._momentums, self._velocities, strict=True)
        for gradient, variable, *moments in every:
            handle, m, v = (each.value.handle for each in (variable, *moments))
            if self.weight_decay is not None and self._use_weight_decay(variable):
                decay = variable * self.weight_decay * learning_rate
                tf.raw_ops.AssignSubVariableOp(resource=handle, value=decay)
            tf.raw_ops.ResourceApplyAdam(
                var=handle, m=m, v=v, lr=learning_rate, grad=gradient, **constants
            )


def build_optimizer(schedule: WarmupDecay, weight_decay: float) -> SummedAdamW:
    """Builds AdamW with BERT's constants, without weight decay of biases and layer norms.

    The trainer clips the gradient, after summing it over the devices.
    """
    constants = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-6}
    optimizer = SummedAdamW(schedule, weight_decay=weight_decay, **constants)
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma"])
    return optimizer


def seed_dropout(model: keras.Model, seed: int, step: int | tf.Tensor) -> None:
    """Sets the state of every dropout layer, so that its masks depend on (seed, step, layer,
    replica) alone; `step` counts from 0.

    By default Keras counts a layer's calls and does not save the count. A resumed run would then
    draw different masks, as would one that calls its layers several times per step, and all
    replicas would draw the same masks.
    """
    layers = model._flatten_layers(include_self=False)
    states = [each.seed_generator.state for each in layers if getattr(each, "seed_generator", None)]

    replica = tf.distribute.get_replica_context()
    # The 1 makes these draws independent of those of the initial weights.
    key = tf.constant([seed, 1], tf.int64)
    for part in (step, replica.replica_id_in_sync_group if replica else 0):
        key = tf.random.fold_in(key, tf.cast(part, tf.int64))
    drawn = tf.random.stateless_uniform([len(states), 2], key, 0, 2**31 - 1, tf.int64)
    for state, value in zip(states, tf.unstack(drawn), strict=True):
        state.assign(tf.cast(value, state.dtype))


@dataclasses.dataclass(eq=False)
class Trainer:
    """Runs optimizer steps; knows nothing of tasks, checkpoints or summaries.

    It follows the gradient of the objective, which is a sum over the replicas' rows. Gradients and
    metrics are summed over the replicas in one message, and each replica clips and applies them. So
    the result does not depend on how the rows are divided among the replicas.
    """

    strategy: tf.distribute.Strategy  # of `make_strategy`; model and optimizer are in its scope
    model: keras.Model  # the training model, see `dcse_tf.tasks.objective.Objective`
    optimizer: keras.optimizers.Optimizer
    clip_norm: float  # the largest norm of the gradient
    stop_asked: tf.Variable  # bool; if it is set on any worker, all stop after the same step
    seed: int = 0  # of the dropout masks

    def __post_init__(self) -> None:
        self._names = tuple(self.model.output)
        self._variables = [variable.value for variable in self.model.trainable_variables]
        with self.strategy.scope():
            self.optimizer.build(self.model.trainable_variables)

    def train(self, iterator: Iterator[Any], num_steps: int) -> dict[str, float]:
        """Takes `num_steps` steps, or fewer if a stop is requested or the loss diverges.

        Returns:
            The metrics of the terms, averaged over the rows of these steps; `loss` and
            `gradient_norm` (before clipping), averaged over the steps; the model's counts, such as
            `samples`, added up; `steps`, the number of steps taken; `diverged`, 1 if the last step
            had a loss above `LOSS_LIMIT`, or a loss or a gradient that is not finite, else 0;
            `stopped`, 1 if a stop was requested, else 0.
        """
        sums = self._train(iterator, tf.constant(num_steps))
        values = {name: float(value) for name, value in sums.items()}
        means, steps = average(values), max(values["steps"], 1.0)
        means |= {name: values.pop(name) / steps for name in (LOSS, "gradient_norm")}
        counts = {name: value for name, value in values.items() if "/" not in name}
        return {**means, **counts, "stopped": float(values["stopped"] > 0.0)}

    def all_have(self, value: int) -> bool:
        """Whether all workers pass the same value; waits for all of them."""
        replicas = self.strategy.num_replicas_in_sync
        return int(self._sum(tf.constant(float(value)))) == value * replicas

    @tf.function
    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        values = self.strategy.run(tf.identity, args=(value,))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None)

    @tf.function(reduce_retracing=True)
    def _train(self, iterator: Iterator[Any], num_steps: tf.Tensor) -> Tensors:
        further = ("gradient_norm", "steps", "stopped", "diverged")
        totals = {name: tf.zeros([]) for name in (*self._names, *further)}
        for _ in tf.range(num_steps):
            if totals["diverged"] > 0.0 or totals["stopped"] > 0.0:
                break
            results = self.strategy.run(self._step, args=(next(iterator),))
            # All replicas return the same values.
            local = self.strategy.experimental_local_results
            step = {name: local(value)[0] for name, value in results.items()}
            finite = tf.math.is_finite(step[LOSS]) & tf.math.is_finite(step["gradient_norm"])
            step["diverged"] = tf.cast(~finite | (step[LOSS] > LOSS_LIMIT), tf.float32)
            totals = {name: totals[name] + step[name] for name in totals}
        return totals

    def _step(self, batch: Tensors) -> Tensors:
        seed_dropout(self.model, self.seed, self.optimizer.iterations)
        gradients, sums = self.compute_gradients(batch)
        gradients, norm = tf.clip_by_global_norm(gradients, self.clip_norm)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return {**sums, "gradient_norm": norm, "steps": tf.ones([])}

    def compute_gradients(self, batch: Tensors) -> tuple[list[tf.Tensor], Tensors]:
        """The gradients of the objective on the global batch, and the batch's sums; to be called in
        a replica context.
        """
        # Frozen variables are not watched, so nothing below the lowest trained layer is recorded.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._variables)
            sums = self.model(batch, training=True)
        own = tape.gradient(sums[LOSS], self._variables, unconnected_gradients="zero")
        # The gradients of embeddings are tf.IndexedSlices.
        own = [tf.convert_to_tensor(gradient) for gradient in own]
        sums = {name: sums[name] for name in self._names}
        sums["stopped"] = tf.cast(self.stop_asked.read_value(), tf.float32)
        add_up = tf.distribute.get_replica_context().all_reduce
        *gradients, totals = add_up("SUM", [*own, tf.stack(list(sums.values()))])
        return gradients, dict(zip(sums, tf.unstack(totals), strict=True))
