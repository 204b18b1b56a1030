"""The verdict on a trained encoder: its rule, and a run that ends with it."""

import dataclasses
import pathlib
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_bert import read_tensors, save_random

import dcse_tf
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.errors import LockedError
from dcse_tf.evaluation.bootstrap import Difference
from dcse_tf.evaluation.retrieval import read_retrieval_set
from dcse_tf.files import lock_folder, write_json
from dcse_tf.input_files import read_json_object
from dcse_tf.options import OptionError
from dcse_tf.training import verdict
from dcse_tf.training.verdict import Verdict


def better(by):
    return Difference(by, by - 0.5, by + 0.5, 0.001)


UNSURE, WORSE = Difference(3.0, -1.0, 7.0, 0.2), better(-2.0)


@pytest.mark.parametrize(("trained", "merged", "advice", "narrow"), [
    (better(4.0), better(3.0), "train", "merge"), (better(4.0), better(3.9), "merge", "merge"),
    (better(4.0), UNSURE, "train", "train"), (better(4.0), WORSE, "train", "train"),
    (UNSURE, better(1.0), "merge", "merge"), (WORSE, better(1.0), "merge", "merge"),
    (UNSURE, UNSURE, "keep", "keep"), (WORSE, WORSE, "keep", "keep"),
    # p of 0.03 is certain alone, not as the better of two.
    (Difference(4.0, 0.1, 7.9, 0.03), UNSURE, "keep", "keep"),
])  # fmt: skip
def test_what_is_not_certainly_better_is_not_advised(trained, merged, advice, narrow):
    found = Verdict(20.0, trained, merged, 500, (100.0, 50.0, 80.0))
    assert found.advice == advice
    assert f"trained {trained.value:+.1f}" in found.describe()
    assert dataclasses.replace(found, dimensions=(100.0, 49.9, 80.0)).advice == narrow


def test_a_re_ranker_is_no_start_to_compare_with(tmp_path):
    (tmp_path / "reranker.json").touch()
    options = SimpleNamespace(encoder="start", dev_samples=8, end_of_turn=False)
    assert verdict.give_verdict(SimpleNamespace(options=options, source=tmp_path), tmp_path) is None


@pytest.fixture(scope="module")
def settings(data_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    vocabulary = read_vocabulary(data_dir / "vocabulary")
    start = save_random(folder / "start", vocabulary, seed=1, layers=1)
    return {
        **{"preset": "mlm", "data_dir": str(data_dir), "encoder": str(start)},
        **{"global_batch_size": 8, "dev_samples": 16, "eval_every": 4, "steps": 4},
        **{"learning_rate": 1e-2, "run_dir": str(folder / "run")},
    }


def test_a_run_ends_with_a_verdict_and_its_set(settings, monkeypatch):
    monkeypatch.setattr(verdict, "_FEWEST", 10)
    merge, merged = verdict.merge, []
    monkeypatch.setattr(verdict, "merge", lambda given: merged.append(given) or merge(given))
    outcome = dcse_tf.train(**settings)
    assert outcome.kept.step == 4
    assert pathlib.Path(merged[0].output_dir).parent == pathlib.Path(settings["run_dir"])
    found = outcome.verdict
    queries = read_retrieval_set(pathlib.Path(settings["run_dir"]) / verdict.SET_FILE)
    assert found.queries == len(queries.queries) >= 10
    model, retrieval = settings["run_dir"], f"{settings['run_dir']}/{verdict.SET_FILE}"
    start, trained = (
        dcse_tf.evaluate(model=name, retrieval=retrieval, max_sequence_length=16)[0].scores["map"]
        for name in (settings["encoder"], model)
    )
    assert (found.start, found.start + found.trained.value) == pytest.approx((start, trained))
    encoder = dcse_tf.SentenceEncoder.load(model, max_sequence_length=16)
    covariance = np.cov(encoder.encode(queries.sentences, normalize_embeddings=True).T)
    shares = np.abs(np.linalg.eigvalsh(covariance / np.trace(covariance)))
    assert found.dimensions[1] == pytest.approx(np.prod(shares**-shares), rel=1e-4)
    # Few turns, as now, give none; the run is finished, and resumes at its end.
    monkeypatch.undo()
    assert dcse_tf.train(**settings).verdict is None


def test_a_training_is_averaged_with_another(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(verdict, "_FEWEST", 10)
    run = tmp_path / "encoder"  # a name that parts of runs have, too
    given = settings | {"preset": "in_domain", "average_with": "debug", "run_dir": str(run)}
    refused = {"simcse": "its task is simcse", "none": ".*one of .*short_cosine"}
    for preset, why in (refused | {"dialogue_cse_i1": "`aggregation`"}).items():
        with pytest.raises(OptionError, match=f"`average_with`={preset}: {why}"):
            dcse_tf.train(**given | {"average_with": preset, "cosine_weight": 1.0})
    with lock_folder(run, ""), pytest.raises(LockedError):
        dcse_tf.train(**given)
    assert not run.exists()  # nothing was trained
    found = dcse_tf.train(**given).verdict
    # The second training has the preset's flags, and all else of the first.
    runs = run, run / "debug"
    first, second = (read_json_object(run / "config.json") for run in runs)
    flags = {"global_batch_size": 4, "negatives": 2, "dev_samples": 12, "log_every": 2}
    own = {"average_with": "", "run_dir": f"{runs[1]}", "epochs": second["epochs"]}
    assert second == first | flags | {"save_every": 2} | own

    folders = [*(run / "encoder" for run in runs), runs[0] / "averaged"]
    ours, theirs, both = map(read_tensors, folders)
    assert any((ours[name] != theirs[name]).any() for name in ours)
    for name in ours:
        np.testing.assert_allclose(both[name], (ours[name] + theirs[name]) / 2, atol=1e-6)
    queries = f"{runs[0]}/{verdict.SET_FILE}"
    scored = dcse_tf.evaluate(model=folders[2], retrieval=queries, max_sequence_length=16)
    assert found.start + found.merged.value == pytest.approx(scored[0].scores["map"])
    advice = dataclasses.replace(found, merged=better(9.0)).describe()
    assert advice.startswith(f"use {folders[2]}. ")
    assert "averaged +9.0 (" in advice
    # The same command finds both finished; the average counts, even if the run is no better.
    record = read_json_object(run / "encoder/training.json")
    write_json(run / "encoder/training.json", record | {"step": 0})
    assert dcse_tf.train(**given).verdict == found
