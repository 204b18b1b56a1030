"""What attention adds to its scores by how far two tokens are apart (MPNet, Song et al. 2020).

The distances fall into buckets, those of T5 (Raffel et al. 2020), and every head has a number for
each bucket, the same in all layers. Only numpy: training, inference and ONNX have them from here.
"""

import numpy as np

# transformers' MPNet has these two whatever the configuration says.
BUCKETS, FARTHEST = 32, 128


def bucket_distances(distances: np.ndarray) -> np.ndarray:
    """T5's buckets of distances: half of them for tokens behind and half for those ahead, eight of
    each for one distance alone, the others ever wider up to `FARTHEST`.

    Args:
        distances: int, place of the key less place of the query.

    Returns:
        int of that shape, from 0 to `BUCKETS` - 1.

    Example:
        0, -7, 7, -8, 11 and 1,000 give 0, 7, 23, 8, 24 and 31.
    """
    half = BUCKETS // 2
    exact = half // 2
    far = np.abs(distances)
    octaves = np.log2(np.maximum(far, exact) / exact) / np.log2(FARTHEST / exact)
    wide = exact + (octaves * (half - exact)).astype(int)
    return np.where(far < exact, far, np.minimum(wide, half - 1)) + half * (distances > 0)


# By distance from -FARTHEST to FARTHEST; what is farther is in the outermost bucket too.
BUCKET_OF = bucket_distances(np.arange(-FARTHEST, FARTHEST + 1))
