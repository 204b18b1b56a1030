"""The jobs as functions: what they take, what they return, what they refuse."""

import doctest
import inspect
import pathlib

import numpy as np
import pytest
import write_signatures

import dcse_tf
from dcse_tf import api
from dcse_tf.api import make_options
from dcse_tf.data.corpus import PrepareOptions
from dcse_tf.search.searcher import SearchOptions
from dcse_tf.tasks import TASKS
from dcse_tf.tasks.train_options import TrainOptions

TRAIN = {"data_dir": "data", "run_dir": "run", "encoder_size": "tiny"}


def train_options(preset=(), **given):
    return make_options(TrainOptions, "train", preset, {**TRAIN, **given})


def prepare_options(**given):
    given = {"input": __file__, "output_dir": "out", "vocab_size": 100, **given}
    return make_options(PrepareOptions, "prepare_data", (), given)


@pytest.mark.parametrize("make", [
    str, pathlib.Path, lambda path: [path], lambda path: (pathlib.Path(path),),
    lambda path: iter([path]), lambda path: np.array([path]),
])  # fmt: skip
def test_files_may_be_texts_or_paths_one_or_many(make):
    assert prepare_options(input=make(__file__)).input == (__file__,)


def test_a_path_is_taken_where_one_file_is_meant(monkeypatch):
    assert train_options(run_dir=pathlib.Path("runs") / "a").run_dir == "runs/a"
    monkeypatch.setenv("HOME", "/home/me")  # "~" would be a folder of that name here
    assert train_options(run_dir="~/a").run_dir == "/home/me/a"
    assert prepare_options(input=["~/a", "b"], vocab_size=9).input == ("/home/me/a", "b")


def test_numbers_may_be_numpy_s_words_lists_or_none():
    options = train_options(steps=np.int64(7), learning_rate=1, dropout=np.float32(0.25))
    assert (options.steps, options.learning_rate, options.dropout) == (7, 1.0, 0.25)
    assert train_options(deterministic=np.True_).deterministic is True
    assert [type(v) for v in (options.steps, options.learning_rate)] == [int, float]
    assert train_options(negatives="all").negatives == 0  # as the command line has it
    for dims in ([8, 16], np.array([8, 16]), ("8", "16")):
        assert train_options(matryoshka_dims=dims, cosine_weight=0.5).matryoshka_dims == ("8", "16")
    assert train_options(None, steps=None, decay=None) == train_options()


def test_a_preset_gives_what_nothing_else_gives():
    """flags/debug.flags has 4 steps and 2 negatives, flags/recommended.flags a weight of 0.8."""
    options = train_options(preset="debug", steps=7)
    assert (options.steps, options.negatives) == (7, 2)
    options = train_options(preset=["recommended", "debug"])
    assert (options.steps, options.cosine_weight) == (4, 0.8)
    assert train_options(preset="simcse").task == "simcse"
    assert train_options(preset="siamese_single", task="siamese_multi").task == "siamese_multi"


@pytest.mark.parametrize(("given", "names"), [
    ({"steps": "ten"}, "`steps`='ten'"), ({"steps": 2.5}, "`steps`=2.5"),
    ({"steps": True}, "`steps`=True"), ({"steps": -1}, "`steps`=-1"),
    ({"learning_rate": "fast"}, "`learning_rate`='fast'"), ({"run_dir": 3}, "`run_dir`=3"),
    ({"deterministic": 1}, "`deterministic`=1"), ({"task": "translation"}, "translation"),
    ({"preset": "nothing"}, "`preset`=nothing: expected one of .*recommended"),
    ({"preset": "ecd/sts"}, "`preset`=ecd/sts"), ({"tempo": 1}, "tempo"),
    ({"data_dir": ""}, "`data_dir` is required"),
], ids=str)  # fmt: skip
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
    (tmp_path / "a.txt").touch()
    with pytest.raises(dcse_tf.InputError, match=r"`input`=.*: no such file; expected one file"):
        dcse_tf.embed(model="run", input=tmp_path / "*.txt", output="o")
    given = {"model": "m", "corpus": __file__, "queries": tmp_path / "*"}
    with pytest.raises(dcse_tf.InputError, match=r"`queries`=.*a\.txt: an output would overwrite"):
        SearchOptions.from_dict(given | {"output": tmp_path / "a.txt"}).check_files()
    with pytest.raises(dcse_tf.InputError, match="expected a folder that prepare_data wrote"):
        dcse_tf.train(data_dir=tmp_path, encoder_size="tiny", run_dir=tmp_path / "run")


def test_the_signatures_that_editors_read_are_those_of_the_options():
    """`python tests/helpers/write_signatures.py` writes them anew."""
    assert write_signatures.PATH.read_text() == write_signatures.write_stub()
    known = write_signatures.make_signature(dcse_tf.train).parameters
    assert known["global_batch_size"].default is None  # the task's own
    assert known["data_dir"].default is inspect.Parameter.empty
    for task in TASKS.values():
        assert {*task.options.fields()} <= {*known}


@pytest.mark.slow
@pytest.mark.parametrize("name", dcse_tf._JOBS)
def test_the_example_of_a_function_runs(
    name, dialogues_file, data_dir, trained_run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    there = {"dialogues.jsonl": dialogues_file, "data": data_dir, "run": trained_run}
    for link, target in {**there, "start": trained_run / "encoder"}.items():
        (tmp_path / link).symlink_to(target)
    (tmp_path / "sentences.txt").write_text("where is it\nit left today\n")
    examples = doctest.DocTestFinder().find(
        getattr(dcse_tf, name), name, globs={"dcse_tf": dcse_tf}
    )
    (example,) = [each for each in examples if each.examples]
    assert doctest.DocTestRunner().run(example).failed == 0


def test_what_is_exported_is_there():
    for name in dcse_tf.__all__:
        assert hasattr(dcse_tf, name), name
    assert dcse_tf.export is api.export
