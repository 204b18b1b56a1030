"""The layers of a flow: an invertible map to a Gaussian (BERT-flow, Li et al. 2020).

`ActNorm`, `Permutation` and `AffineCoupling` map float `[n, dim]` to float `[n, dim]` and also
return the logarithm of the determinant of their Jacobian, float `[n]`; `inverse` undoes the map.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from dcse_tf.bert.bert import initialize_weights

_MAX_LOG_SCALE = 1.0  # a coupling stretches a coordinate by at most e
_EPSILON = 1e-6  # added to standard deviations, to avoid dividing a constant coordinate by 0
_KERNEL_STDDEV = 0.05  # standard deviation of the couplings' initial hidden kernels


@keras.saving.register_keras_serializable(package="dcse_tf")
class ActNorm(keras.layers.Layer):
    """Shifts and scales each coordinate; `initialize` standardizes them on a first batch."""

    def build(self, input_shape):
        dim = input_shape[-1]
        self.shift = self.add_weight(shape=(dim,), name="shift", initializer="zeros")
        self.log_scale = self.add_weight(shape=(dim,), name="log_scale", initializer="zeros")

    def initialize(self, x):
        """Maps each coordinate of x, float `[n, dim]`, to mean 0 and standard deviation 1."""
        self.shift.assign(-ops.mean(x, axis=0))
        self.log_scale.assign(-ops.log(ops.std(x, axis=0) + _EPSILON))

    def call(self, x):
        log_determinant = ops.sum(self.log_scale) * ops.ones_like(x[:, 0])
        return (x + self.shift) * ops.exp(self.log_scale), log_determinant

    def inverse(self, y):
        return y * ops.exp(-self.log_scale) - self.shift


@keras.saving.register_keras_serializable(package="dcse_tf")
class Permutation(keras.layers.Layer):
    """Reorders the coordinates; the order is fixed, and must be assigned after building."""

    def build(self, input_shape):
        self.order = self.add_weight(
            shape=(input_shape[-1],),
            name="order",
            initializer="zeros",
            dtype="int32",
            trainable=False,
        )

    def call(self, x):
        return ops.take(x, self.order, axis=1), ops.zeros_like(x[:, 0])

    def inverse(self, y):
        return ops.take(y, ops.argsort(self.order), axis=1)


@keras.saving.register_keras_serializable(package="dcse_tf")
class AffineCoupling(keras.layers.Layer):
    """Shifts and scales the second half of the coordinates, depending on the first (Dinh et al.
    2017).

    A network of two hidden ReLU layers computes shift and log-scale, the latter bounded by tanh.
    Its last layer is initialised with zeros, so the coupling starts as the identity.

    Args:
        hidden_dim: width of the hidden layers.
    """

    def __init__(self, hidden_dim, **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim

    def build(self, input_shape):
        self.kept = input_shape[-1] // 2
        changed = input_shape[-1] - self.kept
        widths = [self.kept, self.hidden_dim, self.hidden_dim, 2 * changed]
        self.kernels, self.biases = [], []
        for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            shapes = {f"kernel_{i}": (inputs, outputs), f"bias_{i}": (outputs,)}
            kernel, bias = (
                self.add_weight(shape=shape, name=name, initializer="zeros")
                for name, shape in shapes.items()
            )
            self.kernels.append(kernel)
            self.biases.append(bias)

    def _shift_and_log_scale(self, kept):
        hidden = kept
        for kernel, bias in zip(self.kernels[:-1], self.biases[:-1], strict=True):
            hidden = ops.relu(ops.matmul(hidden, kernel) + bias)
        both = ops.matmul(hidden, self.kernels[-1]) + self.biases[-1]
        shift, log_scale = ops.split(both, 2, axis=-1)
        return shift, _MAX_LOG_SCALE * ops.tanh(log_scale)

    def call(self, x):
        kept, changed = x[:, : self.kept], x[:, self.kept :]
        shift, log_scale = self._shift_and_log_scale(kept)
        y = ops.concatenate([kept, changed * ops.exp(log_scale) + shift], axis=1)
        return y, ops.sum(log_scale, axis=1)

    def inverse(self, y):
        kept, changed = y[:, : self.kept], y[:, self.kept :]
        shift, log_scale = self._shift_and_log_scale(kept)
        return ops.concatenate([kept, (changed - shift) * ops.exp(-log_scale)], axis=1)

    def get_config(self):
        return {**super().get_config(), "hidden_dim": self.hidden_dim}


@keras.saving.register_keras_serializable(package="dcse_tf")
class Flow(keras.layers.Layer):
    """Steps of `ActNorm`, `Permutation` and `AffineCoupling` on some coordinates of embeddings.

    If a coordinate is a function of the others, the embeddings have no density and the likelihood
    grows without bound. Such coordinates are dropped before the first step.

    Args:
        dimensions: number of coordinates used; the variable `coordinates` says which.
        depth: number of steps.
        hidden_dim: width of the hidden layers of the couplings.
    """

    def __init__(self, dimensions, depth, hidden_dim, **kwargs):
        super().__init__(**kwargs)
        self.dimensions = dimensions
        self.depth = depth
        self.hidden_dim = hidden_dim
        self.steps: list[Any] = []
        for i in range(depth):
            self.steps += [
                ActNorm(name=f"act_norm_{i}", dtype=self.dtype_policy),
                Permutation(name=f"permutation_{i}", dtype=self.dtype_policy),
                AffineCoupling(hidden_dim, name=f"coupling_{i}", dtype=self.dtype_policy),
            ]

    def build(self, input_shape):
        self.coordinates = self.add_weight(
            shape=(self.dimensions,),
            name="coordinates",
            initializer="zeros",
            dtype="int32",
            trainable=False,
        )
        for layer in self.steps:
            layer.build((None, self.dimensions))

    def select(self, embeddings):
        """Picks the coordinates used, float `[n, dim]` to `[n, dimensions]`."""
        return ops.take(embeddings, self.coordinates, axis=1)

    def transform(self, x):
        """Maps x, float `[n, dimensions]`, to z of the same shape and log |det dz/dx|, `[n]`."""
        total = ops.zeros_like(x[:, 0])
        for layer in self.steps:
            x, log_determinant = layer(x)
            total = total + log_determinant
        return x, total

    def call(self, embeddings):
        """Maps embeddings, float `[n, dim]`, to z, float `[n, dimensions]`."""
        return self.transform(self.select(embeddings))[0]

    def inverse(self, z):
        """Maps z back to x, float `[n, dimensions]`."""
        for layer in reversed(self.steps):
            z = layer.inverse(z)
        return z

    def log_likelihood(self, x):
        """Log-density of x, float `[n, dimensions]`, in nats, if z is Gaussian; float `[n]`."""
        z, log_determinant = self.transform(x)
        squares = ops.sum(ops.square(z) + math.log(2.0 * math.pi), axis=1)
        return log_determinant - 0.5 * squares

    def initialize(self, x, seed):
        """Draws permutations and weights, and initialises each `ActNorm` on its inputs.

        Args:
            x: embeddings of at least a few hundred sentences, float `[n, dimensions]`.
            seed: seed of the draws.
        """
        for position, layer in enumerate(self.steps):
            if isinstance(layer, ActNorm):
                layer.initialize(x)
            elif isinstance(layer, Permutation):
                rng = np.random.default_rng([seed, position])
                layer.order.assign(rng.permutation(x.shape[1]).astype(np.int32))
            else:
                # The last kernel stays zero, so that the coupling starts as the identity.
                initialize_weights(layer.kernels[:-1], seed + position, _KERNEL_STDDEV)
            x, _ = layer(x)

    def named_variables(self) -> Iterator[tuple[str, keras.Variable]]:
        """All variables, with names that do not depend on where the flow was built."""
        yield "coordinates", self.coordinates
        for layer in self.steps:
            for variable in layer.variables:
                yield f"{layer.name}/{variable.name}", variable

    def get_config(self):
        return {
            **super().get_config(),
            "dimensions": self.dimensions,
            "depth": self.depth,
            "hidden_dim": self.hidden_dim,
        }
