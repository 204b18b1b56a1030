import numpy as np
import pytest
import reference
import tensorflow as tf
from tiny_bert import VOCABULARY, build_backbone, encode_alone

from dcse_tf.models.bert_encoder import build_bert_encoder
from dcse_tf.models.sentence_encoder import SentenceEncoder, embed_all

SENTENCES = ["where is my parcel", "ok", "", "好的发货", "i want a refund for the blue cup", "ok"]
# Ids by hand: [CLS] 2, [SEP] 3, words from 5 on in the vocabulary's order.
IDS = [
    [2, 5, 6, 7, 8, 3],
    [2, 25, 3],
    [2, 3],
    [2, 21, 22, 23, 24, 3],
    [2, 12, 13, 14, 15, 16, 17, 18, 19, 3],
    [2, 25, 3],
]


class Recorder:
    """Embeds a text as [its length, its first letter], and notes the batches."""

    def __init__(self):
        self.batches = []

    def __call__(self, batch: tf.Tensor) -> tf.Tensor:
        texts = [text.decode() for text in batch.numpy()]
        self.batches.append(texts)
        return tf.constant([[len(text), ord(text[0]) if text else 0] for text in texts], tf.float64)


@pytest.fixture(scope="module")
def bert():
    return build_bert_encoder(build_backbone())


def _encoder(bert, pooling="mean", length=32):
    return SentenceEncoder(bert, VOCABULARY, length, pooling)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_embed_all_keeps_order_and_embeds_each_distinct_sentence_once(batch_size):
    sentences = ["ccc", "a", "", "bb", "a", "好", "ccc", ""]
    recorder = Recorder()
    embeddings = embed_all(recorder, sentences, batch_size)
    assert embeddings.dtype == np.float32
    expected = [[3, 99], [1, 97], [0, 0], [2, 98], [1, 97], [1, 0x597D], [3, 99], [0, 0]]
    np.testing.assert_array_equal(embeddings, expected)
    embedded = [text for batch in recorder.batches for text in batch]
    assert sorted(embedded) == sorted(set(sentences))
    assert all(len(batch) <= batch_size for batch in recorder.batches)


def test_embed_all_puts_sentences_of_a_length_together():
    recorder = Recorder()
    embed_all(recorder, ["a" * 50, "b", "c" * 49, "d"], 2)
    assert [{len(text) for text in batch} for batch in recorder.batches] == [{1}, {49, 50}]


def test_embed_all_tells_its_progress():
    told = []
    embed_all(Recorder(), list("abcab"), 2, progress=lambda *args: told.append(args))
    assert told == [(2, 3), (3, 3)]


def test_embed_all_of_nothing_has_no_rows_but_a_width():
    assert embed_all(Recorder(), []).shape == (0, 2)


def test_mean_pooling_is_over_all_tokens_from_cls_to_sep(bert):
    embeddings = _encoder(bert).encode(SENTENCES)
    assert embeddings.dtype == np.float32
    for found, ids in zip(embeddings, IDS, strict=True):
        expected = reference.mean_of_rows(encode_alone(bert, ids))
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_cls_pooling_is_the_first_token(bert):
    embeddings = _encoder(bert, "cls").encode(SENTENCES)
    for found, ids in zip(embeddings, IDS, strict=True):
        np.testing.assert_allclose(found, encode_alone(bert, ids)[0], atol=1e-5)


def test_a_sentence_does_not_depend_on_its_batch(bert):
    encoder = _encoder(bert)
    alone = np.concatenate([encoder.encode([sentence]) for sentence in SENTENCES])
    np.testing.assert_allclose(encoder.encode(SENTENCES), alone, atol=1e-5)


def test_a_long_sentence_is_cut_and_keeps_its_end(bert):
    # Five tokens: [CLS], three words, [SEP]
    expected = reference.mean_of_rows(encode_alone(bert, [2, 12, 13, 14, 3]))
    found = _encoder(bert, length=5).encode(["i want a refund for the blue cup"])
    np.testing.assert_allclose(found, [expected], atol=1e-5)


def test_token_embeddings_come_with_their_mask(bert):
    embeddings, mask = _encoder(bert).token_embeddings(tf.constant(SENTENCES))
    assert embeddings.dtype == tf.float32
    np.testing.assert_array_equal(tf.reduce_sum(tf.cast(mask, tf.int32), 1), [6, 3, 2, 6, 10, 3])
    for rows, keep, ids in zip(embeddings.numpy(), mask.numpy(), IDS, strict=True):
        np.testing.assert_allclose(rows[keep], encode_alone(bert, ids), atol=1e-5)


def test_dropout_is_off_when_sentences_are_embedded():
    encoder = _encoder(build_bert_encoder(build_backbone(dropout=0.5)))
    np.testing.assert_array_equal(encoder.encode(SENTENCES), encoder.encode(SENTENCES))


def test_two_encoders_do_not_share_a_graph(bert):
    """A graph kept by the class would give the second encoder the first one's weights."""
    other = build_bert_encoder(build_backbone(seed=9))
    first, second = _encoder(bert).encode(["ok"]), _encoder(other).encode(["ok"])
    assert not np.allclose(first, second, atol=1e-2)
    expected = reference.mean_of_rows(encode_alone(other, IDS[1]))
    np.testing.assert_allclose(second, [expected], atol=1e-5)


def test_an_encoder_follows_its_weights():
    """While training, dev scores must be those of the weights as they are."""
    backbone = build_backbone()
    encoder = _encoder(build_bert_encoder(backbone))
    before = encoder.encode(["ok"])
    backbone.get_layer("embeddings_layer_norm").beta.assign_add(np.ones(64))
    assert not np.allclose(encoder.encode(["ok"]), before, atol=1e-2)
