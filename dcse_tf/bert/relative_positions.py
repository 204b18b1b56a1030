"""The buckets of MPNet's attention bias, which depends on distance (Song et al. 2020).

Distances are grouped into T5's buckets (Raffel et al. 2020). Each head has one bias for each
bucket, shared by all layers. This module uses only numpy, because training, inference and ONNX
export all use it.
"""

import numpy as np

# transformers' MPNet uses these two values whatever the configuration says.
BUCKETS, FARTHEST = 32, 128


def bucket_distances(distances: np.ndarray) -> np.ndarray:
    """T5's buckets of distances.

    Half of the buckets are for preceding tokens and half for following ones. In each half, eight
    buckets hold a single distance, and the others grow logarithmically up to `FARTHEST`.

    Args:
        distances: int array, position of the key minus position of the query.

    Returns:
        int array of that shape, from 0 to `BUCKETS` - 1.

    Example:
        0, -7, 7, -8, 11 and 1,000 give 0, 7, 23, 8, 24 and 31.
    """
    half = BUCKETS // 2
    exact = half // 2
    far = np.abs(distances)
    octaves = np.log2(np.maximum(far, exact) / exact) / np.log2(FARTHEST / exact)
    wide = exact + (octaves * (half - exact)).astype(int)
    return np.where(far < exact, far, np.minimum(wide, half - 1)) + half * (distances > 0)


# The buckets of distances -FARTHEST to FARTHEST; larger distances share the outermost buckets.
BUCKET_OF = bucket_distances(np.arange(-FARTHEST, FARTHEST + 1))
