"""Texts reach a backend each once, in batches full of tokens."""

import itertools

import numpy as np
import pytest

from dcse_tf.encoder.backend import Backend, batch_by_length


class Recorder(Backend):
    """Embeds a text as [its length, its first letter], and notes the batches."""

    def __init__(self, batch_tokens):
        super().__init__(batch_tokens, {}, str)
        self.batches = []

    def read(self, texts):
        lengths = np.array([max(1, len(text)) for text in texts])
        return np.array(texts, object), lengths, lengths > 3

    def embed(self, inputs, tokens):
        self.batches.append((inputs.tolist(), tokens))
        return np.array([[len(text), ord(text[0]) if text else 0] for text in inputs], np.float64)


@pytest.mark.parametrize("batch_tokens", [1, 2, 3, 100])
def test_order_is_kept_and_each_distinct_text_embedded_once(batch_tokens):
    texts = ["cccc", "a", "", "bb", "a", "好", "cccc", ""]
    recorder = Recorder(batch_tokens)
    embeddings, lengths, truncated = recorder.embed_texts(texts)
    assert embeddings.dtype == np.float32
    expected = [[4, 99], [1, 97], [0, 0], [2, 98], [1, 97], [1, 0x597D], [4, 99], [0, 0]]
    np.testing.assert_array_equal(embeddings, expected)
    assert sorted(text for batch, _ in recorder.batches for text in batch) == sorted(set(texts))
    assert lengths.tolist() == [4, 1, 1, 2, 1, 1, 4, 1]
    assert truncated.tolist() == [True, *[False] * 5, True, False]
    assert recorder.embed_texts([])[0].shape == (0, 2)


def test_texts_of_similar_lengths_are_together_and_progress_is_in_tokens():
    recorder, told = Recorder(100), []
    texts = ["a" * 50, "b", "c" * 49, "d" * 33]
    recorder.embed_texts(texts, progress=lambda *args: told.append(args))
    lengths = [({len(text) for text in batch}, tokens) for batch, tokens in recorder.batches]
    assert lengths == [({1, 33}, 33), ({49, 50}, 50)]
    assert told == [(34, 133), (133, 133)]
    recorder.batches.clear()
    recorder.embed_texts(texts, batch_size=1)
    assert len(recorder.batches) == 4


@pytest.mark.parametrize("seed", range(10))
def test_batches_hold_all_within_the_limit_and_are_not_closed_early(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 60, size=rng.integers(0, 300))
    limit = int(rng.integers(1, 200))
    batches = [lengths[places] for places in batch_by_length(lengths, limit)]
    assert np.concatenate([[], *batches]).tolist() == sorted(lengths.tolist())
    places = np.concatenate([[], *batch_by_length(lengths, limit)])
    assert sorted(places) == list(range(len(lengths)))
    for batch, following in itertools.zip_longest(batches, batches[1:]):
        assert len(batch) == 1 or len(batch) * batch[-1] <= limit
        if following is not None:
            assert (len(batch) + 1) * following[0] > limit
