"""The jobs as functions: what they take, what they return, what they refuse."""

import json
import pathlib

import numpy as np
import pytest

import dcse_tf
from dcse_tf import api
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.options import PrepareOptions
from dcse_tf.exporting import saved_model
from dcse_tf.keywords import make_options
from dcse_tf.tasks.options import TrainOptions

pytestmark = pytest.mark.slow

TRAIN = {"data_dir": "data", "run_dir": "run", "encoder_size": "tiny"}


def train_options(preset=(), **given):
    return make_options(TrainOptions, "train", preset, {**TRAIN, **given})


def prepare_options(**given):
    given = {"input": __file__, "output_dir": "out", "vocab_size": 100, **given}
    return make_options(PrepareOptions, "prepare_data", (), given)


@pytest.mark.parametrize(
    "make",
    [
        str,
        pathlib.Path,
        lambda path: [path],
        lambda path: (pathlib.Path(path),),
        lambda path: iter([path]),
        lambda path: np.array([path]),
    ],
    ids=["text", "path", "list", "tuple of a path", "iterator", "array"],
)
def test_files_may_be_texts_or_paths_one_or_many(make):
    assert prepare_options(input=make(__file__)).input == (__file__,)


def test_a_path_is_taken_where_one_file_is_meant():
    assert train_options(run_dir=pathlib.Path("runs") / "a").run_dir == "runs/a"


def test_numbers_may_be_numpy_s_and_words():
    options = train_options(steps=np.int64(7), learning_rate=1, dropout=np.float32(0.25))
    assert (options.steps, options.learning_rate, options.dropout) == (7, 1.0, 0.25)
    assert [type(v) for v in (options.steps, options.learning_rate)] == [int, float]
    assert train_options(negatives="all").negatives == 0  # as the command line has it


def test_a_list_of_numbers_is_taken():
    for dims in ([8, 16], np.array([8, 16]), ("8", "16")):
        assert train_options(matryoshka_dims=dims, cosine_weight=0.5).matryoshka_dims == ("8", "16")


def test_none_is_not_given():
    assert train_options(steps=None, decay=None) == train_options()


def test_a_preset_gives_what_nothing_else_gives():
    """flags/debug.flags has 4 steps and 2 negatives, flags/recommended.flags a weight of 0.8."""
    options = train_options(preset="debug", steps=7)
    assert (options.steps, options.negatives) == (7, 2)
    options = train_options(preset=["recommended", "debug"])
    assert (options.steps, options.cosine_weight) == (4, 0.8)
    assert train_options(preset="simcse").task == "simcse"
    assert train_options(preset="siamese_single", task="siamese_multi").task == "siamese_multi"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"steps": "ten"}, "`steps`='ten'"),
        ({"steps": 2.5}, "`steps`=2.5"),
        ({"steps": True}, "`steps`=True"),
        ({"steps": -1}, "`steps`=-1"),
        ({"learning_rate": "fast"}, "`learning_rate`='fast'"),
        ({"deterministic": 1}, "`deterministic`=1"),
        ({"run_dir": 3}, "`run_dir`=3"),
        ({"task": "translation"}, "translation"),
        ({"tempo": 1}, "tempo"),
        ({"preset": "nothing"}, "`preset`=nothing: expected one of .*recommended"),
        ({"preset": "ecd/sts"}, "`preset`=ecd/sts"),
        ({"data_dir": ""}, "`data_dir` is required"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_named_without_dashes(given, names):
    with pytest.raises(dcse_tf.OptionError, match=names) as caught:
        dcse_tf.train(**{**TRAIN, **given})
    assert "--" not in str(caught.value)


@pytest.mark.parametrize("value", [3, [3], [__file__, None], b"a.tsv"])
def test_an_option_of_files_takes_nothing_else(value):
    with pytest.raises(dcse_tf.OptionError, match="`input`"):
        prepare_options(input=value)


def test_a_file_that_is_not_there_is_named_before_anything_is_loaded(tmp_path):
    with pytest.raises(dcse_tf.InputError, match=r"`sts`=.*none\.txt: no such file"):
        dcse_tf.evaluate(model="run", sts=tmp_path / "none.txt")


@pytest.fixture(scope="module")
def prepared(dialogues_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("library") / "data"
    manifest = dcse_tf.prepare_data(
        format="jsonl",
        input=dialogues_file,
        output_dir=folder,
        vocab_size=200,
        dev_fraction=0.2,
        test_fraction=0.2,
    )
    return folder, manifest


def test_prepare_data_returns_the_manifest(prepared):
    folder, manifest = prepared
    assert manifest.splits == read_manifest(folder, manifest.tokenizer_fingerprint).splits
    assert sum(split.sessions for split in manifest.splits.values()) == 120


def test_training_returns_the_outcome_and_evaluation_the_results(prepared, tmp_path):
    data, _ = prepared
    outcome = dcse_tf.train(
        preset="debug",
        data_dir=data,
        encoder_size="tiny",
        run_dir=tmp_path / "run",
        steps=2,
        freeze_layers=0,
    )
    assert outcome.kept.step in (0, 2)
    assert 0 <= outcome.scores["dev/cosine_r1"] <= 100
    results = dcse_tf.evaluate(
        model=tmp_path / "run",
        response_selection=data / "test.jsonl",
        candidates=3,
        output=tmp_path / "results.json",
    )
    written = json.loads((tmp_path / "results.json").read_text())
    assert [result.scores for result in results] == [r["scores"] for r in written["results"]]


def test_what_is_exported_is_there_and_export_is_the_function():
    for name in dcse_tf.__all__:
        assert hasattr(dcse_tf, name), name
    assert dcse_tf.export is api.export
    assert saved_model.__name__ == "dcse_tf.exporting.saved_model"
