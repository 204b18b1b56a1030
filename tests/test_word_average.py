import numpy as np
import pytest

from dcse_tf.encoder.batching import embed_texts
from dcse_tf.encoder.word_vectors import WordVectorBackend
from dcse_tf.model.vectors import WordVectors

VECTORS = WordVectors(
    {"parcel": 0, "我": 1, "包裹": 2, "包": 3, "don't": 4},
    np.array([[4, 0], [0, 2], [6, 8], [1, 1], [0, 9]], np.float32),
)


@pytest.mark.parametrize(
    ("unit", "sentence", "expected"),
    [
        ("words", "Parcel, PARCEL!", [4, 0]),
        ("words", "don't know", [0, 9]),
        ("words", "parcel parcel don't", [8 / 3, 3]),  # a word counts as often as it stands there
        ("words", "我的包裹", [3, 5]),  # jieba: 我 的 包裹
        ("characters", "我的包裹", [0.5, 1.5]),  # 我 and 包
        ("characters", "我parcel", [2, 1]),
        ("words", "nothing known", [0, 0]),
        ("words", "", [0, 0]),
    ],
)
def test_a_sentence_is_the_mean_of_its_known_words(unit, sentence, expected):
    found = embed_texts(WordVectorBackend(VECTORS, unit, 2048), [sentence])
    np.testing.assert_allclose(found, [expected], rtol=1e-6)


@pytest.mark.parametrize("batch_tokens", [1, 3, 2048])
def test_batches_change_nothing(batch_tokens):
    sentences = ["parcel", "", "don't parcel 我", "我的包裹 parcel parcel parcel", "x", "parcel"]
    batches = WordVectorBackend(VECTORS, "words", batch_tokens)
    whole = embed_texts(batches, sentences)
    alone = np.concatenate([embed_texts(batches, [sentence]) for sentence in sentences])
    np.testing.assert_array_equal(whole, alone)


def test_nothing_has_the_width_of_the_vectors():
    assert embed_texts(WordVectorBackend(VECTORS, "words", 8), []).shape == (0, 2)


def test_sentences_without_a_known_word_are_counted(monkeypatch):
    said = []
    monkeypatch.setattr("absl.logging.info", lambda text, *values: said.append(text % values))
    batches = WordVectorBackend(VECTORS, "words", 2048)
    embed_texts(batches, ["parcel", "nothing", "?", "nothing"])
    assert said == ["2 of 3 distinct sentences have no word with a vector: their embedding is zero"]
    embed_texts(batches, ["parcel"])
    assert len(said) == 1
