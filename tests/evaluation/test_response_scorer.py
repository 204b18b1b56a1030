import numpy as np
import pytest
import reference
import tensorflow as tf
from tiny_bert import DIM, VOCABULARY, build_backbone, encode_alone, make_table

from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.encoder.graph import EncoderGraph, GraphBackend
from dcse_tf.matching.dialogue_cse import build_matching

# Different numbers of turns and tokens, texts used several times, an empty one.
CONTEXTS = [
    ["where is my parcel", "it left today", "thanks"],
    ["i want a refund"],
    ["好的", "发货", "ok", "where is my parcel", "the blue cup"],
    ["", "ok"],
    ["refund for the cup ."],
]
CANDIDATES = [
    ["it left today", "i want a refund for the blue cup", "好的"],
    ["ok", "thanks .", "it left today"],
    ["好的发货", "parcel", "where is the cup"],
    ["thanks", "", "好的"],
    ["for the blue cup", "ok", "i want my parcel today"],
]


@pytest.fixture(scope="module")
def bert():
    return build_bert_encoder(build_backbone())


@pytest.fixture(scope="module")
def backend(bert):
    return GraphBackend(EncoderGraph(bert, VOCABULARY, 32, "mean"))


def _tokenize(texts: list[str]) -> list[list[int]]:
    return VOCABULARY.make_tokenizer().tokenize(tf.constant(texts), 32).to_list()


def test_scores_equal_the_reference(bert, backend):
    scores = backend.score(CONTEXTS, CANDIDATES)
    assert scores.dtype == np.float32
    assert scores.shape == (5, 3)

    texts = sorted(
        {text for groups in (CONTEXTS, CANDIDATES) for group in groups for text in group}
    )
    encoded = {
        text: encode_alone(bert, ids) for text, ids in zip(texts, _tokenize(texts), strict=True)
    }
    for row, context, candidates in zip(scores, CONTEXTS, CANDIDATES, strict=True):
        turns = [encoded[text] for text in context]
        expected = [reference.similarity(turns, encoded[text]) for text in candidates]
        np.testing.assert_allclose(row, expected, atol=1e-5)
    assert np.ptp(scores) > 0.05


def test_scores_equal_the_functional_model_on_an_explicit_batch(bert, backend):
    """A row for every use of a text, in the order of use: nothing is shared or sorted."""
    uses = [text for groups in (CONTEXTS, CANDIDATES) for group in groups for text in group]
    table = make_table(_tokenize(uses))
    first = sum(len(group) for group in CONTEXTS)
    turns = tf.RaggedTensor.from_row_lengths(tf.range(first), [len(group) for group in CONTEXTS])
    expected = build_matching(DIM)(
        {
            "token_embeddings": bert(table),
            "padding_mask": table["padding_mask"],
            "context_index": turns.to_tensor(),
            "turn_mask": tf.sequence_mask(turns.row_lengths()),
            "candidate_index": tf.reshape(tf.range(first, len(uses)), [5, 3]),
        }
    )
    found = backend.score(CONTEXTS, CANDIDATES)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("chunk", "rows"), [(1, 1), (2, 16), (3, 2)])
def test_chunks_and_rows_do_not_change_the_scores(backend, chunk, rows):
    expected = backend.score(CONTEXTS, CANDIDATES)
    found = backend.score(CONTEXTS, CANDIDATES, chunk, rows)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_scores_follow_the_weights():
    backbone = build_backbone()
    backend = GraphBackend(EncoderGraph(build_bert_encoder(backbone), VOCABULARY, 32, "mean"))
    before = backend.score(CONTEXTS, CANDIDATES)
    backbone.get_layer("embeddings_layer_norm").beta.assign_add(np.linspace(-1, 1, DIM))
    assert not np.allclose(backend.score(CONTEXTS, CANDIDATES), before, atol=1e-3)
