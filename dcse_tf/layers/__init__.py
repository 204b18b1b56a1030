"""The paper's Keras layers, one a file."""

from dcse_tf.layers.cosine_similarity import CosineSimilarity
from dcse_tf.layers.gram_similarity import GramSimilarity
from dcse_tf.layers.masked_mean_pooling import MaskedMeanPooling
from dcse_tf.layers.matching_guided_embedding import MatchingGuidedEmbedding
from dcse_tf.layers.nt_xent import NTXent
from dcse_tf.layers.turn_aggregation import TurnAggregation

__all__ = [
    "CosineSimilarity",
    "GramSimilarity",
    "MaskedMeanPooling",
    "MatchingGuidedEmbedding",
    "NTXent",
    "TurnAggregation",
]
