"""An invertible map from embeddings to a Gaussian, and its fit by maximum likelihood (Li et al.
2020, "On the Sentence Embeddings from Pre-trained Language Models").
"""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from keras import ops

from dcse_tf.baselines import FlowOptions
from dcse_tf.baselines.affine import measure_directions
from dcse_tf.baselines.registry import Fitted
from dcse_tf.bert.bert import initialize_weights
from dcse_tf.errors import InputError
from dcse_tf.progress import Progress

_MAX_LOG_SCALE = 1.0  # a coupling stretches a coordinate by at most e
_EPSILON = 1e-6  # added to standard deviations, to avoid dividing a constant coordinate by 0
_KERNEL_STDDEV = 0.05  # standard deviation of the couplings' initial hidden kernels
_FIRST_BATCH = 2048  # embeddings that the flow is initialised with
_MAX_HELD_OUT = 1000  # embeddings
_CLIP_NORM = 1.0  # largest norm of the gradient of the mean log-likelihood per dimension
_CHECKS = 20  # evaluations of the held-out likelihood in the whole fit
_PATIENCE = 5  # the fit ends after this many evaluations without an improvement


class FlowStep(keras.layers.Layer):
    """Standardises each coordinate (ActNorm), reorders them, and couples them (Dinh et al. 2017):
    a network of two hidden ReLU layers computes from the first half by how much the second is
    shifted and scaled. Its last layer begins as zeros, and so the coupling as the identity.
    """

    def __init__(self, hidden_dim: int, **kwargs: Any):
        super().__init__(dtype="float32", **kwargs)
        self.hidden_dim = hidden_dim

    def build(self, input_shape):
        dim = input_shape[-1]
        self.shift = self.add_weight((dim,), "zeros", name="shift")
        self.log_scale = self.add_weight((dim,), "zeros", name="log_scale")
        self.order = self.add_weight((dim,), "zeros", "int32", trainable=False, name="order")
        self.kept, dense = dim // 2, keras.layers.Dense
        hidden = [dense(self.hidden_dim, "relu", dtype="float32") for _ in range(2)]
        last = dense(2 * (dim - self.kept), kernel_initializer="zeros", dtype="float32")
        self.network = keras.Sequential([*hidden, last])
        self.network.build((None, self.kept))

    def initialize(self, x: tf.Tensor, rng: np.random.Generator, seed: int) -> None:
        """Standardises x, float `[n, dim]`, and draws the order and the kernels."""
        self.shift.assign(-ops.mean(x, axis=0))
        self.log_scale.assign(-ops.log(ops.std(x, axis=0) + _EPSILON))
        self.order.assign(rng.permutation(x.shape[1]).astype(np.int32))
        hidden = [layer.kernel for layer in self.network.layers[:-1]]
        initialize_weights(hidden, seed, _KERNEL_STDDEV)

    def call(self, x):
        """Maps x, float `[n, dim]`, to `[n, dim]` and log |det| of the Jacobian, `[n]`."""
        x = ops.take((x + self.shift) * ops.exp(self.log_scale), self.order, axis=1)
        kept, changed = x[:, : self.kept], x[:, self.kept :]
        shift, log_scale = ops.split(self.network(kept), 2, axis=-1)
        log_scale = _MAX_LOG_SCALE * ops.tanh(log_scale)
        y = ops.concatenate([kept, changed * ops.exp(log_scale) + shift], axis=1)
        return y, ops.sum(self.log_scale) + ops.sum(log_scale, axis=1)


class Flow(keras.layers.Layer):
    """Steps on the `coordinates` of embeddings, float `[n, dim]` to `[n, dimensions]`. Those that
    are functions of others are left out: with them the likelihood would grow without bound.
    """

    def __init__(self, dimensions: int, depth: int, hidden_dim: int):
        super().__init__(dtype="float32", name="flow")
        self.dimensions = dimensions
        self.steps = [FlowStep(hidden_dim, name=f"step_{i}") for i in range(depth)]

    def build(self, input_shape):
        self.coordinates = self.add_weight(
            (self.dimensions,), "zeros", "int32", trainable=False, name="coordinates"
        )
        for step in self.steps:
            step.build((None, self.dimensions))

    def initialize(self, x: tf.Tensor, seed: int) -> None:
        """Draws each step's weights, and standardises what reaches it of x `[n, dimensions]`."""
        for i, step in enumerate(self.steps):
            step.initialize(x, np.random.default_rng([seed, i]), seed + i)
            x, _ = step(x)

    def call(self, embeddings):
        return self._transform(ops.take(embeddings, self.coordinates, axis=1))[0]

    def _transform(self, x):
        """Maps x, float `[n, dimensions]`, to z of the same shape and log |det dz/dx|, `[n]`."""
        total = ops.zeros_like(x[:, 0])
        for step in self.steps:
            x, log_determinant = step(x)
            total = total + log_determinant
        return x, total

    def log_likelihood(self, x):
        """Log-density of x, float `[n, dimensions]`, in nats, if z is Gaussian; float `[n]`."""
        z, log_determinant = self._transform(x)
        return log_determinant - 0.5 * ops.sum(ops.square(z) + math.log(2.0 * math.pi), axis=1)

    def name_variables(self) -> dict[str, keras.Variable]:
        """All variables, by names that do not depend on where the flow was built."""
        named = {"coordinates": self.coordinates}
        for step in self.steps:
            named |= {f"{step.name}/{place}": each for place, each in enumerate(step.variables)}
        return named


def make_flow(fitted: Fitted, dim: int) -> Flow:
    """Raises InputError if it was fitted to embeddings of another dimension."""
    flow = Flow(*fitted.facts["shape"])
    flow.build((None, dim))
    for name, variable in flow.name_variables().items():
        value = fitted.tensors[name]
        if value.shape != tuple(variable.shape):
            raise InputError(f"{name} is {list(value.shape)}, expected {list(variable.shape)}")
        variable.assign(value)
    if not np.all((fitted.tensors["coordinates"] >= 0) & (fitted.tensors["coordinates"] < dim)):
        raise InputError(f"expected coordinates of an encoder of {dim} dimensions")
    return flow


def fit_flow(embeddings: np.ndarray, options: FlowOptions) -> Fitted:
    """Fits a flow with Adam. The batch of a step depends only on (seed, step).

    The last tenth of the embeddings, float32 `[sentences, dim]`, is held out, at most 1,000; of
    fewer than ten none. Their likelihood is measured twenty times during the fit and the best flow
    is kept, because a flow soon memorizes a small corpus. Raises InputError if the embeddings vary
    in fewer than two directions, or the fit has diverged.
    """
    count, dim = embeddings.shape
    coordinates = measure_directions(embeddings).independent_coordinates()
    if len(coordinates) < 2:
        raise InputError(f"the embeddings of {count} sentences vary in one direction: no flow")

    held_out = min(_MAX_HELD_OUT, count // 10)
    everything = np.ascontiguousarray(embeddings[:, coordinates], np.float32)
    x = everything[: count - held_out]
    others = tf.constant(everything[-held_out:] if held_out else everything)

    shape = [len(coordinates), options.depth, options.hidden_dim]
    flow = Flow(*shape)
    flow.build((None, dim))
    flow.coordinates.assign(coordinates)
    flow.initialize(tf.constant(x[:_FIRST_BATCH]), options.seed)
    variables = flow.trainable_variables
    optimizer = keras.optimizers.Adam(options.learning_rate, global_clipnorm=_CLIP_NORM)
    optimizer.build(variables)

    @tf.function(input_signature=[tf.TensorSpec([None, flow.dimensions], tf.float32)])
    def step(batch: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(flow.log_likelihood(batch)) / flow.dimensions
        optimizer.apply(tape.gradient(loss, variables), variables)

    every, found, kept = max(1, options.steps // _CHECKS), dict[int, float](), list[np.ndarray]()
    with Progress("steps of the flow", options.steps) as progress:
        for number in range(options.steps + 1):
            if number:
                rng = np.random.default_rng([options.seed, number])
                step(tf.constant(rng.choice(x, min(options.batch_size, len(x)), replace=False)))
            if number % every == 0 or number == options.steps:
                found[number] = float(np.mean(flow.log_likelihood(others))) / flow.dimensions
                if not np.isfinite(found[number]):
                    raise InputError("the flow diverged: give a lower `learning_rate` or `depth`")
                logging.info("step %d: log-likelihood %.4f", number, found[number])
                best = max(found, key=found.__getitem__)
                kept = flow.get_weights() if best == number else kept
                if number - best >= _PATIENCE * every:
                    break
            progress.update(number)
    flow.set_weights(kept)
    measured = f"{held_out} others" if held_out else "these"
    return Fitted(
        tensors={name: variable.numpy() for name, variable in flow.name_variables().items()},
        facts={"sentences": count, "shape": shape, "best_step": best, "held_out": held_out}
        | {"log_likelihood": {"before": found[0], "after": found[best]}},
        summary=f"flow fitted to {len(x)} sentences, taken after step {best}; log-likelihood per "
        f"dimension of {measured}: {found[0]:.3f}, then {found[best]:.3f}",
    )
