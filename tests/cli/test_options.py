"""Configurations: what they refuse, their JSON, and what a training's options work out."""

import dataclasses
import json
import math

import pytest
from train_options import resolve

from dcse_tf.errors import InputError
from dcse_tf.exporting.export_formats import ExportOptions
from dcse_tf.files import write_record
from dcse_tf.options import OptionError, Options, option
from dcse_tf.tasks import TASKS
from dcse_tf.tasks.train_options import TrainOptions


class Job(Options):
    name: str = option("", "A name.", required=True)
    kind: str = option("small", "A kind.", choices=("small", "large"))
    length: int = option(0, "A length.", minimum=3, or_zero=True)
    rate: float = option(0.5, "A rate.", minimum=0.0, maximum=1.0)
    loud: bool = option(False, "Whether it is loud.")
    inputs: tuple[str, ...] = option((), "Files.", path="files")
    model: str = option("", "A model.", path="reads")
    output: str = option("", "A file.", path="writes")


class LongJob(Job, group="tone"):
    """Plain values give other defaults, and leave the rest of an option as it was."""

    length: int = 7
    rate: float = 0.25
    tone: str = option("", "A tone.")


# Values beside {"name": "n"}, and the option that the error names.
REFUSED = [
    ({"name": ""}, "name"),
    ({"kind": "huge"}, "kind"),
    ({"length": 2}, "length"),
    ({"length": 2**31}, "length"),
    ({"rate": -0.1}, "rate"),
    ({"rate": 1.5}, "rate"),
    ({"rate": math.nan}, "rate"),
    ({"inputs": ("a", "")}, "inputs"),
    ({"name": "a\0b"}, "name"),
    ({"name": "\udce9"}, "name"),
    # What a job writes may not take the place of what it reads, nor lie in a part of it.
    ({"inputs": ("a.txt", "b.txt"), "output": "./b.txt"}, "output"),
    ({"inputs": ("d/../d/x/a*.txt",), "output": "d"}, "output"),
    ({"model": "run", "output": "run/"}, "output"),
    ({"model": "run", "output": "run/encoder"}, "output"),
    ({"model": "run", "output": "run/x/../checkpoints/step"}, "output"),
    ({"model": "run/encoder", "output": "run/encoder/onnx"}, "output"),
    ({"output": ".."}, "output"),
    ({"output": "./"}, "output"),
]


@pytest.mark.parametrize(("values", "named"), REFUSED)
def test_a_value_that_cannot_be_used_is_refused_by_name(values, named):
    with pytest.raises(OptionError, match=f"^`{named}`"):
        LongJob.from_dict({"name": "n", **values})
    with pytest.raises(OptionError, match=f"^`{named}`"):
        LongJob(name="n").replace(**values)


def test_an_output_may_lie_beside_an_input_or_elsewhere_in_a_run():
    for output in ("run/export", "run/encoder2", "encoder"):
        assert Job(name="n", model="run", output=output)
    assert Job(name="n", inputs=("a.tsv",), output="a.tsv.prepared")


def test_a_plain_value_changes_the_default_alone():
    assert (LongJob(name="n").length, LongJob(name="n").rate, Job(name="n").length) == (7, 0.25, 0)
    for name, field in Job.fields().items():
        assert field.metadata == LongJob.fields()[name].metadata
    assert LongJob.fields()["tone"].metadata["group"] == "tone"


def test_a_configuration_survives_json_and_cannot_be_changed(tmp_path):
    before = Job(name="对话", inputs=("a", "b"), rate=0.1)
    write_record(tmp_path / "config.json", before.to_dict())
    after = Job.read_json(tmp_path / "config.json")
    assert after == before
    assert hash(after) == hash(before)  # lists became tuples again
    assert list(json.loads((tmp_path / "config.json").read_text())) == sorted(Job.fields())
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.name = "other"


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"name": "n", "tempo": 1}'])
def test_a_broken_file_is_named(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(InputError, match=f"{path}: not a Job"):
        Job.read_json(path)


def test_unknown_options_are_refused_by_name():
    with pytest.raises(OptionError, match=r"unknown setting tempo, zoo; \w+ knows"):
        Job.from_dict({"name": "n", "zoo": 1, "tempo": 2})
    with pytest.raises(OptionError, match="unknown setting tempo"):
        Job(name="n").replace(tempo=1)


def train_config(**changes):
    settings = {"data_dir": "data", "run_dir": "run", "encoder_size": "tiny", **changes}
    return TrainOptions.from_dict(settings)


# Values of a training, and the option that the error names.
REFUSED_BY_TRAIN = [
    ({"data_dir": ""}, "data_dir"),
    ({"run_dir": ""}, "run_dir"),
    ({"task": "gpt"}, "task"),
    ({"encoder_size": ""}, "encoder"),
    ({"encoder": "bert"}, "encoder"),
    ({"encoder_size": "", "encoder": "run/"}, "run_dir"),
    ({"epochs": math.inf}, "epochs"),
    ({"clip_norm": 0.0}, "clip_norm"),
    ({"global_batch_size": 25, "negatives": 3, "logical_cpus": 2}, "global_batch_size"),
    ({"logical_cpus": 3, "negatives": 3}, "global_batch_size"),
    ({"session_turns": 8}, "session_turns"),
    ({"negatives": 20}, "negatives"),
    ({"global_batch_size": 9}, "negatives"),
    ({"best_metric": "dev/map"}, "best_metric"),
    ({"dev_samples": 0, "dev_sts": "s"}, "best_metric"),
    ({"task": "mlm", "best_metric": "dev/cosine_r1"}, "best_metric"),
    ({"batch_form": "plain", "layout": "packed"}, "layout"),
    ({"task": "mlm", "temperature": 0.2}, "temperature"),
    ({"task": "siamese_single", "context_turns": 1}, "context_turns"),
    ({"mask_rate": 0.2}, "mask_rate"),
]


@pytest.mark.parametrize(("values", "named"), REFUSED_BY_TRAIN)
def test_a_training_refuses_by_name(values, named):
    with pytest.raises(OptionError, match=rf"`{named}`|unknown setting {named}"):
        train_config(**values)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        # The paper's batch and learning rate; 10 epochs of 1,000 / 20 = 50 steps; a tenth warm-up.
        ("dialogue_cse", (20, 5e-5, -1, True, 500, 50)),
        # Half an epoch of 1,000 / 50 = 20 steps.
        ("mlm", (50, 2e-5, 0, False, 10, 1)),
    ],
)
def test_what_depends_on_the_corpus_is_filled_in_once(task, expected):
    options = resolve(train_config(task=task))
    names = ("global_batch_size", "learning_rate", "freeze_layers", "freeze_embeddings")
    assert tuple(getattr(options, n) for n in (*names, "steps", "warmup_steps")) == expected
    assert resolve(train_config(steps=50), 100).epochs == 10.0
    for each in TASKS:
        once = resolve(train_config(task=each))
        assert resolve(once) == once
        assert None not in once.to_dict().values()


def test_the_batch_and_the_rows_must_fit_the_corpus():
    with pytest.raises(OptionError, match=r"`global_batch_size`=20: .* only 19"):
        resolve(train_config(), 19)
    assert resolve(train_config(), 20).global_batch_size == 20
    with pytest.raises(OptionError, match="`row_length`=64: sequences of data have up to 100"):
        resolve(train_config(row_length=64), longest=100)
    assert resolve(train_config(row_length=64, layout="padded"), longest=100)
    assert resolve(train_config(), longest=80).row_length == 80


def test_scores_that_a_run_has_may_choose_its_best_encoder():
    for task in ("dialogue_cse", "siamese_single", "siamese_multi", "simcse", "mlm"):
        assert train_config(task=task)
        assert train_config(task=task, dev_samples=0)  # there is no score, and none is looked for
        assert train_config(task=task, dev_retrieval="r", best_metric="dev/map")
        assert train_config(task=task, dev_sts="s", dev_samples=0, best_metric="dev/spearman")


def test_an_answer_and_an_export_take_no_place_of_what_is_read():
    with pytest.raises(OptionError, match="would overwrite `data_dir`"):
        ExportOptions(run_dir="run", format="static", data_dir="out/data", output_dir="out")
