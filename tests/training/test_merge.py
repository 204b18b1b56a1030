"""Merging an encoder with its start: the average by hand, the folder written, refusals."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from tiny_bert import DIM, VOCABULARY, read_tensors, save_random

from dcse_tf.bert import checkpoints, sentence_modules
from dcse_tf.bert.sentence_modules import SentenceModules
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.matching import equations
from dcse_tf.options import OptionError
from dcse_tf.training.merge import RECORD_FILE, MergeOptions, average_tensors, merge


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A start and, in place of what was trained from it, an encoder of other weights."""
    folder = tmp_path_factory.mktemp("pair")
    start, trained = save_random(folder / "start", seed=1), save_random(folder / "trained", seed=2)
    checkpoints.write_max_sequence_length(trained, 9)
    return start, trained


@pytest.fixture
def run(pair, tmp_path):
    def merge_pair(**settings):
        start, trained = map(str, pair)
        values = {"start": start, "trained": trained, "output_dir": str(tmp_path / "merged")}
        return merge(MergeOptions(**{**values, **settings}))

    return merge_pair


def test_the_average_by_hand():
    start = {"a": np.array([0.0, 8.0], np.float32), "b": np.array([[-0.0]], np.float32)}
    trained = {"a": np.array([4.0, -8.0], np.float32), "b": np.array([[2.0]], np.float32)}
    merged = average_tensors(start, trained, 0.25)
    assert merged["a"].tolist() == [1.0, 4.0]  # 0.75 x 0 + 0.25 x 4, 0.75 x 8 - 0.25 x 8
    assert merged["b"].tolist() == [[0.5]]
    assert merged["a"].dtype == np.float32
    for share, expected in ((0.0, start), (1.0, trained)):  # every bit, even a negative zero's
        found = average_tensors(start, trained, share)
        assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)


def test_the_output_is_an_encoder_with_the_trained_ones_files(pair, tmp_path, run):
    trained = tmp_path / "cls"
    shutil.copytree(pair[1], trained)
    attention = equations.build_turn_attention("additive_attention", DIM, 5)
    equations.write_matching(trained, attention)
    sentence_modules.write_modules(trained, SentenceModules("cls", unit_norm=True), DIM)
    half = checkpoints.read_config(trained) | {"torch_dtype": "float16"}
    (trained / "config.json").write_text(json.dumps(half))
    merged = run(trained=str(trained), share=0.25)
    assert checkpoints.read_config(merged)["torch_dtype"] == "float32"  # as its tensors
    first, second, found = map(read_tensors, (*pair, merged))
    for name, value in found.items():
        expected = 0.75 * first[name].astype(np.float64) + 0.25 * second[name]
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-8)
    encoder = SentenceEncoder.load(merged)
    assert encoder.settings["max_sequence_length"] == 9
    assert encoder.settings["pooling"] == "cls"
    assert encoder.encode(["where is my parcel"]).shape == (1, DIM)
    attended = equations.read_attention(merged)
    for one, other in zip(attended.variables, attention.variables, strict=True):
        np.testing.assert_array_equal(one, other)
    assert json.loads((merged / RECORD_FILE).read_text()) == {
        "start": {"name": str(pair[0]), "files": checkpoints.hash_files(pair[0])},
        "trained": {"name": str(trained), "files": checkpoints.hash_files(trained)},
        "share": 0.25,
    }
    with pytest.raises(FileExistsError, match="`overwrite`"):
        run()
    whole = read_tensors(run(share=1.0, output_dir=str(tmp_path / "whole")))
    assert all(np.array_equal(second[name], value) for name, value in whole.items())


@pytest.mark.slow
def test_encoders_that_do_not_go_together_are_refused(pair, run, tmp_path):
    other = dataclasses.replace(VOCABULARY, tokens=(*VOCABULARY.tokens[:-1], "other"))
    for name, changes, message in (
        ("wide", {"dim": 128}, "hidden_size 128, not 64"),
        ("deep", {"layers": 3}, "num_hidden_layers 3, not 2"),
        ("words", {"vocabulary": other}, "another vocabulary"),
        ("act", {}, "another hidden_act"),
    ):
        folder = save_random(tmp_path / name, **changes)
        if name == "act":
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
        with pytest.raises(OptionError, match=f"`trained`=.*{name}: .*{message}"):
            run(trained=str(folder))
    (folder / "reranker.json").write_text("{}")
    with pytest.raises(InputError, match=r"`trained`=.*: is a re-ranker"):
        run(trained=str(folder))
    assert not (tmp_path / "merged").exists()
    with pytest.raises(OptionError, match=r"`share`=1\.5"):
        run(share=1.5)
