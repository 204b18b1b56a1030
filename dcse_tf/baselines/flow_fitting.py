"""Fits a flow to embeddings by exact maximum likelihood."""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from dcse_tf.baselines.flow_layers import Flow
from dcse_tf.baselines.whitening import measure_directions
from dcse_tf.errors import InputError
from dcse_tf.progress import Progress

_FIRST_BATCH = 2048  # embeddings that the flow is initialised with
_MAX_HELD_OUT = 1000  # embeddings
_CLIP_NORM = 1.0  # largest norm of the gradient of the mean log-likelihood per dimension
_CHECKS = 20  # evaluations of the held-out likelihood in the whole fit
_PATIENCE = 5  # the fit ends after this many evaluations without an improvement


@dataclasses.dataclass(frozen=True)
class FittedFlow:
    """A flow and its likelihoods, in nats per dimension.

    Attributes:
        flow: the flow after `best_step`.
        before, after: mean log-likelihood of the held-out embeddings before and after the fit.
        best_step: the step with the best likelihood; 0 if fitting did not help.
        held_out: number of embeddings held out. It is 0 if there are fewer than ten embeddings; the
            likelihoods are then those of all embeddings.
    """

    flow: Flow
    before: float
    after: float
    best_step: int
    held_out: int


def fit_flow(
    embeddings: np.ndarray,
    depth: int,
    hidden_dim: int,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> FittedFlow:
    """Fits a flow with Adam. The batch of a step depends only on (seed, step).

    The last tenth of the embeddings, at most 1,000, is held out. Their likelihood is measured
    twenty times during the fit and the best flow is kept, because a flow soon memorizes a small
    corpus.

    Args:
        embeddings: float32 `[sentences, dim]`, in random order.
        depth, hidden_dim: size of the flow, see `Flow`.
        steps: number of optimizer steps, at most.
        batch_size: embeddings per step.
        learning_rate: learning rate of Adam, constant.
        seed: seed of the initial weights, the permutations and the batches.

    Raises:
        InputError: the embeddings vary in fewer than two directions, or the fit has diverged.
    """
    count, dim = embeddings.shape
    coordinates = measure_directions(embeddings).independent_coordinates()
    if len(coordinates) < 2:
        raise InputError(f"the embeddings of {count} sentences vary in one direction: no flow")
    if len(coordinates) < dim:
        logging.info("%d of %d coordinates are independent and used", len(coordinates), dim)

    held_out = min(_MAX_HELD_OUT, count // 10)
    x = np.ascontiguousarray(embeddings[:, coordinates], np.float32)
    fitted = x[: count - held_out]
    others = x[-held_out:] if held_out else x

    flow = Flow(len(coordinates), depth, hidden_dim, dtype="float32", name="flow")
    flow.build((None, dim))
    flow.coordinates.assign(coordinates)
    flow.initialize(tf.constant(fitted[:_FIRST_BATCH]), seed)

    before = _mean_likelihood(flow, others)
    best_step = _run_steps(flow, fitted, others, steps, batch_size, learning_rate, seed)
    after = _mean_likelihood(flow, others)
    return FittedFlow(flow, before, after, best_step, held_out)


def _mean_likelihood(flow: Flow, x: np.ndarray) -> float:
    value = float(np.mean(flow.log_likelihood(tf.constant(x)))) / x.shape[1]
    if not np.isfinite(value):
        raise InputError("the flow has diverged: give a lower `learning_rate` or `depth`")
    return value


def _run_steps(
    flow: Flow,
    x: np.ndarray,
    others: np.ndarray,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> int:
    """Fits the flow to x, float32 `[n, dimensions]`, and restores its best state.

    Returns:
        The step at which the likelihood of `others`, the held-out embeddings, was best.
    """
    step = _make_step(flow, learning_rate)
    progress = Progress("steps of the flow")
    size = min(batch_size, len(x))
    best, best_step, kept = _mean_likelihood(flow, others), 0, _copy(flow)
    losses: list[float] = []
    every = max(1, steps // _CHECKS)

    for number in range(1, steps + 1):
        rng = np.random.default_rng([seed, number])
        batch = x[rng.choice(len(x), size, replace=False)]
        losses.append(float(step(tf.constant(batch))))
        if not np.isfinite(losses[-1]):
            raise InputError(
                f"the flow has diverged at step {number}: give a lower `learning_rate` or `depth`"
            )

        if number % every == 0 or number == steps:
            found = _mean_likelihood(flow, others)
            mean = -float(np.mean(losses))
            logging.info("step %d: log-likelihood %.4f, held-out %.4f", number, mean, found)
            losses.clear()
            if found > best:
                best, best_step, kept = found, number, _copy(flow)
            elif number - best_step >= _PATIENCE * every:
                logging.info("the held-out likelihood no longer improves: the fit ends here")
                break
        progress.update(number, steps)
    progress.close()

    for variable, value in zip(flow.trainable_variables, kept, strict=True):
        variable.assign(value)
    return best_step


def _copy(flow: Flow) -> list[np.ndarray]:
    return [np.array(variable) for variable in flow.trainable_variables]


def _make_step(flow: Flow, learning_rate: float) -> Callable[[tf.Tensor], tf.Tensor]:
    optimizer = keras.optimizers.Adam(learning_rate, global_clipnorm=_CLIP_NORM)
    variables = flow.trainable_variables
    optimizer.build(variables)

    @tf.function(input_signature=[tf.TensorSpec([None, flow.dimensions], tf.float32)])
    def step(batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(flow.log_likelihood(batch)) / flow.dimensions
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return step
