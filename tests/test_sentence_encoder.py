import numpy as np
import pytest
import reference
import tensorflow as tf
from tiny_bert import VOCABULARY, build_backbone, encode_alone, fuse, save_checkpoint

from dcse_tf.encoder.graph import EncoderGraph, GraphBackend
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.model.bert import build_bert_encoder

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


@pytest.fixture(scope="module")
def bert():
    return build_bert_encoder(build_backbone())


def _graph(bert, pooling="mean", length=32):
    return EncoderGraph(bert, VOCABULARY, length, pooling)


def _encoder(bert, pooling="mean", length=32):
    return SentenceEncoder(GraphBackend(_graph(bert, pooling, length)))


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
    embeddings, mask = _graph(bert).token_embeddings(tf.constant(SENTENCES))
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


def test_the_first_dimensions_are_those_of_the_whole_embedding(bert):
    class Told(GraphBackend):
        settings = property(lambda self: {"unit_norm": getattr(self, "unit_norm", False)})

    backend = Told(_graph(bert))
    whole = SentenceEncoder(backend)
    short, same = (SentenceEncoder(backend, "e", dim) for dim in (8, 64))
    assert (short.dim, short.settings["truncate_dim"]) == (8, 8)
    np.testing.assert_array_equal(short.encode(SENTENCES), whole.encode(SENTENCES)[:, :8])
    backend.unit_norm = True  # as an export may say of itself
    lengths = np.linalg.norm(short.encode(SENTENCES), axis=1)
    np.testing.assert_allclose(lengths, 1.0, atol=1e-6)
    scores = [encoder.similarity(["ok"], SENTENCES) for encoder in (short, whole)]
    np.testing.assert_array_equal(*scores)  # by token embeddings, which are whole
    assert same.settings == whole.settings
    with pytest.raises(InputError, match="`truncate_dim`=65: e has only 64 dimensions"):
        SentenceEncoder(backend, "e", 65)


@pytest.mark.parametrize("batch_tokens", [1, 12, 30, 4096])
def test_batches_of_any_size_give_what_one_sentence_alone_gives(bert, batch_tokens):
    found = SentenceEncoder(GraphBackend(_graph(bert), batch_tokens)).encode(SENTENCES)
    for row, ids in zip(found, IDS, strict=True):
        np.testing.assert_allclose(row, reference.mean_of_rows(encode_alone(bert, ids)), atol=1e-5)


def test_batches_are_measured_in_tokens_and_not_in_letters(bert):
    _, lengths = GraphBackend(_graph(bert)).read(SENTENCES)
    np.testing.assert_array_equal(lengths, [len(ids) for ids in IDS])


def test_compiled_batches_have_few_shapes_and_the_same_values():
    """Lengths 2 to 12 become 8 and 16, and the rows what fits: 4 of 8 tokens, or 2 of 16."""
    graph = _graph(fuse(build_backbone()))
    shapes = []
    pool = graph.pool_tokens

    def record(token_ids):  # runs when a shape is compiled
        shapes.append(tuple(token_ids.shape))
        return pool(token_ids)

    expected = SentenceEncoder(GraphBackend(graph))
    graph.pool_tokens = record
    sentences = [" ".join(["is"] * count) for count in range(10)]
    sentences += [f"{text} ok" for text in sentences]
    found = SentenceEncoder(GraphBackend(graph, 32, jit_compile=True)).encode(sentences)
    assert sorted(shapes) == [(2, 16), (4, 8)]
    np.testing.assert_allclose(found, expected.encode(sentences), atol=1e-5)


def test_a_prefix_must_leave_room_for_a_text(tmp_path):
    model = save_checkpoint(tmp_path / "model", build_backbone())
    with pytest.raises(InputError, match=r"`max_sequence_length`=4: .* room .* at least 5"):
        SentenceEncoder.load(model, prefix="where is ", max_sequence_length=4)
    texts = ["my parcel", "the cup"]
    own = SentenceEncoder.load(model, prefix="where is ", max_sequence_length=5).encode(texts)
    assert np.abs(own[0] - own[1]).max() > 1e-3
