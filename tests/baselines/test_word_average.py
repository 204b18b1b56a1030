import numpy as np
import pytest

from dcse_tf.baselines.word_vectors import make_word_average
from dcse_tf.bert.vectors import WordVectors

VECTORS = WordVectors(
    {"parcel": 0, "我": 1, "包裹": 2, "包": 3, "don't": 4},
    np.array([[4, 0], [0, 2], [6, 8], [1, 1], [0, 9]], np.float32),
)


@pytest.mark.parametrize(
    ("unit", "sentence", "expected"),
    [
        ("words", "Parcel, PARCEL!", [4, 0]),
        ("words", "don't know", [0, 9]),
        ("words", "parcel parcel don't", [8 / 3, 3]),  # a word counts as often as it occurs
        ("words", "我的包裹", [3, 5]),  # jieba: 我 的 包裹
        ("characters", "我的包裹", [0.5, 1.5]),  # 我 and 包
        ("characters", "我parcel", [2, 1]),
        ("words", "nothing known", [0, 0]),
        ("words", "", [0, 0]),
    ],
)
def test_a_sentence_is_the_mean_of_its_known_words(unit, sentence, expected):
    found = make_word_average(VECTORS, unit)([sentence, "parcel"])
    np.testing.assert_allclose(found, [expected, [4, 0]], rtol=1e-6)
    assert found.dtype == np.float32


def test_no_sentence_has_the_width_of_the_vectors():
    assert make_word_average(VECTORS, "words")([]).shape == (0, 2)
