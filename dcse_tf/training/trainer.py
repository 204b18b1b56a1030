"""The inner loop: n optimizer steps in one tf.function, on all devices."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

Tensors = dict[str, tf.Tensor]
# (model, batch) -> sums over the rows of this replica: "loss" and "weight", the rows' number, by
# which every sum but the counts is divided; samples, tokens and cells are counts.
ComputeLoss = Callable[[keras.Model, Tensors], Tensors]

COUNTS = ("samples", "tokens", "cells")


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
    ):
        self.strategy = strategy
        self.model = model
        self.optimizer = optimizer
        self._compute_loss = compute_loss
        self._names = ("loss", "weight", *COUNTS, *metric_names)
        self._clip_norm = clip_norm
        self._differentiate = self._sum_gradients
        if jit_compile:
            self._differentiate = tf.function(self._sum_gradients, jit_compile=True)
        self._variables = [variable.value for variable in model.trainable_variables]
        with strategy.scope():
            optimizer.build(model.trainable_variables)

    def train(self, iterator: Iterator[Any], num_steps: int) -> dict[str, float]:
        """Takes steps.

        Args:
            iterator: over the distributed dataset.
            num_steps: how many.

        Returns:
            The task's metrics averaged over the rows of these steps, `gradient_norm` (before
            clipping) averaged over the steps, and the counts.
        """
        sums = self._train(iterator, tf.constant(num_steps, tf.int32))
        values = {name: float(value) for name, value in sums.items()}
        weight = values.pop("weight")
        counts = {name: values.pop(name) for name in COUNTS}
        gradient_norm = values.pop("gradient_norm") / num_steps
        means = {name: value / max(weight, 1e-9) for name, value in values.items()}
        return {**means, "gradient_norm": gradient_norm, **counts}

    @tf.function(reduce_retracing=True)
    def _train(self, iterator: Iterator[Any], num_steps: tf.Tensor) -> Tensors:
        totals = {name: tf.zeros([]) for name in (*self._names, "gradient_norm")}
        for _ in tf.range(num_steps):
            per_replica = self.strategy.run(self._step, args=(next(iterator),))
            reduced = self._reduce(per_replica)
            totals = {name: totals[name] + reduced[name] for name in totals}
        return totals

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
        gradients, sums = self.compute_gradients(batch)
        gradients, norm = tf.clip_by_global_norm(gradients, self._clip_norm)
        # The optimizer adds up what the replicas hand it; they all hand it the same.
        replicas = self.strategy.num_replicas_in_sync
        self.optimizer.apply(
            [gradient / replicas for gradient in gradients], self.model.trainable_variables
        )
        return {**{name: sums[name] for name in self._names}, "gradient_norm": norm}
