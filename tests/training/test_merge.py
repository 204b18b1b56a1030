"""Merging an encoder with its start: the average by hand, what is refused, the mean that goes."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
from tiny_bert import DIM, LAYERS

import dcse_tf
from dcse_tf.bert import bert, checkpoints, sentence_modules
from dcse_tf.bert.bert import initialize_weights
from dcse_tf.bert.sentence_modules import SentenceModules
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.utterance_sample import sample_utterances, spell_utterances
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.exporting.job import export
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.matching.matching_files import (
    MatchingForm,
    build_turn_attention,
    read_matching,
    write_matching,
)
from dcse_tf.options import OptionError
from dcse_tf.training.merge import merge
from dcse_tf.training.merge_options import AUTO, MergeOptions
from dcse_tf.training.merging import average_tensors, read_merge_record

BIAS = f"encoder.layer.{LAYERS - 1}.output.LayerNorm.bias"


def make_checkpoint(folder, vocabulary, seed, layers=LAYERS, dim=DIM):
    """An encoder of the vocabulary with weights, biases too, that the seed gives."""
    folder.mkdir(parents=True)
    config = bert.make_bert_config(layers, dim, len(vocabulary.tokens))
    backbone = bert.build_backbone(config, 0.0)
    initialize_weights(backbone.trainable_variables, seed, 0.05)
    rng = np.random.default_rng(seed)
    for variable in backbone.trainable_variables:
        if len(variable.shape) == 1:
            variable.assign_add(rng.normal(scale=0.1, size=variable.shape))
    bert.save_backbone(folder, backbone, config)
    vocabulary.write(folder)
    return folder


@pytest.fixture(scope="module")
def pair(data_dir, tmp_path_factory):
    """A start and, in place of what was trained from it, an encoder of other weights."""
    folder, vocabulary = tmp_path_factory.mktemp("pair"), read_vocabulary(data_dir / "vocabulary")
    start = make_checkpoint(folder / "start", vocabulary, 1)
    trained = make_checkpoint(folder / "trained", vocabulary, 2)
    checkpoints.write_max_sequence_length(trained, 9)
    return start, trained


@pytest.fixture
def run(pair, tmp_path):
    """Merges the pair; the options' names as keywords."""

    def merge_pair(**settings):
        start, trained = map(str, pair)
        values = {"start": start, "trained": trained, "output_dir": str(tmp_path / "merged")}
        return merge(MergeOptions(**{**values, **settings}))

    return merge_pair


def read_tensors(folder):
    return safetensors.numpy.load_file(folder / "model.safetensors")


def test_the_average_by_hand():
    start = {"a": np.array([0.0, 8.0], np.float32), "b": np.array([[2.0]], np.float32)}
    trained = {"a": np.array([4.0, -8.0], np.float32), "b": np.array([[2.0]], np.float32)}
    merged = average_tensors(start, trained, 0.25)
    assert merged["a"].tolist() == [1.0, 4.0]  # 0.75 x 0 + 0.25 x 4, 0.75 x 8 - 0.25 x 8
    assert merged["b"].tolist() == [[2.0]]
    assert {value.dtype for value in merged.values()} == {np.dtype(np.float32)}


def test_shares_0_and_1_keep_every_bit_even_that_of_a_negative_zero():
    start = {"a": np.array([-0.0, 1e-45], np.float32)}
    trained = {"a": np.array([3.0, 0.1], np.float32)}
    for share, expected in ((0.0, start), (1.0, trained)):
        assert average_tensors(start, trained, share)["a"].tobytes() == expected["a"].tobytes()


@pytest.mark.parametrize(("share", "of"), [(0.0, 0), (1.0, 1)])
def test_a_whole_share_writes_one_of_the_two_bit_for_bit(pair, run, share, of):
    merged = run(share=share)
    found, expected = read_tensors(merged.folder), read_tensors(pair[of])
    assert found.keys() == expected.keys()
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)


def test_the_output_is_an_encoder_with_the_trained_one_s_files(pair, run):
    merged = run(share=0.25)
    first, second, found = map(read_tensors, (*pair, merged.folder))
    for name, value in found.items():
        expected = 0.75 * first[name].astype(np.float64) + 0.25 * second[name]
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-8)
    encoder = SentenceEncoder.load(merged.folder)
    assert encoder.settings["max_sequence_length"] == 9
    assert encoder.encode(["Where is my parcel?"]).shape == (1, DIM)
    record = read_merge_record(merged.folder)
    assert (record.share, record.start.name) == (0.25, str(pair[0]))
    assert record.trained.files == checkpoints.hash_files(pair[1])


def test_pooling_and_turn_attention_are_those_of_the_trained_one(pair, tmp_path, run):
    trained = tmp_path / "cls"
    shutil.copytree(pair[1], trained)
    attention = build_turn_attention("additive_attention", DIM, 5)
    write_matching(trained, MatchingForm(attention=attention))
    sentence_modules.write_modules(trained, SentenceModules("cls", unit_norm=True), DIM)
    merged = run(trained=str(trained), share=0.5)
    assert sentence_modules.read_modules(merged.folder) == SentenceModules("cls", unit_norm=True)
    assert SentenceEncoder.load(merged.folder).settings["pooling"] == "cls"
    found = read_matching(merged.folder).attention
    for one, other in zip(found.variables, attention.variables, strict=True):
        np.testing.assert_array_equal(one, other)


def test_encoders_that_do_not_go_together_are_one_error(pair, run, data_dir, tmp_path):
    vocabulary = read_vocabulary(data_dir / "vocabulary")
    wide = make_checkpoint(tmp_path / "wide", vocabulary, 3, dim=128)
    with pytest.raises(InputError, match=r"`trained`=.*wide: .* hidden_size 128, not 64;"):
        run(trained=str(wide))
    deep = make_checkpoint(tmp_path / "deep", vocabulary, 3, layers=3)
    with pytest.raises(InputError, match=r"num_hidden_layers 3, not 2; expected an encoder train"):
        run(trained=str(deep))

    tokens = (*vocabulary.tokens[:-1], "other")
    words = make_checkpoint(tmp_path / "words", dataclasses.replace(vocabulary, tokens=tokens), 3)
    with pytest.raises(InputError, match=r"`trained`=.*words: .*another vocabulary"):
        run(trained=str(words))

    vectors = tmp_path / "no_bert"
    shutil.copytree(pair[1], vectors)
    (vectors / "config.json").write_text('{"model_type": "lstm", "vocab_size": 300}')
    with pytest.raises(
        InputError, match=r"no_bert/config.json: model_type 'lstm', expected one of"
    ):
        run(trained=str(vectors))
    (vectors / "reranker.json").write_text("{}")
    with pytest.raises(InputError, match=r"`trained`=.*no_bert: is a re-ranker"):
        run(trained=str(vectors))
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 1.5}, "`share`=1.5: expected at most 1"),
        ({"share": -0.5}, "`share`=-0.5: expected a number from 0 to 1, or auto"),
        ({"trained": ""}, "give `trained`, what to merge `start` with, or `center`"),
        ({"share": -1.0}, "`data_dir` goes with `share`=auto and with `center`"),
        ({"data_dir": "data"}, "`data_dir` goes with"),
        ({"keep": 0.5}, "`keep`=0.5: has no meaning without `share`=auto"),
        ({"max_utterances": 5}, "`max_utterances`=5: has no meaning without `center`"),
        ({"trained": "", "center": True, "data_dir": "d", "share": 0.2}, "without `trained`"),
        ({"share": -1.0, "data_dir": "d", "shares": ("0.5", "2")}, "`shares`=0.5,2: expected"),
        ({"share": -1.0, "data_dir": "d", "shares": ("half",)}, "`shares`=half: expected"),
    ],
)
def test_settings_that_make_no_sense_are_one_error(settings, message):
    with pytest.raises(OptionError, match=message):
        MergeOptions(**{"start": "a", "trained": "b", "output_dir": "c", **settings})


def test_the_library_takes_a_number_or_auto(pair, tmp_path):
    start, trained = pair
    merged = dcse_tf.merge(start=start, trained=trained, share=1, output_dir=tmp_path / "a")
    assert merged.share == 1.0
    with pytest.raises(OptionError, match="`share`='some': expected a number"):
        dcse_tf.merge(start=start, trained=trained, share="some", output_dir=tmp_path / "b")


def mean_embedding(folder, data_dir, count=0):
    """Of the train split's distinct utterances, as texts."""
    token_ids = sample_utterances(data_dir, read_manifest(data_dir), count, 0)
    texts = spell_utterances(token_ids, read_vocabulary(folder))
    encoder = SentenceEncoder.load(folder, max_sequence_length=9)
    return encoder.encode(texts).mean(axis=0, dtype=np.float64)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_centring_leaves_a_mean_sentence_embedding_of_zero(pair, run, data_dir, tmp_path, pooling):
    trained = tmp_path / "pooled"
    shutil.copytree(pair[1], trained)
    sentence_modules.write_modules(trained, SentenceModules(pooling), DIM)
    merged = run(trained=str(trained), share=0.5, center=True, data_dir=str(data_dir))
    assert np.abs(mean_embedding(merged.folder, data_dir)).max() < 1e-5
    assert np.abs(mean_embedding(trained, data_dir)).max() > 0.01
    # Nothing but the last layer norm's bias moved.
    plain = run(share=0.5, output_dir=str(tmp_path / "plain"))
    found, expected = read_tensors(merged.folder), read_tensors(plain.folder)
    moved = [name for name in found if not np.array_equal(found[name], expected[name])]
    assert moved == [BIAS]


def test_the_start_is_centred_by_itself_on_as_many_utterances_as_asked_for(pair, run, data_dir):
    checkpoints.write_max_sequence_length(pair[0], 9)
    merged = run(trained="", center=True, data_dir=str(data_dir), max_utterances=20)
    assert np.abs(mean_embedding(merged.folder, data_dir, 20)).max() < 1e-5
    assert np.abs(mean_embedding(merged.folder, data_dir)).max() > 1e-4
    record = read_merge_record(merged.folder)
    assert (record.trained, record.share, record.utterances) == (None, 0.0, 20)
    assert record.centered_on == read_manifest(data_dir).corpus_fingerprint


def test_shares_are_measured_without_a_prefix_if_the_corpus_has_none(run, pair, data_dir, tmp_path):
    prefixed = shutil.copytree(pair[1], tmp_path / "prefixed")
    sentence_modules.write_prefix(prefixed, "where: where: ")
    settings = {"share": AUTO, "shares": ("0.5", "1"), "data_dir": str(data_dir)}
    expected = run(**settings, output_dir=str(tmp_path / "plain"))
    merged = run(**settings, trained=str(prefixed))
    assert merged.choice.to_dict() == expected.choice.to_dict()
    assert read_vocabulary(merged.folder).prefix == ""


def test_a_corpus_of_another_vocabulary_is_refused(run, pair, data_dir, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(data_dir, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["tokenizer_fingerprint"] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="vocabulary"):
        run(center=True, data_dir=str(folder))


def test_the_card_of_an_export_says_what_it_was_made_of(run, pair, tmp_path):
    merged = run(share=0.25)
    export(
        ExportOptions(
            run_dir=str(merged.folder),
            output_dir=str(tmp_path / "export"),
            format="sentence_transformers",
        )
    )
    card = (tmp_path / "export/README.md").read_text()
    digest = checkpoints.hash_files(pair[0])["model.safetensors"]
    parts = "/".join(pair[0].parts[-2:])
    assert f"| merged: start | {parts}, model.safetensors {digest} |" in card
    assert "| merged: weights | 0.75 of the start, 0.25 of the trained |" in card
    assert str(pair[0].parent.parent) not in card


def test_a_record_that_is_none_is_one_error(tmp_path):
    (tmp_path / "merge.json").write_text('{"start": {"name": 3}}')
    with pytest.raises(InputError, match=r"merge\.json: not the record of a merged encoder"):
        read_merge_record(tmp_path)
