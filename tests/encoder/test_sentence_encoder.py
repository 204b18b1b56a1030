import unicodedata

import numpy as np
import pytest
import reference
import tensorflow as tf
from tiny_bert import VOCABULARY, build_backbone, encode_alone, fuse, save_checkpoint

from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.bert.blanks import BLANK, NO_CANDIDATE, is_blank
from dcse_tf.encoder.graph import EncoderGraph, GraphBackend
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.matching.matching_files import MatchingForm, build_turn_attention

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
    _, lengths, _ = GraphBackend(_graph(bert)).read(SENTENCES)
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


@pytest.mark.parametrize("aggregation", ["mean", "attention"])
def test_blank_texts_are_no_turns_and_no_candidates(bert, aggregation):
    graph = _graph(bert)
    attention = None if aggregation == "mean" else build_turn_attention(aggregation, 64, 1)
    graph.matching = MatchingForm(attention)
    encoder = SentenceEncoder(GraphBackend(graph))
    responses = ["thanks", "it left today"]
    expected = encoder.similarity(["where is my parcel", "ok"], responses)
    for context in (
        ["where is my parcel", "", "ok"],
        [" \u3000", "where is my parcel", "ok\n", "\0"],
    ):
        found = encoder.similarity(context, ["", responses[0], " \t", responses[1]])
        np.testing.assert_allclose(found[[1, 3]], expected, atol=1e-6)
        assert found[[0, 2]].tolist() == [NO_CANDIDATE] * 2 == [-1e9] * 2
    with pytest.raises(ValueError, match="context 1: expected at least one turn that is not blank"):
        encoder.similarity([["ok"], ["", " "]], responses)


def test_what_is_blank_in_python_is_blank_in_the_graph():
    chars = [chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000]
    known = [char for char in chars if unicodedata.category(char) != "Cn"]
    found = tf.strings.regex_full_match(tf.constant(known), BLANK).numpy()
    assert found.tolist() == [is_blank(char) for char in known]
    assert is_blank("")
    assert not is_blank(" a ")


def test_truncated_texts_are_counted_once_a_call_or_a_job(bert, caplog):
    encoder = _encoder(bert, length=6)
    # Six tokens are all that there is room for: [CLS], four words, [SEP].
    long = ["i want a refund for", "where is my parcel ok"]
    encoder.encode([*long, "i want a refund", long[0]])
    (told,) = caplog.messages
    assert told.startswith("2 distinct texts have more than the 6 tokens of `max_sequence_length`")
    caplog.clear()
    encoder.encode(["i want a refund", ""])
    assert not caplog.messages
    with encoder.gather_truncated():
        for texts in (long, long[1:], ["refund " * 5]):
            encoder.encode(texts)
        assert not caplog.messages
    (told,) = caplog.messages
    assert told.startswith("3 distinct texts")
