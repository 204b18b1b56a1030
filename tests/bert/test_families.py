"""Encoders of other architectures are read as BERTs: against keras-hub's own, and the reference."""

import json

import keras_hub
import numpy as np
import pytest
import reference
import safetensors.numpy
import tensorflow as tf
from tiny_bert import DIM, LAYERS, VOCABULARY, VOCABULARY_SIZE, build_backbone, make_table
from tiny_checkpoints import POSITIONS, ROBERTA, encode_both, write_weights

from dcse_tf.bert import bert, weights
from dcse_tf.bert.checkpoints import find_padding, read_config
from dcse_tf.bert.vocabulary import SentencePiece

PREFIXES = {"distilbert": "distilbert.", "roberta": "roberta.", "xlm-roberta": "", "bert": "bert."}


@pytest.mark.parametrize(("kind", "prefix"), PREFIXES.items())
def test_token_embeddings_are_those_of_the_reference(tmp_path, kind, prefix):
    exact = write_weights(tmp_path, kind, prefix)
    first, epsilon = 2 if "roberta" in kind else 0, 1e-12 if kind == "distilbert" else 1e-5
    ids = [7, 9, 30, 3, 41]
    expected = reference.bert(ids, exact, 2, epsilon, activation=reference.exact_gelu)

    config = read_config(tmp_path)
    assert config["max_position_embeddings"] == POSITIONS - first
    assert (config["model_type"], config["type_vocab_size"]) == ("bert", 2)
    for found in encode_both(tmp_path, ids):
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_roberta_is_that_of_keras_hub(tmp_path):
    """Written in HuggingFace's form from keras-hub's own layers, which know no BERT."""
    write_weights(tmp_path, "roberta", "roberta.")
    theirs = keras_hub.models.RobertaBackbone(
        vocabulary_size=VOCABULARY_SIZE, num_layers=LAYERS, num_heads=2, hidden_dim=DIM,
        intermediate_dim=128, dropout=0.0, max_sequence_length=POSITIONS - 2,
    )  # fmt: skip
    tensors = weights.read_bert_tensors(tmp_path, read_config(tmp_path))
    table = theirs.get_layer("embeddings")
    table.token_embedding.embeddings.assign(tensors["embeddings.word_embeddings.weight"])
    places = tensors["embeddings.position_embeddings.weight"]
    segment = tensors["embeddings.token_type_embeddings.weight"][0]
    table.position_embedding.position_embeddings.assign(places + segment)
    theirs.get_layer("embeddings_layer_norm").set_weights(
        [tensors[f"embeddings.LayerNorm.{part}"] for part in ("weight", "bias")]
    )
    ours = bert.load_backbone(tmp_path)
    for layer, own in zip(theirs.transformer_layers, ours.transformer_layers, strict=True):
        layer.set_weights(own.get_weights())
        layer._feedforward_intermediate_dense.activation = tf.nn.gelu
        layer._self_attention_layer_norm.epsilon = 1e-5
        layer._feedforward_layer_norm.epsilon = 1e-5
    theirs.get_layer("embeddings_layer_norm").epsilon = 1e-5
    ids = tf.constant([[7, 9, 30, 3, 41, 8]])
    expected = theirs({"token_ids": ids, "padding_mask": tf.ones_like(ids)})
    found = bert.build_bert_encoder(ours)(make_table(ids.numpy().tolist()))
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("padding", [None, "1"])
def test_a_padding_that_is_no_number_is_robertas_own(tmp_path, padding):
    (tmp_path / "config.json").write_text(
        json.dumps({**ROBERTA, "model_type": "roberta", "pad_token_id": padding})
    )
    assert read_config(tmp_path)["max_position_embeddings"] == POSITIONS - 2


@pytest.mark.parametrize("name", ["gelu", "gelu_pytorch_tanh"])
def test_the_activation_is_the_checkpoints(tmp_path, name):
    backbone = build_backbone(stddev=0.5)
    config = {**bert.make_bert_config(LAYERS, DIM, VOCABULARY_SIZE), "hidden_act": name}
    bert.save_backbone(tmp_path, backbone, config)
    exact = {k: np.float64(v) for k, v in weights.read_tensors(tmp_path).items()}
    ids = [2, 7, 9, 30, 3]
    both = [
        reference.bert(ids, exact, 1, 1e-12, activation=form)
        for form in (reference.exact_gelu, reference.gelu)
    ]
    expected = both[name != "gelu"]
    assert np.abs(both[0] - both[1]).max() > 1e-4
    for found in encode_both(tmp_path, ids):
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_padding_that_is_not_the_first_entry_becomes_it(tmp_path):
    """The rows of the table follow the numbering that the vocabulary is read in."""
    write_weights(tmp_path, "xlm-roberta")
    words = [f"\u2581w{i}" for i in range(VOCABULARY_SIZE - 5)]
    tokens = ("<s>", "<pad>", "</s>", "<unk>", *words, "<mask>")
    scores = tuple(-float(i) for i in range(VOCABULARY_SIZE))
    vocabulary = SentencePiece(tokens, False, scores, b"")
    before = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    without = weights.read_tensors(tmp_path)[name]
    np.testing.assert_array_equal(without, before[name])

    vocabulary.write(tmp_path)
    assert find_padding(tmp_path) == 1
    found = weights.read_tensors(tmp_path)[name]
    np.testing.assert_array_equal(found, before[name][[1, 0, *range(2, VOCABULARY_SIZE)]])
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, "added_tokens": []}))
    assert find_padding(tmp_path) == 1  # an entry like any other, for some tools
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text('{"<s>": 0, "<pad>": 3}')
    assert find_padding(tmp_path) == 3
    VOCABULARY.write(tmp_path)  # of WordPiece
    assert find_padding(tmp_path) == 0
