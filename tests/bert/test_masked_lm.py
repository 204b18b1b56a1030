import json

import numpy as np
import pytest
import reference
import tensorflow as tf
from encoded_tables import build_masked_lm
from lettered_corpus import MASK, SPECIAL, prepare_sessions
from tiny_bert import VOCABULARY_SIZE, build_backbone, draw_utterances, make_table
from train_options import make_options, write_untrained

from dcse_tf.bert import weights as bert_weights
from dcse_tf.bert.bert import build_bert_encoder, load_masked_lm_head
from dcse_tf.bert.layout import lay_out
from dcse_tf.errors import InputError
from dcse_tf.training.build import build_training

POSITIONS = [[1, 2], [0, 3], [4, 0]]
DIM = 64


def _head_tensors(seed=0):
    """A head under HuggingFace's names, its matrix as the file has it: outputs first."""
    rng = np.random.default_rng(seed)
    shapes = {
        "cls.predictions.transform.dense.weight": (DIM, DIM),
        "cls.predictions.transform.dense.bias": (DIM,),
        "cls.predictions.transform.LayerNorm.weight": (DIM,),
        "cls.predictions.transform.LayerNorm.bias": (DIM,),
        "cls.predictions.bias": (VOCABULARY_SIZE,),
    }
    return {n: rng.normal(scale=0.3, size=s).astype(np.float32) for n, s in shapes.items()}


def _build(epsilon=1e-12):
    backbone = build_backbone(epsilon=epsilon)
    encoder = build_bert_encoder(backbone)
    model, head = build_masked_lm(backbone, 0)
    return backbone, encoder, model, head


def _batch():
    table = make_table(draw_utterances(8)[3:6])
    tokens = table["token_ids"].shape[1]
    places = [row * tokens + place for row, places in enumerate(POSITIONS) for place in places]
    return {**lay_out(table["token_ids"], 0), "mask_positions": tf.constant(places)}


@pytest.mark.parametrize("epsilon", [1e-12, 0.02])
def test_logits_equal_the_reference(epsilon):
    backbone, encoder, model, head = _build(epsilon)
    tensors = _head_tensors()
    assert load_masked_lm_head(head, tensors, "source")
    batch = _batch()
    logits = model(batch)
    assert logits.dtype == tf.float32
    assert logits.shape == (6, VOCABULARY_SIZE)
    table = {name: batch[name] for name in ("token_ids", "padding_mask")}
    embeddings = encoder(table).numpy().astype(np.float64)
    weights = bert_weights.to_tensors(bert_weights.backbone_weights(backbone))
    exact = {name: np.float64(value) for name, value in weights.items()}
    words = backbone.token_embedding.embeddings.numpy().astype(np.float64)
    kernel, bias, gamma, beta, output_bias = tensors.values()
    for row, positions in enumerate(POSITIONS):
        ids = table["token_ids"][row][table["padding_mask"][row]].numpy().tolist()
        expected = reference.bert(ids, exact, 1, epsilon)
        np.testing.assert_allclose(embeddings[row, : len(ids)], expected, atol=1e-5)
        for place, position in enumerate(positions):
            hidden = reference.gelu(kernel @ embeddings[row, position] + bias)
            hidden = reference.layer_norm(hidden, gamma, beta, epsilon)
            expected = words @ hidden + output_bias
            # BERT's other GELU and Keras' own epsilon are ten times farther away.
            np.testing.assert_allclose(logits[2 * row + place], expected, atol=1e-5)


def test_the_output_matrix_is_the_token_embedding():
    backbone, _, model, _ = _build()
    before = model(_batch()).numpy()
    table = backbone.token_embedding.embeddings
    paths = [v.path for v in model.trainable_variables]
    assert sum(path == table.path for path in paths) == 1
    matrices = [v for v in model.variables if len(v.shape) == 2]
    assert [v.path for v in matrices if VOCABULARY_SIZE in v.shape] == [table.path]
    changed = table.numpy()
    changed[59] += np.linspace(-1, 1, DIM)  # a token that no utterance of the batch has
    assert not (_batch()["token_ids"].numpy() == 59).any()
    table.assign(changed)
    after = model(_batch()).numpy()
    np.testing.assert_allclose(after[..., :59], before[..., :59], atol=1e-5)
    assert not np.allclose(after[..., 59], before[..., 59], atol=1e-2)


def test_half_a_head_is_refused_and_none_is_told():
    _, _, _, head = _build()
    others = {"embeddings.word_embeddings.weight": np.zeros([2, 2])}
    assert not load_masked_lm_head(head, others, "source")
    name = "cls.predictions.transform.LayerNorm.bias"
    tensors = {key: value for key, value in _head_tensors().items() if key != name}
    with pytest.raises(InputError, match=f"given/folder.*{name}"):
        load_masked_lm_head(head, tensors, "given/folder")


@pytest.mark.slow
def test_adapting_an_encoder_without_a_head_begins_from_its_token_embeddings(data_dir, tmp_path):
    """The head has the token embedding among its variables; drawing the head must not draw it.

    What else is not trained, the epsilon of the layer norms, is handed on too.
    """
    settings = {"task": "mlm", "data_dir": str(data_dir)}
    first, second = tmp_path / "first", tmp_path / "second"
    write_untrained(first, encoder_size="tiny", **settings)
    config = first / "config.json"
    config.write_text(config.read_text().replace("1e-12", "0.02"))
    write_untrained(second, encoder=str(first), seed=5, **settings)
    assert json.loads((second / "config.json").read_text())["layer_norm_eps"] == 0.02
    before, after = (bert_weights.read_tensors(folder) for folder in (first, second))
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


@pytest.mark.slow
def test_the_task_predicts_every_ordinary_token_and_none_else(tmp_path):
    """With a rate of 1: [CLS] and [SEP] are neither asked for nor put in place of another."""
    prepare_sessions(tmp_path, [8] * 60, words=12)
    settings = {"task": "mlm", "data_dir": str(tmp_path / "data"), "run_dir": "unused"}
    settings |= {"encoder_size": "tiny", "global_batch_size": 48, "layout": "padded"}
    training = build_training(make_options(mask_rate=1.0, max_predictions=20, **settings))
    replaced = 0
    for batch in training.dataset().take(10).as_numpy_iterator():
        # A turn has 14 tokens between [CLS] and [SEP].
        assert batch["masked_lm_weights"].sum() == len(batch["masked_lm_ids"]) == 48 * 14
        assert not set(batch["masked_lm_ids"].tolist()) & set(SPECIAL)
        seen = batch["token_ids"].reshape(-1)[batch["masked_lm_places"]]
        assert set(seen.tolist()) & set(SPECIAL) == {MASK}
        replaced += ((seen != MASK) & (seen != batch["masked_lm_ids"])).sum()
    # A tenth of 6,720. Were all 85 entries drawn from, 40 or so would be special ones.
    assert replaced > 500
