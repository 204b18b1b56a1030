"""The inner loop: devices, the optimizer, and steps of training on batches."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from dcse_tf.tasks.spec import ComputeLoss, Tensors


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


_DECAY_RATE, _DECAY_STEPS, _FLOOR = 0.98, 10_000, 1e-5  # the authors' released code


@keras.saving.register_keras_serializable(package="dcse_tf")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to a peak, then a decay.

    Args:
        peak: the highest learning rate.
        warmup_steps: steps of the warm-up; the rate is peak * (step + 1) / warmup_steps there.
        decay: "exponential" (x 0.98 every 10,000 steps, not below 1e-5 or a lower peak), "linear"
            (to 0 at total_steps) or "constant".
        total_steps: steps of the training.
    """

    def __init__(self, peak, warmup_steps, decay, total_steps):
        super().__init__()
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.decay = decay
        self.total_steps = total_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        warmup = (step + 1.0) / max(1, self.warmup_steps)
        since = ops.maximum(step - self.warmup_steps, 0.0)
        if self.decay == "exponential":
            rate = ops.power(_DECAY_RATE, ops.floor(since / _DECAY_STEPS))
            factor = ops.maximum(rate, min(1.0, _FLOOR / self.peak) if self.peak else 1.0)
        elif self.decay == "linear":
            factor = ops.maximum(0.0, 1.0 - since / max(1, self.total_steps - self.warmup_steps))
        else:
            factor = ops.ones_like(since)
        return self.peak * ops.minimum(warmup, factor)

    def get_config(self):
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "decay": self.decay,
            "total_steps": self.total_steps,
        }


def build_optimizer(schedule: WarmupDecay, weight_decay: float) -> keras.optimizers.AdamW:
    """AdamW with BERT's constants; biases and layer norms are not decayed.

    The gradient is clipped by the trainer, after it is summed over the devices.
    """
    optimizer = keras.optimizers.AdamW(
        schedule, beta_1=0.9, beta_2=0.999, epsilon=1e-6, weight_decay=weight_decay
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma"])
    return optimizer


COUNTS = ("samples", "tokens", "cells", "without_negatives")

# Seconds between two calls of `tell`, each of which interrupts the steps for a moment.
_TELL_EVERY = 2.0


def seed_dropout(model: keras.Model, seed: int, step: int | tf.Tensor) -> None:
    """Sets the state of every dropout, so that (seed, step, layer, replica) decide its masks.

    Keras counts the calls of a dropout instead, and does not save the count: a resumed run would
    draw other masks, and so would one whose layers are called several times a step. All replicas
    would draw the same masks.

    Args:
        model: the training model.
        seed: the run's seed.
        step: the step that comes next, from 0.
    """
    layers = model._flatten_layers(include_self=False)
    found = [getattr(layer, "seed_generator", None) for layer in layers]
    states = [generator.state for generator in found if generator is not None]

    replica = tf.distribute.get_replica_context()
    replica_id = replica.replica_id_in_sync_group if replica else 0
    # The 1 keeps these draws apart from those of initial weights.
    key = tf.constant([seed, 1], tf.int64)
    for part in (step, replica_id):
        key = tf.random.fold_in(key, tf.cast(part, tf.int64))

    drawn = tf.random.stateless_uniform([len(states), 2], key, 0, 2**31 - 1, tf.int64)
    for state, value in zip(states, tf.unstack(drawn), strict=True):
        state.assign(tf.cast(value, state.dtype))


class Trainer:
    """Runs optimizer steps; knows nothing of tasks, checkpoints or summaries.

    Gradients are those of the loss averaged over the global batch: each replica differentiates
    the sum over its rows, sums and weights are added up over the replicas, and their quotient is
    clipped and applied. So the result does not depend on how rows fall to replicas.

    Args:
        strategy: a MirroredStrategy, under whose scope model and optimizer were made.
        model: the training model.
        optimizer: the optimizer.
        compute_loss: the task's sums.
        metric_names: the names of these sums.
        clip_norm: largest global norm of the gradient.
        jit_compile: whether loss and gradients are compiled with XLA.
        stop_asked: bool variable, read before every step; no stop without one.
        seed: of the dropout masks.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        compute_loss: ComputeLoss,
        metric_names: Sequence[str],
        clip_norm: float,
        jit_compile: bool = False,
        stop_asked: tf.Variable | None = None,
        seed: int = 0,
    ):
        self.strategy = strategy
        self.model = model
        self.optimizer = optimizer
        self._compute_loss = compute_loss
        self._names = ("loss", "weight", *COUNTS, *metric_names)
        self._clip_norm = clip_norm
        self._seed = seed
        self._stop_asked = tf.Variable(False, trainable=False) if stop_asked is None else stop_asked
        self._pace = 1  # steps between two calls of `tell`
        self._differentiate = self._sum_gradients
        if jit_compile:
            self._differentiate = tf.function(self._sum_gradients, jit_compile=True)
        self._variables = [variable.value for variable in model.trainable_variables]
        with strategy.scope():
            optimizer.build(model.trainable_variables)

    def train(
        self,
        iterator: Iterator[Any],
        num_steps: int,
        loss_limit: float = math.inf,
        tell: Callable[[dict[str, float]], None] | None = None,
    ) -> dict[str, float]:
        """Takes steps, fewer if a stop is asked for or the loss diverges.

        Args:
            iterator: over the distributed dataset.
            num_steps: how many at most.
            loss_limit: a step's loss above it, or one that is no number, ends the steps.
            tell: is given what is returned, of the steps so far, every few seconds.

        Returns:
            The task's metrics averaged over the rows of these steps, `gradient_norm` (before
            clipping) averaged over the steps, and the counts; `steps` taken; `diverged`, 1 if the
            last of them did, else 0.
        """
        limit = tf.constant(loss_limit, tf.float32)
        sums = {name: tf.zeros([]) for name in (*self._names, "gradient_norm", "steps")}
        taken, ended = 0, False
        while not ended:
            count = min(num_steps - taken, self._pace) if tell else num_steps
            begun = time.monotonic()
            # It adds to the sums, so that they are the same bits however often it is interrupted.
            sums, diverged = self._train(iterator, tf.constant(count), limit, sums)
            goal, taken = taken + count, int(sums["steps"])
            ended = bool(diverged) or taken < goal or taken == num_steps
            if tell and not ended:
                self._pace = max(1, int(count * _TELL_EVERY / (time.monotonic() - begun)))
                tell(self._average(sums, diverged))
        return self._average(sums, diverged)

    def _average(self, sums: Tensors, diverged: tf.Tensor) -> dict[str, float]:
        values = {name: float(value) for name, value in sums.items()}
        weight, steps = values.pop("weight"), values.pop("steps")
        counts = {name: values.pop(name) for name in COUNTS}
        gradient_norm = values.pop("gradient_norm") / max(steps, 1.0)
        means = {name: value / max(weight, 1e-9) for name, value in values.items()}
        ends = {"steps": steps, "diverged": float(diverged)}
        return {**means, "gradient_norm": gradient_norm, **counts, **ends}

    @tf.function(reduce_retracing=True)
    def _train(
        self, iterator: Iterator[Any], num_steps: tf.Tensor, loss_limit: tf.Tensor, totals: Tensors
    ) -> tuple[Tensors, tf.Tensor]:
        diverged = tf.constant(False)
        for _ in tf.range(num_steps):
            if diverged or self._stop_asked.read_value():
                break
            per_replica = self.strategy.run(self._step, args=(next(iterator),))
            reduced = {**self._reduce(per_replica), "steps": tf.ones([])}
            totals = {name: totals[name] + reduced[name] for name in totals}
            loss = reduced["loss"] / tf.maximum(reduced["weight"], 1e-9)
            finite = tf.math.is_finite(loss) & tf.math.is_finite(reduced["gradient_norm"])
            diverged = ~finite | (loss > loss_limit)
        return totals, diverged

    def _reduce(self, per_replica: dict[str, Any]) -> Tensors:
        add = tf.distribute.ReduceOp.SUM
        sums = {k: self.strategy.reduce(add, v, axis=None) for k, v in per_replica.items()}
        # Every replica holds the norm of the summed gradient.
        sums["gradient_norm"] /= self.strategy.num_replicas_in_sync
        return sums

    def compute_gradients(self, batch: Tensors) -> tuple[list[tf.Tensor], Tensors]:
        """Gradients of the global batch's mean loss, in a replica context; and this one's sums."""
        gradients, sums = self._differentiate(batch)
        replica = tf.distribute.get_replica_context()
        *gradients, weight = replica.all_reduce(
            tf.distribute.ReduceOp.SUM, [*gradients, sums["weight"]]
        )
        return [gradient / tf.maximum(weight, 1e-9) for gradient in gradients], sums

    def _sum_gradients(self, batch: Tensors) -> tuple[list[tf.Tensor], Tensors]:
        """Gradients of the loss summed over this replica's rows, and the sums."""
        # Frozen variables are not watched: nothing below the lowest trained layer is recorded.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._variables)
            sums = self._compute_loss(self.model, batch)
        gradients = tape.gradient(
            sums["loss"], self._variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        # Embeddings' gradients come as slices.
        return [tf.convert_to_tensor(gradient) for gradient in gradients], sums

    def _step(self, batch: Tensors) -> Tensors:
        seed_dropout(self.model, self._seed, self.optimizer.iterations)
        gradients, sums = self.compute_gradients(batch)
        gradients, norm = tf.clip_by_global_norm(gradients, self._clip_norm)
        # The optimizer adds up what the replicas hand it; they all hand it the same.
        replicas = self.strategy.num_replicas_in_sync
        self.optimizer.apply(
            [gradient / replicas for gradient in gradients], self.model.trainable_variables
        )
        return {**{name: sums[name] for name in self._names}, "gradient_norm": norm}
