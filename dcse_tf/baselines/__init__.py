"""Baselines: sentence embeddings without training the encoder, and a registry for your own.

Importing this package does not import TensorFlow.
"""

from dcse_tf.arguments import load
from dcse_tf.baselines import affine, word_vectors
from dcse_tf.baselines.registry import BaselineSpec, Fitted, FittedToEmbeddings, register_baseline
from dcse_tf.options import option

_FLOW = "baselines.flow_model"
__all__ = ["BaselineSpec", "Fitted", "register_baseline"]


class CenteringOptions(FittedToEmbeddings):
    """Settings of `kind`=centering."""

    # The standard error of a coordinate's mean is then a hundredth of its standard deviation.
    max_sentences: int = 10_000
    components: int = option(0, "First principal components to remove too.", minimum=0)


class WhiteningOptions(FittedToEmbeddings):
    """Settings of `kind`=whitening."""

    dimensions: int = option(
        0, "Dimensions to keep, those of largest variance. 0: all that vary.", minimum=0
    )


class FlowOptions(FittedToEmbeddings):
    """Settings of `kind`=flow: how a flow is built and fitted."""

    depth: int = option(16, "Steps of the flow.", minimum=1)
    hidden_dim: int = option(256, "Width of the hidden layers of a step's network.", minimum=1)
    steps: int = option(1000, "Optimizer steps (Adam), at most.", minimum=1)
    batch_size: int = option(256, "Embeddings per step.", minimum=1)
    learning_rate: float = option(1e-3, "Learning rate (constant).", minimum=0.0)


for spec in (
    BaselineSpec(
        "centering",
        "embeddings less the mean of the corpus' utterances",
        CenteringOptions,
        fit=lambda options, corpus: affine.fit_centering(corpus.embeddings(), options.components),
        make_layer=affine.make_affine_layer,
    ),
    BaselineSpec(
        "whitening",
        "embeddings to zero mean and identity covariance, Su et al. 2021",
        WhiteningOptions,
        fit=lambda options, corpus: affine.fit_whitening(corpus.embeddings(), options.dimensions),
        make_layer=affine.make_affine_layer,
    ),
    BaselineSpec(
        "flow",
        "embeddings to a Gaussian by an invertible network, BERT-flow, Li et al. 2020",
        FlowOptions,
        # Their module imports TensorFlow.
        fit=lambda options, corpus: load(f"{_FLOW}:fit_flow")(corpus.embeddings(), options),
        make_layer=lambda fitted, dim: load(f"{_FLOW}:make_flow")(fitted, dim),
    ),
    BaselineSpec(
        "word_vectors",
        "the mean of the words' vectors, without an encoder",
        word_vectors.WordVectorsOptions,
        fit=lambda options, corpus: word_vectors.fit_word_vectors(options),
        make_encode=word_vectors.make_encode,
    ),
):
    register_baseline(spec)
