import numpy as np
import pytest

from dcse_tf.encoder.batching import embed_and_measure, embed_texts, split_by_length


class Recorder:
    """Embeds a text as [its length, its first letter], and notes the batches."""

    def __init__(self, batch_tokens=6):
        self.batch_tokens = batch_tokens
        self.batches = []
        self.tokens = []

    def read(self, sentences):
        lengths = np.array([max(1, len(text)) for text in sentences])
        return np.array(sentences, object), lengths, lengths > 3

    def embed(self, texts, tokens):
        self.batches.append(texts.tolist())
        self.tokens.append(tokens)
        return np.array([[len(text), ord(text[0]) if text else 0] for text in texts], np.float64)


@pytest.mark.parametrize("batch_tokens", [1, 2, 3, 100])
def test_order_is_kept_and_each_distinct_sentence_embedded_once(batch_tokens):
    sentences = ["ccc", "a", "", "bb", "a", "好", "ccc", ""]
    recorder = Recorder(batch_tokens)
    embeddings = embed_texts(recorder, sentences)
    assert embeddings.dtype == np.float32
    expected = [[3, 99], [1, 97], [0, 0], [2, 98], [1, 97], [1, 0x597D], [3, 99], [0, 0]]
    np.testing.assert_array_equal(embeddings, expected)
    embedded = [text for batch in recorder.batches for text in batch]
    assert sorted(embedded) == sorted(set(sentences))


def test_each_text_is_told_its_length_and_whether_it_was_truncated():
    texts = ["cccc", "a", "bb", "cccc", ""]
    _, lengths, truncated = embed_and_measure(Recorder(), texts)
    assert lengths.tolist() == [4, 1, 2, 4, 1]
    assert truncated.tolist() == [True, False, False, True, False]


def test_sentences_of_a_length_are_together():
    recorder = Recorder(100)
    embed_texts(recorder, ["a" * 50, "b", "c" * 49, "d" * 33])
    assert [{len(text) for text in batch} for batch in recorder.batches] == [{1, 33}, {49, 50}]
    assert recorder.tokens == [33, 50]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([2, 2, 2, 2], [(0, 3), (3, 4)]),  # 3 x 2 = 6 fit
        ([1, 1, 2, 3, 3], [(0, 3), (3, 5)]),  # 3 x 2 and 2 x 3; 4 x 3 would be 12
        ([1, 1, 1, 1, 2], [(0, 4), (4, 5)]),  # 5 x 2 would be 10, though 5 of 1 would fit
        ([5, 7, 9], [(0, 1), (1, 2), (2, 3)]),  # alone, however long
        ([1] * 6, [(0, 6)]),
    ],
)
def test_a_batch_is_full_of_tokens(lengths, expected):
    assert list(split_by_length(np.array(lengths, int), 6)) == expected


@pytest.mark.parametrize("seed", range(20))
def test_batches_hold_all_within_the_limit_and_are_not_closed_early(seed):
    rng = np.random.default_rng(seed)
    lengths = np.sort(rng.integers(1, 60, size=rng.integers(1, 300)))
    limit = int(rng.integers(1, 200))
    batches = list(split_by_length(lengths, limit))
    assert [row for start, stop in batches for row in range(start, stop)] == list(
        range(len(lengths))
    )
    for start, stop in batches:
        assert stop - start == 1 or (stop - start) * lengths[stop - 1] <= limit
        if stop < len(lengths):
            assert (stop - start + 1) * lengths[stop] > limit


def test_progress_is_told_in_tokens():
    told = []
    embed_texts(Recorder(4), ["aaaa", "b", "cc", "d"], progress=lambda *args: told.append(args))
    # Sorted: 1 + 1 (with cc it would be 3 x 2), 2, 4 of 8 tokens.
    assert told == [(2, 8), (4, 8), (8, 8)]


def test_nothing_has_no_rows_but_a_width():
    assert embed_texts(Recorder(), []).shape == (0, 2)
