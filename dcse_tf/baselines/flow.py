"""Flow: an invertible network maps embeddings to a Gaussian (BERT-flow, Li et al. 2020)."""

import dataclasses

import numpy as np

from dcse_tf.baselines.registry import BaselineSpec, Fitted, FittedToEmbeddings
from dcse_tf.errors import InputError
from dcse_tf.options import option


@dataclasses.dataclass(frozen=True)
class FlowOptions(FittedToEmbeddings):
    """How a flow is built and fitted."""

    depth: int = option(16, "Steps of the flow.", minimum=1)
    hidden_dim: int = option(256, "Width of the hidden layers of a step's network.", minimum=1)
    steps: int = option(1000, "Optimizer steps (Adam).", minimum=1)
    batch_size: int = option(256, "Embeddings per step.", minimum=1)
    learning_rate: float = option(1e-3, "Learning rate (constant).", minimum=0.0)


def _fit(options, corpus):
    from dcse_tf.baselines.flow_model import fit_flow

    return fit_flow(corpus.embeddings(), options)


def _make_layer(fitted: Fitted, dim: int):
    from dcse_tf.baselines.flow_model import Flow

    flow = Flow(*fitted.facts["shape"], name="flow")
    flow.build((None, dim))
    for name, variable in flow.named_variables():
        value = fitted.tensors[name]
        if value.shape != tuple(variable.shape):
            raise InputError(f"{name} is {list(value.shape)}, expected {list(variable.shape)}")
        if name == "coordinates" and not np.all((value >= 0) & (value < dim)):
            raise InputError(f"expected coordinates of an encoder of {dim} dimensions")
        variable.assign(value)
    return flow


FLOW = BaselineSpec(
    name="flow",
    help="embeddings to a Gaussian by an invertible network that is fitted by maximum likelihood "
    "as in BERT-flow, Li et al. 2020",
    options=FlowOptions,
    fit=_fit,
    make_layer=_make_layer,
)
