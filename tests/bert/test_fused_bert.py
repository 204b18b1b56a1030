import numpy as np
import pytest
from tiny_bert import build_backbone, draw_utterances, encode_alone, fuse, make_table

from dcse_tf.bert.bert import build_bert_encoder


@pytest.fixture(scope="module", params=[1e-12, 0.02])
def backbone(request):
    return build_backbone(epsilon=request.param)


@pytest.mark.parametrize(("extra", "fill"), [(0, 0), (3, 9)])
def test_token_embeddings_are_those_of_the_keras_model(backbone, extra, fill):
    bert = build_bert_encoder(backbone)
    utterances = draw_utterances(9)
    found = fuse(backbone)(make_table(utterances, extra, fill)).numpy()
    assert found.dtype == np.float32
    assert found.shape == (9, max(map(len, utterances)) + extra, 64)
    for rows, ids in zip(found, utterances, strict=True):
        np.testing.assert_allclose(rows[: len(ids)], encode_alone(bert, ids), atol=2e-6)


def test_bfloat16_is_near_and_comes_as_float32(backbone):
    table = make_table(draw_utterances(20))
    keep = table["padding_mask"].numpy()
    exact, near = (fuse(backbone, dtype)(table).numpy()[keep] for dtype in ("float32", "bfloat16"))
    assert near.dtype == np.float32
    assert np.abs(exact - near).max() > 1e-4  # it did compute in bfloat16
    cosine = np.sum(exact * near, 1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(near, axis=1)
    assert cosine.mean() > 0.999


def test_no_texts_have_no_rows(backbone):
    """Of an empty batch, [CLS] would otherwise have one."""
    empty = {"token_ids": np.zeros((0, 0), np.int32), "padding_mask": np.zeros((0, 0), bool)}
    assert fuse(backbone)(empty).shape == (0, 0, 64)


def test_training_is_refused(backbone):
    with pytest.raises(ValueError, match="inference"):
        fuse(backbone)(make_table([[2, 3]]), training=True)
