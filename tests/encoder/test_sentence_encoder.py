"""The encoder of notebooks: what it takes, what it gives, what it refuses."""

import shutil
import unicodedata

import numpy as np
import pytest
import reference
import tensorflow as tf
from tiny_bert import DIM, VOCABULARY, build_backbone, encode_alone, save_checkpoint

import dcse_tf
from dcse_tf.baselines.registry import Fitted, write_baseline
from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.bert.sentence_modules import SentenceModules, write_modules, write_prefix
from dcse_tf.bert.vocabulary import BLANK, NO_CANDIDATE, is_blank
from dcse_tf.encoder.backend import FunctionBackend
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.matching.equations import build_turn_attention, write_matching

TEXTS = ["where is my parcel", "ok", "", "好的发货", "i want a refund for the blue cup", "ok"]
# Ids by hand: [CLS] 2, [SEP] 3, words from 5 on in the vocabulary's order.
IDS = [[2, 5, 6, 7, 8, 3], [2, 25, 3], [2, 3], [2, 21, 22, 23, 24, 3]]
IDS += [[2, 12, 13, 14, 15, 16, 17, 18, 19, 3], [2, 25, 3]]
CONTEXT = ["where is my parcel", "it left today", "thanks"]
RESPONSES = ["it left today", "i want a refund for the blue cup", "好的", "it left today"]


@pytest.fixture(scope="module")
def encoder(model):
    return dcse_tf.SentenceEncoder.load(model)


@pytest.fixture(scope="module")
def bert():
    return build_bert_encoder(build_backbone())


@pytest.fixture(scope="module")
def expected(bert):
    """The mean over all tokens of a text alone, from [CLS] to [SEP]."""
    return np.array([reference.mean_of_rows(encode_alone(bert, ids)) for ids in IDS])


@pytest.fixture(scope="module")
def alone(bert):
    """Token embeddings of a text by itself."""
    tokenizer = VOCABULARY.make_tokenizer()
    return lambda text: encode_alone(bert, tokenizer.tokenize([text], 128)[0].to_list()[0])


@pytest.mark.parametrize("batch_tokens", [1, 12, 30, 4096])
def test_embeddings_are_those_of_each_text_alone(model, expected, batch_tokens):
    encoder = dcse_tf.SentenceEncoder.load(model, batch_tokens=batch_tokens)
    found = encoder.encode(TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert encoder.dim == DIM


@pytest.mark.parametrize("make", [
    iter, np.array, lambda texts: np.array(texts, object), lambda texts: list(map(np.str_, texts))
])  # fmt: skip
def test_any_ordered_texts_are_taken(encoder, expected, make):
    np.testing.assert_allclose(encoder.encode(make(TEXTS)), expected, atol=1e-5)


def test_a_single_text_has_no_axis_and_no_texts_are_no_rows(encoder, expected):
    np.testing.assert_allclose(encoder.encode(TEXTS[0]), expected[0], atol=1e-5)
    for empty in ([], np.array([], str)):
        assert encoder.encode(empty, normalize_embeddings=True).shape == (0, DIM)


def test_normalized_embeddings_have_length_one_and_the_same_direction(encoder, expected):
    found = encoder.encode(TEXTS, normalize_embeddings=True)
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected / lengths, atol=1e-5)


def test_settings_reach_the_encoder(model, alone):
    text = "i want a refund for the blue cup"
    by_cls = dcse_tf.SentenceEncoder.load(model, pooling="cls").encode(text)
    np.testing.assert_allclose(by_cls, alone(text)[0], atol=1e-5)
    # [CLS] i want [SEP]: a long sentence keeps its end.
    short = dcse_tf.SentenceEncoder.load(model, max_sequence_length=4).encode(text)
    np.testing.assert_allclose(short, reference.mean_of_rows(alone("i want")), atol=1e-5)
    prefixed = dcse_tf.SentenceEncoder.load(model, prefix="where is ").encode("my parcel")
    whole = reference.mean_of_rows(alone("where is my parcel"))
    np.testing.assert_allclose(prefixed, whole, atol=1e-5)
    near = dcse_tf.SentenceEncoder.load(model, compute_dtype="bfloat16").encode(text)
    assert 1 > reference.cosine(near, reference.mean_of_rows(alone(text))) > 0.99


def test_pooling_and_prefix_are_the_models_own_unless_others_are_asked_for(model, tmp_path):
    """Of a sentence-transformers folder that pools by [CLS], an explicit mean is a mean."""
    other = shutil.copytree(model, tmp_path / "other")
    write_modules(other, SentenceModules("cls"), DIM)
    write_prefix(other, "my ")
    own = dcse_tf.SentenceEncoder.load(other)
    given = dcse_tf.SentenceEncoder.load(model, pooling="cls", prefix="my ")
    assert own.settings == given.settings
    np.testing.assert_array_equal(own.encode(TEXTS), given.encode(TEXTS))
    mean = dcse_tf.SentenceEncoder.load(other, pooling="mean")
    assert np.abs(mean.encode(TEXTS) - own.encode(TEXTS)).max() > 1e-2


def test_the_first_dimensions_are_those_of_the_whole_embedding(model, encoder):
    short = dcse_tf.SentenceEncoder.load(model, truncate_dim=8)
    assert (short.dim, short.settings["truncate_dim"]) == (8, 8)
    np.testing.assert_array_equal(short.encode(TEXTS), encoder.encode(TEXTS)[:, :8])
    # By token embeddings, which are whole.
    np.testing.assert_array_equal(
        *(each.similarity(["ok"], RESPONSES) for each in (short, encoder))
    )
    same = dcse_tf.SentenceEncoder.load(model, truncate_dim=DIM)
    assert same.fingerprint() == encoder.fingerprint() != short.fingerprint()


def test_the_fingerprint_is_of_what_is_computed(model, encoder, tmp_path):
    def fingerprint(folder, **settings):
        return dcse_tf.SentenceEncoder.load(folder, **settings).fingerprint()

    own = encoder.fingerprint()
    copy = shutil.copytree(model, tmp_path / "copy")
    (copy / "training.json").write_text('{"step": 3}')  # where it comes from
    assert fingerprint(copy, pooling="mean", max_sequence_length=128) == own
    assert fingerprint(model, pooling="cls") != own
    assert (long := fingerprint(model, max_sequence_length=512)) != own
    (copy / "sentence_bert_config.json").write_text('{"max_seq_length": 9999}')
    assert fingerprint(copy) == long  # there are no more positions
    assert fingerprint(save_checkpoint(tmp_path / "other", build_backbone(seed=9))) != own
    (copy / "vocab.txt").write_text((model / "vocab.txt").read_text().replace("parcel", "letter"))
    assert fingerprint(copy) != long


def test_an_encoder_follows_its_weights_and_has_no_dropout():
    """While training, dev scores must be those of the weights as they are."""
    backbone = build_backbone(dropout=0.5)
    graph = EncoderGraph(build_bert_encoder(backbone), VOCABULARY, 32, "mean")
    encoder = dcse_tf.SentenceEncoder(graph)
    before = encoder.encode(["ok"])
    np.testing.assert_array_equal(encoder.encode(["ok"]), before)
    backbone.get_layer("embeddings_layer_norm").beta.assign_add(np.ones(DIM))
    assert not np.allclose(encoder.encode(["ok"]), before, atol=1e-2)
    with pytest.raises(ValueError, match="read from a checkpoint"):
        encoder.fingerprint()


def test_truncated_texts_are_counted_once_a_call(model, caplog):
    encoder = dcse_tf.SentenceEncoder.load(model, max_sequence_length=6)
    # Six tokens are all that there is room for: [CLS], four words, [SEP].
    long = ["i want a refund for", "where is my parcel ok"]
    encoder.encode([*long, "i want a refund", long[0]])
    (told,) = caplog.messages
    assert told.startswith("2 distinct texts have more than the 6 tokens of `max_sequence_length`")
    caplog.clear()
    encoder.encode(["i want a refund", ""])
    assert encoder.encode_and_mark(long + TEXTS[:2])[1].tolist() == [True, True, False, False]
    assert not caplog.messages


def test_scores_are_the_matching_similarity(encoder, alone):
    found = encoder.similarity(CONTEXT, RESPONSES)
    assert found.dtype == np.float32
    turns = [alone(text) for text in CONTEXT]
    expected = [reference.similarity(turns, alone(text)) for text in RESPONSES]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.ptp(found) > 0.01
    assert encoder.similarity([CONTEXT, ["ok"]], []).shape == (2, 0)


def test_many_contexts_are_scored_as_each_alone(encoder):
    contexts = [CONTEXT, ["ok"], ["", "好的"]]
    alone = [encoder.similarity(context, RESPONSES) for context in contexts]
    np.testing.assert_allclose(encoder.similarity(contexts, RESPONSES), alone, atol=1e-6)
    column = dict(enumerate(contexts)).values()  # no sequence, as a column of pandas is none
    np.testing.assert_allclose(encoder.similarity(column, RESPONSES), alone, atol=1e-6)
    own = [RESPONSES[:2], RESPONSES[1:3], RESPONSES[2:]]
    expected = [alone[0][:2], alone[1][1:3], alone[2][2:]]
    np.testing.assert_allclose(encoder.similarity(contexts, own), expected, atol=1e-6)
    # As many contexts at a time as one likes.
    parts = encoder.backend.score(contexts[:2], own[:2], chunk=1)
    np.testing.assert_allclose(parts, expected[:2], atol=1e-6)


def test_turn_attention_is_heeded_and_blank_texts_are_no_turns(model, tmp_path):
    other = shutil.copytree(model, tmp_path / "other")
    attention = build_turn_attention("attention", DIM, 5)
    for variable in attention.variables:
        variable.assign(30 * variable)
    write_matching(other, attention)
    scores = []
    for folder in (model, other):
        encoder = dcse_tf.SentenceEncoder.load(folder)
        plain = encoder.similarity(["where is my parcel", "ok"], RESPONSES[:2])
        found = encoder.similarity(
            [" \u3000", "where is my parcel", "", "ok\n", "\0"],
            ["", RESPONSES[0], " \t", RESPONSES[1]],
        )
        np.testing.assert_allclose(found[[1, 3]], plain, atol=1e-6)
        assert found[[0, 2]].tolist() == [NO_CANDIDATE] * 2 == [-1e9] * 2
        scores.append(plain)
    assert np.abs(scores[1] - scores[0]).max() > 1e-4


def test_what_is_blank_in_python_is_blank_in_the_graph():
    chars = [chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000]
    known = [char for char in chars if unicodedata.category(char) != "Cn"]
    found = tf.strings.regex_full_match(tf.constant(known), BLANK).numpy()
    assert found.tolist() == [is_blank(char) for char in known]


def test_a_baseline_without_an_encoder_embeds_and_matches_nothing(tmp_path):
    """The mean of the vectors of words: "my" has none."""
    tensors = {"matrix": np.array([[3.0, 4.0], [0.0, 1.0]], np.float32)}
    facts = {"words": ["parcel", "refund"], "word_unit": "words"}
    write_baseline(tmp_path, "word_vectors", Fitted(tensors, facts))
    averages = dcse_tf.SentenceEncoder.load(tmp_path)
    np.testing.assert_allclose(
        averages.encode("my parcel refund", batch_size=np.int64(1)), [1.5, 2.5]
    )
    with pytest.raises(ValueError, match="has only sentence embeddings"):
        averages.similarity(CONTEXT, RESPONSES)
    with pytest.raises(ValueError, match="has no projection heads"):
        averages.project(np.zeros([1, 2]), "context")
    with pytest.raises(TypeError, match="takes the name of a model"):
        dcse_tf.SentenceEncoder(str(tmp_path))


@pytest.mark.parametrize(("texts", "place"), [
    (None, "texts"), (b"ok", "texts"), ({"ok": 1}, "texts"), (np.array([["a", "b"]]), "texts"),
    (["ok", None], r"texts\[1\]"), (["ok", "ok", 3.5], r"texts\[2\]"),
    ([["ok"]], r"texts\[0\]"), (["ok", "\ud800"], r"texts\[1\]"),
], ids=str)  # fmt: skip
def test_what_is_no_text_is_named_with_its_place(encoder, texts, place):
    with pytest.raises((TypeError, ValueError), match=f"^{place}: "):
        encoder.encode(texts)


@pytest.mark.parametrize(("context", "responses", "place"), [
    ("ok", ["ok"], "context"), (["ok"], "ok", "responses"), (["ok"], [["ok"]], r"responses\[0\]"),
    ([["ok"], ["", " "]], ["ok"], "context 1"), ([["a"], ["b", 3]], ["c"], r"context\[1\]\[1\]"),
    ([["ok"], ["ok"]], [["ok"]], "responses"), ([["ok"]] * 2, [["ok"], ["a", "b"]], "responses"),
], ids=str)  # fmt: skip
def test_contexts_and_responses_that_do_not_fit_are_refused(encoder, context, responses, place):
    with pytest.raises((TypeError, ValueError), match=f"^{place}: "):
        encoder.similarity(context, responses)


@pytest.mark.parametrize(("settings", "option"), [
    ({"pooling": "max"}, "pooling"), ({"compute_dtype": "float16"}, "compute_dtype"),
    ({"max_sequence_length": 2}, "max_sequence_length"), ({"batch_tokens": 0}, "batch_tokens"),
    ({"max_sequence_length": 9999}, "max_sequence_length"),
    ({"prefix": "where is ", "max_sequence_length": 4}, "max_sequence_length"),
    ({"truncate_dim": DIM + 1}, "truncate_dim"), ({"projection": "context"}, "projection"),
    ({"model": "./nothing"}, "model"),
], ids=str)  # fmt: skip
def test_settings_that_cannot_be_are_refused(model, settings, option):
    with pytest.raises(ValueError, match=f"^`{option}`="):
        dcse_tf.SentenceEncoder.load(**{"model": model, **settings})


def test_the_first_dimensions_are_of_length_one_and_have_no_heads():
    rows = np.array([[0.6, 0.0, 0.8], [0.0, -1.0, 0.0]], np.float32)
    backend = FunctionBackend(lambda texts: rows[: len(texts)], str, 9, {"unit_norm": True})
    backend.heads = {"context": (), "response": ()}
    encoder = dcse_tf.SentenceEncoder(backend, truncate_dim=2)
    np.testing.assert_allclose(encoder.encode(["a", "b"]), [[1, 0], [0, -1]])
    assert (dcse_tf.SentenceEncoder(backend).heads, encoder.heads) == (backend.heads, {})
