"""A term of somebody else, by the public registry: it trains with the tasks it was made for."""

import json

import numpy as np
import pytest
import safetensors.numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from train_options import make_options, rewind

import dcse_tf
from dcse_tf.exporting.export import write_model_card
from dcse_tf.exporting.export_formats import ExportOptions
from dcse_tf.options import OptionError, option
from dcse_tf.tasks import TASKS
from dcse_tf.tasks.spec import Term, TermOptions
from dcse_tf.tasks.train_options import TrainOptions
from dcse_tf.training.build import build_training

SETTINGS = {
    "encoder_size": "tiny", "global_batch_size": 8, "steps": 4, "learning_rate": 1e-3,
    "log_every": 1, "eval_every": 4, "save_every": 2, "dev_samples": 0, "decay": "constant",
    "warmup_steps": 1, "deterministic": True, "freeze_layers": 0,
}  # fmt: skip
OF_TASK = {
    "dialogue_cse": {"negatives": 3},
    "response_selection": {"auxiliary": ("restoration",), "context_turns": 3},
}


class SizeOptions(TermOptions):
    size_weight: float = option(0.0, "Weight of the loss on the size of embeddings.", minimum=0.0)
    size_texts: int = option(4, "Responses in each step, over all devices.", minimum=1)

    @property
    def divided(self):
        return (*super().divided, "size_texts")


class Size(Term):
    """The mean square of the vectors of drawn responses should be 0."""

    name = "size"
    options = SizeOptions

    def draw(self, step):
        import tensorflow as tf

        from dcse_tf.data.table import Rows

        count, responses = self.setup.options.size_texts, tf.size(step.responses)
        drawn = tf.random.stateless_uniform([count], step.seed(self.name), 0, responses, tf.int32)
        numbers = step.add(step.token_ids, step.fingerprints)
        text = tf.gather(numbers, tf.gather(step.responses, drawn))
        return Rows({"text": text}, {"weights": tf.ones([count])})

    def compute(self, encoded, rows):
        from keras import ops

        first = encoded.take_vectors(rows["text"])
        size = ops.mean(first * first, axis=1)
        return {"loss": ops.square(size), "mean": size}


@pytest.fixture(autouse=True)
def registered():
    """As if a plug-in had been loaded."""
    before = dict(TASKS)
    dcse_tf.register_term(Size, list(OF_TASK))
    yield
    TASKS.update(before)


def train(data_dir, folder, task, **changes):
    values = {**SETTINGS, **OF_TASK[task], "size_weight": 0.5, **changes}
    dcse_tf.train(task=task, data_dir=str(data_dir), run_dir=str(folder), **values)
    return safetensors.numpy.load_file(folder / "encoder/model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("task", OF_TASK)
def test_it_trains_is_logged_and_resumes_to_the_bit(data_dir, tmp_path, task):
    whole = train(data_dir, tmp_path / "whole", task)
    resumed = train(data_dir, rewind(tmp_path / "whole", 2), task)
    for name, tensor in whole.items():
        np.testing.assert_array_equal(resumed[name], tensor, err_msg=name)

    events = EventAccumulator(str(tmp_path / "whole/tensorboard"))
    events.Reload()
    tags = [tag for tag in events.Tags()["tensors"] if tag.endswith(("size_loss", "size_mean"))]
    assert len(tags) == 2
    recorded = json.loads((tmp_path / "whole/config.json").read_text())
    assert (recorded["size_weight"], recorded["size_texts"]) == (0.5, 4)
    with pytest.raises(ValueError, match=r"`size_weight`: 0.25 \(was 0.5\)"):
        train(data_dir, tmp_path / "whole", task, size_weight=0.25)

    card, run = tmp_path / "README.md", tmp_path / "whole"
    config = ExportOptions(run_dir=str(run), output_dir=str(tmp_path / "unused"))
    write_model_card(card, config, run / "encoder", {}, "", task == "dialogue_cse")
    assert "| size_weight | 0.5 |" in card.read_text()

    # It is in the objective: without it, the first step's loss is less by so much.
    values = {**SETTINGS, **OF_TASK[task], "data_dir": str(data_dir), "run_dir": "unused"}
    losses = {}
    for weight in (0.0, 0.5):
        training = build_training(make_options(task=task, size_weight=weight, **values))
        found = training.model(next(training.batches()), training=False)
        losses[weight] = float(found["loss"])
    size = float(found["size/loss"] / found["size/weight"])
    assert size > 1e-3
    assert losses[0.5] - losses[0.0] == pytest.approx(0.5 * size, rel=1e-3)


def test_its_options_are_those_of_its_tasks_alone_and_are_off_by_default():
    common = {"data_dir": "data", "run_dir": "run", "encoder_size": "tiny"}
    options = TrainOptions.from_dict({**common, "task": "dialogue_cse"})
    assert (options.size_weight, "size_texts" in options.divided) == (0.0, True)
    with pytest.raises(OptionError, match="size_weight"):
        TrainOptions.from_dict({**common, "task": "simcse", "size_weight": 0.5})
    with pytest.raises(OptionError, match=r"`size_weight`=-1.0: expected at least 0"):
        TrainOptions.from_dict({**common, "size_weight": -1.0})


@pytest.mark.parametrize(("name", "tasks"), [("size", ["simcse", "dialogue_cse"]), ("", ["mlm"])])
def test_a_name_that_another_term_has_is_refused(name, tasks):
    other = type("Other", (Size,), {"name": name})
    with pytest.raises(ValueError, match="expected a name that no other has"):
        dcse_tf.register_term(other, tasks)
    assert other not in TASKS["simcse"].further_terms
    with pytest.raises(ValueError, match="expected one of the tasks"):
        dcse_tf.register_term(Size, ["gpt"])
