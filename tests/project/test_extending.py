"""The page on extending is true: its examples work as they are printed, like what is built in."""

import functools
import json

import numpy as np
import pytest
import safetensors.numpy
from tiny_reranker import save_reranker
from train_options import SMALL, make_options, read_scalars, rewind

import dcse_tf
from dcse_tf.baselines.registry import BASELINES, BaselineSpec
from dcse_tf.data.formats import FORMATS
from dcse_tf.exporting.export import write_model_card
from dcse_tf.exporting.export_formats import FORMATS as EXPORTS
from dcse_tf.exporting.export_formats import ExportOptions
from dcse_tf.options import OptionError
from dcse_tf.tasks import TASKS
from dcse_tf.tasks.train_options import TrainOptions
from dcse_tf.training.build import build_training

COMMON = {"data_dir": "data", "run_dir": "run", "encoder_size": "tiny"}
THINGS = ("lamp", "chair", "book", "coat", "phone", "kettle", "camera", "ring")
HOURS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


@pytest.mark.slow
def test_the_examples_work_together(printed_examples, tmp_path):
    chats = [
        f"ann: is the {thing} here\nbob: the {thing} comes at {hour}\nann: at {hour} then"
        for thing in THINGS
        for hour in HOURS
    ]
    (tmp_path / "chats.txt").write_text("\n---\n".join(chats))
    data, run = tmp_path / "data", tmp_path / "run"
    prepared = dcse_tf.prepare_data(
        format="chat_log", input=tmp_path / "chats.txt", vocab_size=100, output_dir=data,
        dev_fraction=0.25, test_fraction=0.25,
    )  # fmt: skip
    assert sum(split.sessions for split in prepared.splits.values()) == 64

    settings = {**COMMON, "data_dir": data, "run_dir": run, "task": "margin", "eval_every": 2}
    settings |= {"global_batch_size": 4, "negatives": 3, "margin": 0.5, "learning_rate": 1e-3}
    outcome = dcse_tf.train(steps=2, **settings)
    assert {"dev/matching_r1", "dev/cosine_r1"} <= outcome.scores.keys()
    config = json.loads((run / "config.json").read_text())
    assert (config["task"], config["margin"]) == ("margin", 0.5)
    # It is resumed like any other, and its own option counts among those that may not change.
    assert dcse_tf.train(steps=4, **settings).kept.last_step == 4
    with pytest.raises(ValueError, match=r"`margin`: 0.1"):
        dcse_tf.train(steps=4, **{**settings, "margin": 0.1})

    dcse_tf.fit_baseline(
        kind="scaling", strength=0.5, encoder=run, data_dir=data, output_dir=tmp_path / "scaled"
    )
    scored = {"model": tmp_path / "scaled", "response_selection": data / "test.jsonl"}
    assert dcse_tf.evaluate(**scored, candidates=4)
    folder = dcse_tf.export(run_dir=run, output_dir=tmp_path / "vectors", format="vectors")
    assert {path.name for path in folder.iterdir()} == {"vectors.txt", "model_card.md"}
    lines = (folder / "vectors.txt").read_text().splitlines()
    assert (len(lines), lines[0][:4]) == (101, "100 ")
    card = (folder / "model_card.md").read_text()
    assert "| vectors | of 100 tokens" in card
    assert 'load_word2vec_format("FOLDER/vectors.txt")' in card
    reranker = save_reranker(tmp_path / "reranker")
    with pytest.raises(dcse_tf.InputError, match=r"`format`=vectors: .* is a re-ranker"):
        dcse_tf.export(run_dir=reranker, output_dir=tmp_path / "no", format="vectors")
    assert not (tmp_path / "no").exists()


def test_options_are_those_of_their_tasks_alone_and_a_term_s_are_off_by_default(printed_examples):
    for values, said in (
        ({"margin": 0.1}, "unknown setting margin"),
        ({"task": "margin", "margin": -1.0}, r"`margin`=-1.0: expected at least 0"),
        ({"task": "margin", "best_metric": "dev/map"}, r"`best_metric`=dev/map: .* dev/cosine_r1"),
        ({"task": "simcse", "size_weight": 0.5}, "size_weight"),
        ({"size_weight": -1.0}, r"`size_weight`=-1.0: expected at least 0"),
    ):
        with pytest.raises(OptionError, match=said):
            TrainOptions.from_dict({**COMMON, **values})
    options = TrainOptions.from_dict({**COMMON, "task": "dialogue_cse"})
    assert "size_texts" not in options.divided


def test_a_name_that_is_taken_is_refused(printed_examples):
    scaling = (printed_examples.ScalingOptions, printed_examples.fit)
    make = functools.partial(BaselineSpec, make_layer=printed_examples.make_layer)
    size = printed_examples.Size
    other, margin = (type("X", (x,), {}) for x in (size, printed_examples.MarginOptions))
    nameless = type("Other", (size,), {"name": ""})
    for register, arguments, said in (
        (dcse_tf.register_task, [margin], "'margin'"),
        (dcse_tf.register_format, ["chat_log", lambda path, lines: ()], "'chat_log'"),
        (dcse_tf.register_export, ["vectors", "again"], "'vectors'"),
        (dcse_tf.register_baseline, [make("flow", "", *scaling)], "'flow'"),
        (dcse_tf.register_baseline, [make("twin", "", *scaling)], "'twin': .* name and options"),
        (dcse_tf.register_term, [other, ["simcse", "dialogue_cse"]], "that no other has"),
        (dcse_tf.register_term, [nameless, ["mlm"]], "that no other has"),
        (dcse_tf.register_term, [size, ["gpt"]], "expected one of the tasks"),
    ):
        with pytest.raises(ValueError, match=said):
            register(*arguments)
    assert not TASKS["simcse"].further_terms
    with pytest.raises(ValueError, match="make_layer or make_encode"):
        BaselineSpec("x", "", *scaling)


def test_what_a_cell_registered_is_replaced_when_it_runs_again_edited(printed_examples):
    page = printed_examples.page.replace("option(0.2,", "option(0.3,").replace("(8,", "(9,")
    for old in ("a line of dashes between", "the embedding of every token,", "even widths"):
        page = page.replace(old, f"now {old}")
    printed_examples.run(page)
    for entry in (FORMATS["chat_log"], EXPORTS["vectors"], BASELINES["scaling"]):
        assert "now " in entry.help
    for task in OF_TASK:
        assert TASKS[task].fields()["size_texts"].default == 9
        assert TASKS[task].further_terms == (printed_examples.Size,)
    assert TrainOptions.from_dict({**COMMON, "task": "margin"}).margin == 0.3


OF_TASK = {
    "dialogue_cse": {"negatives": 3},
    "response_selection": {"auxiliary": ("restoration",), "context_turns": 3},
}


@pytest.mark.slow
def test_a_term_is_trained_and_logged_and_a_run_with_it_resumes_to_the_bit(
    printed_examples, data_dir, tmp_path
):
    values = {**SMALL, **OF_TASK["response_selection"], "task": "response_selection"}

    def train(folder, size_weight=0.5):
        values.update(data_dir=str(data_dir), run_dir=str(folder), size_weight=size_weight)
        dcse_tf.train(**values)
        return safetensors.numpy.load_file(folder / "encoder/model.safetensors")

    run = tmp_path / "whole"
    whole, resumed = train(run), train(rewind(run, 2))
    for name, tensor in whole.items():
        np.testing.assert_array_equal(resumed[name], tensor, err_msg=name)
    assert {"size_loss", "size_mean"} <= read_scalars(run).keys()
    recorded = json.loads((run / "config.json").read_text())
    assert (recorded["size_weight"], recorded["size_texts"]) == (0.5, 8)
    with pytest.raises(ValueError, match=r"`size_weight`: 0.25 \(was 0.5\)"):
        train(run, 0.25)
    card, config = tmp_path / "README.md", ExportOptions(run_dir=str(run), output_dir="unused")
    write_model_card(card, config, run / "encoder", {}, "", False)
    assert "| size_weight | 0.5 |" in card.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("task", OF_TASK)
def test_a_term_is_in_the_objective_of_its_tasks(printed_examples, data_dir, monkeypatch, task):
    """Without it, the first step's loss is less by so much; behind a layer norm the page's is 0."""
    compute = printed_examples.Size.compute

    def give_size(self, encoded, rows):
        found = compute(self, encoded, rows)
        return {**found, "loss": found["mean"]}

    monkeypatch.setattr(printed_examples.Size, "compute", give_size)
    values = {**SMALL, **OF_TASK[task], "data_dir": str(data_dir), "run_dir": "unused"}
    losses = {}
    for weight in (0.0, 0.5):
        training = build_training(make_options(task=task, size_weight=weight, **values))
        found = training.model(next(training.batches()), training=False)
        losses[weight] = float(found["loss"])
    size = float(found["size/loss"] / found["size/weight"])
    assert size > 1e-3
    assert losses[0.5] - losses[0.0] == pytest.approx(0.5 * size, rel=1e-3)
