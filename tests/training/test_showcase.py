"""What training shows in TensorBoard besides its figures, read back from the files of events."""

import dataclasses
import json
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorboard.plugins import projector
from tensorboard.plugins.hparams import plugin_data_pb2
from test_baseline_tasks import make_config
from train_options import make_options

from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.evaluation import response_selection
from dcse_tf.evaluation.geometry import NAMES
from dcse_tf.evaluation.response_selection import evaluate_by_embeddings, read_sessions
from dcse_tf.evaluation.retrieval import (
    Query,
    RetrievalSet,
    evaluate_retrieval,
    write_retrieval_set,
)
from dcse_tf.tasks import TASKS
from dcse_tf.training import job
from dcse_tf.training.checkpoint_store import find_checkpoint
from dcse_tf.training.dev_evaluation import CANDIDATES
from dcse_tf.training.tensorboard import (
    HEADLINES,
    Points,
    TensorBoardShowcase,
    choose_sentences,
    choose_session,
    list_settings,
    write_projector,
)

pytestmark = pytest.mark.slow

MAPS = ("explain/matching", "explain/contributions")


def read_events(run_dir):
    """Tag -> its summaries as (step, value), of all files of a run in order."""
    found = {}
    for path in sorted((run_dir / "tensorboard").glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value))
    return found


def scalars(events, tag):
    return [(step, float(tf.make_ndarray(value.tensor))) for step, value in events[tag]]


def read_projector(folder):
    """The embeddings and the lines of their metadata, as the configuration names them."""
    text = (folder / "projector_config.pbtxt").read_text()
    config = text_format.Parse(text, projector.ProjectorConfig())
    [shown] = config.embeddings
    tensors = np.loadtxt(folder / shown.tensor_path, delimiter="\t", ndmin=2)
    assert list(shown.tensor_shape) == list(tensors.shape)
    lines = (folder / shown.metadata_path).read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    return tensors, lines


RETRIEVAL = RetrievalSet(
    ["a parcel", "the parcel", "a refund", "a parcel", "my\u2028refund"],
    [Query(0, np.array([1]), np.array([2])), Query(2, np.array([4]), np.array([0]))],
    ["parcel", "parcel", "refund", "parcel", ""],
)


@pytest.fixture(scope="module")
def shown(data_dir, tmp_path_factory):
    """A run of the paper's objective that evaluates twice, at steps 0 and 4."""
    folder = tmp_path_factory.mktemp("shown")
    write_retrieval_set(folder / "select.txt", RETRIEVAL)
    settings = {"dev_retrieval": str(folder / "select.txt"), "deterministic": True}
    job.train(make_config(data_dir, folder / "run", "dialogue_cse", **settings))
    return folder / "run"


def test_heatmaps_of_one_dev_session_are_written_at_each_evaluation(shown):
    events = read_events(shown)
    for tag in MAPS:
        assert [step for step, _ in events[tag]] == [0, 4]
        pngs = [value.tensor.string_val[2] for _, value in events[tag]]
        images = [tf.io.decode_png(png).numpy() for png in pngs]
        assert images[0].shape == images[1].shape  # the same tokens
        assert min(images[0].shape[:2]) > 300
        assert len(set(pngs)) == 2  # another encoder


def test_a_training_does_without_matplotlib(data_dir, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    job.train(make_config(data_dir, tmp_path / "run", "dialogue_cse"))
    events = read_events(tmp_path / "run")
    assert not set(MAPS) & set(events)
    assert any("geometry" in tag for tag in events)


def test_geometry_is_written_beside_the_scores(shown, data_dir):
    events = read_events(shown)
    assert [tag for tag in events if tag.startswith("eval/geometry/")] == [
        f"eval/geometry/{part}/{name}" for part in ("sessions", "retrieval") for name in NAMES
    ]
    encoder = SentenceEncoder.load(shown, max_sequence_length=16)
    samples = response_selection.make_samples(
        read_sessions(data_dir / "dev.jsonl"),
        candidates=CANDIDATES,
        context_turns=3,
        max_samples=12,
        seed=0,
    )
    expected = {
        "sessions": evaluate_by_embeddings(samples, encoder.encode, {})["cosine"].scores,
        "retrieval": evaluate_retrieval(RETRIEVAL, encoder.encode).scores,
    }
    best = scalars(events, "eval/dev/matching_r1")
    step = max(best, key=lambda item: (item[1], -item[0]))[0]  # whose encoder was kept
    for part, scores in expected.items():
        for name in NAMES:
            values = dict(scalars(events, f"eval/geometry/{part}/{name}"))
            assert sorted(values) == [0, 4]
            assert values[step] == pytest.approx(scores[name], abs=1e-4)


def test_hyperparameters_begin_and_end_in_the_run(shown):
    events = read_events(shown)
    content = [value.metadata.plugin_data for _, value in events["_hparams_/session_start_info"]]
    assert {data.plugin_name for data in content} == {"hparams"}
    start = plugin_data_pb2.HParamsPluginData.FromString(content[0].content).session_start_info
    assert {"task", "encoder", "seed", "learning_rate", "aggregation"} <= set(start.hparams)
    assert not {"run_dir", "log_every", "projector_sentences"} & set(start.hparams)
    assert start.hparams["temperature"].number_value == pytest.approx(0.1)
    assert start.hparams["task"].string_value == "dialogue_cse"
    assert start.hparams["center_tokens"].bool_value is False
    assert start.group_name == "/".join(shown.parts[-3:])
    [(_, ended)] = events["_hparams_/session_end_info"]
    data = plugin_data_pb2.HParamsPluginData.FromString(ended.metadata.plugin_data.content)
    assert data.session_end_info.status == 1  # success


def test_the_scores_of_the_kept_encoder_lead_the_table_of_hyperparameters(shown):
    """The table shows the first five figures by name."""
    events = read_events(shown)
    names = ("cosine_r1", "map", "matching_r1", "mrr")
    best = [f"best/dev/{name}" for name in names]
    kinds = {tag: values[0][1].metadata.plugin_data.plugin_name for tag, values in events.items()}
    assert sorted(tag for tag, kind in kinds.items() if kind == "scalars")[:5] == [
        *best,
        "eval/dev/cosine_bidirectional_mrr",
    ]
    kept = scalars(events, "eval/dev/matching_r1")
    step = max(kept, key=lambda item: (item[1], -item[0]))[0]
    for tag in best:
        evaluated = scalars(events, tag.replace("best", "eval"))
        assert scalars(events, tag)[-1] in evaluated
        assert scalars(events, tag)[-1][0] == step


def test_no_task_has_more_headlines_than_the_table_shows():
    files = {"dev_retrieval": "select.txt", "dev_sts": "sts.txt"}
    for task, spec in TASKS.items():
        given = {} if spec.make_scorer else files  # which a re-ranker refuses
        scores = make_config("data", "run", task, **given).dev_scores()
        assert 1 <= len(set(HEADLINES) & set(scores)) <= 5


def test_the_best_scores_and_the_projector_are_of_the_encoder_that_is_kept(data_dir, tmp_path):
    """Equal sentences are ranked first by any encoder: of equal scores the first is the best."""
    queries = [Query(0, np.array([1]), np.array([2]))]
    texts, intents = ["a parcel", "a parcel", "a refund"], ["parcel", "parcel", "refund"]
    write_retrieval_set(tmp_path / "select.txt", RetrievalSet(texts, queries, intents))
    settings = {"dev_retrieval": str(tmp_path / "select.txt"), "best_metric": "dev/map"}
    run = tmp_path / "run"
    job.train(make_config(data_dir, run, "dialogue_cse", dev_samples=0, eval_every=2, **settings))
    events = read_events(run)
    assert scalars(events, "eval/dev/map") == [(0, 100.0), (2, 100.0), (4, 100.0)]
    assert scalars(events, "best/dev/map") == [(0, 100.0)]
    tensors, _ = read_projector(run / "tensorboard")
    kept = SentenceEncoder.load(run, max_sequence_length=16)
    np.testing.assert_allclose(tensors, kept.encode(["a parcel", "a refund"]), atol=1e-5)


def test_a_best_metric_that_is_no_headline_is_shown_too(tmp_path):
    written = []

    class Summaries:
        def scalars(self, prefix, values, step):
            written.append((prefix, values, step))

    config = make_options(
        data_dir="d", run_dir="r", encoder_size="tiny", best_metric="dev/cosine_r5"
    )
    setup = types.SimpleNamespace(
        options=dataclasses.replace(config, projector_sentences=0), data_dir=tmp_path
    )
    evaluation = types.SimpleNamespace(retrieval=None, scorer=None, geometry={})
    showcase = TensorBoardShowcase(setup, evaluation, Summaries())
    scores = {"dev/cosine_r5": 9.0, "dev/cosine_r2": 8.0, "dev/map": 7.0}
    showcase.after_evaluation(3, scores, kept=False)
    showcase.after_evaluation(4, scores, kept=True)
    best = [call for call in written if call[0] == "best"]
    assert best == [("best", {"dev/cosine_r5": 9.0, "dev/map": 7.0}, 4)]


def test_the_projector_shows_the_sentences_of_the_set_with_their_intents(shown):
    tensors, lines = read_projector(shown / "tensorboard")
    head, *rows = lines
    assert head == "sentence\tlabel"
    expected = ["a parcel\tparcel", "the parcel\tparcel", "a refund\trefund", "my refund\t(none)"]
    assert rows == expected
    assert tensors.shape == (4, 128)
    assert np.ptp(tensors, axis=0).min() > 0


def test_sentences_without_labels_are_one_column_without_a_head(tmp_path):
    embeddings = np.array([[0.5, -1.0], [1e-7, 3.0]], np.float32)
    points = Points(["a\tb\nc", " "], ["", ""])
    write_projector(tmp_path, points, lambda texts: embeddings[: len(texts)])
    tensors, lines = read_projector(tmp_path)
    np.testing.assert_allclose(tensors, embeddings, rtol=1e-5)
    assert lines == ["a b c", "(none)"]


def test_labels_too_many_to_colour_by_have_a_column_in_which_the_rare_ones_are_one(tmp_path):
    """TensorBoard offers no column of more than 50 values in "Color by"."""
    labels = [f"label {n}" for n in range(51) for _ in range(3 - (n in (7, 50)))]
    texts = [f"sentence {n}" for n in range(len(labels))]
    for most in (len(labels), labels.index("label 50")):
        points = Points(texts[:most], labels[:most])
        write_projector(tmp_path, points, lambda texts: np.zeros((len(texts), 2), np.float32))
        head, *rows = (line.split("\t") for line in read_projector(tmp_path)[1])
        assert [row[:2] for row in rows] == [list(row) for row in zip(texts, labels[:most])]
        if most < len(labels):  # 50 labels
            assert head == ["sentence", "label"]
        else:
            assert head == ["sentence", "label", "common label"]
            assert all((row[2] == "(other)") == (row[1] in ("label 7", "label 50")) for row in rows)
            assert all(row[2] in (row[1], "(other)") for row in rows)


def test_what_is_shown_changes_nothing_that_is_learnt(shown, data_dir, tmp_path):
    bare = {"projector_sentences": 0, "dev_samples": 0, "deterministic": True}
    job.train(make_config(data_dir, tmp_path, "dialogue_cse", **bare))
    first, second = (
        tf.train.load_checkpoint(str(find_checkpoint(run) / "state")) for run in (shown, tmp_path)
    )
    names = first.get_variable_to_shape_map()
    learnt = [n for n in names if n.startswith(("model/", "optimizer/")) and n.endswith("VALUE")]
    assert len(learnt) > 80
    for name in learnt:
        np.testing.assert_array_equal(first.get_tensor(name), second.get_tensor(name), name)
    names = [path.name.split(".")[0] for path in (tmp_path / "tensorboard").iterdir()]
    assert names == ["events"]
    assert not any(tag.startswith(("explain", "eval")) for tag in read_events(tmp_path))


def test_sentences_are_drawn_evenly_from_a_set_that_is_sorted_by_intent():
    sentences = [f"sentence {n}" for n in range(100)]
    intents = [f"intent {n // 25}" for n in range(100)]
    points = choose_sentences(8, RetrievalSet(sentences, [], intents), None)
    assert len(set(points.sentences)) == 8
    assert sorted(points.labels) == sorted([f"intent {n}" for n in range(4)] * 2)
    assert len(choose_sentences(1000, RetrievalSet(sentences, [], intents), None).sentences) == 100


def test_dev_utterances_have_the_labels_of_the_corpus(tmp_path):
    turns = [
        {"role": "x", "text": "hello"},
        {"role": "y", "text": "a refund", "intents": ["refund", "money"]},
        {"role": "x", "text": "hello"},
    ]
    path = tmp_path / "dev.jsonl"
    path.write_text(json.dumps({"session_id": "s", "turns": turns}) + "\n")
    points = choose_sentences(9, None, path)
    assert (points.sentences, points.labels) == (["hello", "a refund"], ["", "refund, money"])
    assert choose_sentences(1, None, path).sentences == ["hello"]


def test_a_broken_dev_file_stops_the_run_before_it_trains(data_dir, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for path in data_dir.iterdir():
        (data / path.name).symlink_to(path)
    (data / "dev.jsonl").unlink()
    (data / "dev.jsonl").write_text("nonsense\n")
    with pytest.raises(InputError, match=r"dev\.jsonl:1: not JSON"):
        job.train(make_config(data, tmp_path / "run", "mlm"))
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_the_table_has_the_settings_of_the_task():
    config = make_options(task="mlm", data_dir="data", run_dir="run", encoder_size="tiny")
    values = list_settings(config)
    assert (values["mask_rate"], values["weight_decay"]) == (0.15, 0.01)
    assert "temperature" not in values
    assert (values["encoder"], values["token_vectors"]) == ("random, tiny", "none")
    assert all(type(value) in (bool, int, float, str) for value in values.values())


def test_the_session_that_is_drawn_is_the_first_that_fits():
    small, long, wide = ("a", ["x"] * 2), ("b", ["x"] * 7), ("c", ["y" * 200] * 7)
    assert choose_session([small, wide, long], 7) == long
    assert choose_session([small, wide], 7) == wide
    assert choose_session([small, ("d", ["z"] * 4), ("e", ["z"] * 4)], 7)[0] == "d"
