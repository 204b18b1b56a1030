import dataclasses
import json
import types

import pytest
import tensorflow as tf
from train_options import resolve, tiny_options

from dcse_tf.errors import InputError
from dcse_tf.options import option
from dcse_tf.tasks.spec import Setup
from dcse_tf.tasks.train_options import TrainOptions
from dcse_tf.training.checkpoint_store import CheckpointStore
from dcse_tf.training.run_directory import begin_run, describe_inputs

INPUTS = {"the corpus": "a" * 64, "the encoder's model.safetensors": "b" * 64}


def _begin(run_dir, inputs=INPUTS, **changes):
    """Begins a run as `train` does: the settings given, and those filled in."""
    given = tiny_options(run_dir=str(run_dir), **changes)
    return begin_run(resolve(given), given, inputs)


def _save_checkpoint(run_dir):
    CheckpointStore(run_dir, tf.train.Checkpoint(x=tf.Variable(1)), keep=1).save(1)


def _read(run_dir):
    return json.loads((run_dir / "config.json").read_text())


def test_what_stopped_before_its_first_checkpoint_may_be_put_right(tmp_path):
    _begin(tmp_path, freeze_layers=99)
    _begin(tmp_path, freeze_layers=1)
    assert _read(tmp_path)["freeze_layers"] == 1


def test_the_encoder_of_a_training_that_ended_is_not_replaced(tmp_path):
    """As where checkpoints were deleted for their size."""
    record = tmp_path / "encoder/training.json"
    record.parent.mkdir()
    kept = {"step": 5, "metric": "dev/map", "score": 1.0, "last_score": None, "files": {}}
    record.write_text(json.dumps({**kept, "last_step": None}))
    _begin(tmp_path)  # it was stopped before its first checkpoint
    record.write_text(json.dumps({**kept, "last_step": 9}))
    with pytest.raises(InputError, match=r"encoder: is of a training that ended at step 9"):
        _begin(tmp_path, seed=1)
    assert _read(tmp_path)["seed"] == 0
    _save_checkpoint(tmp_path)
    _begin(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "encoder/config.json"])
def test_what_no_training_wrote_is_not_replaced(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match=f"{tmp_path}: has files that no training wrote"):
        _begin(tmp_path)
    assert (tmp_path / name).read_text() == '{"model_type": "bert"}'


def test_more_steps_are_let_through_and_leave_the_warm_up_as_it_was(tmp_path):
    assert _begin(tmp_path, steps=100).warmup_steps == 10
    _save_checkpoint(tmp_path)
    config = _begin(tmp_path, steps=200)
    assert (config.steps, config.warmup_steps) == (200, 10)
    with pytest.raises(InputError, match=r"`warmup_steps`: 20 \(was 10\)"):
        _begin(tmp_path, steps=200, warmup_steps=20)


# What each option says of itself holds: another value, and what comes of it.
CHANGES = {
    "free": {"log_every": 3, "save_every": 7, "logical_cpus": 2, "steps": 300, "eval_every": 9,
             "epochs": 10.0, "average_with": "debug"},  # the epochs are followed by the steps
    "same": {"task": "mlm", "seed": 1, "encoder_size": "mini", "learning_rate": 1e-4,
             "context_turns": 2, "cosine_weight": 0.5, "compute_dtype": "bfloat16",
             "dev_samples": 50, "best_metric": "dev/cosine_r1", "same_place": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "resume"),
    [(*change, kind) for kind in CHANGES for change in CHANGES[kind].items()],
)
def test_a_changed_option_is_refused_or_taken_as_it_says(tmp_path, name, value, resume):
    _begin(tmp_path)
    _save_checkpoint(tmp_path)
    assert tiny_options().fields()[name].metadata["resume"] == resume
    if resume == "same":
        before = _read(tmp_path)
        said = rf"config\.json: .*`{name}`: {value} \(was {before[name]}\)"
        with pytest.raises(InputError, match=said):
            _begin(tmp_path, **{name: value})
        assert _read(tmp_path) == before
        return
    _begin(tmp_path, **{name: value})
    assert _read(tmp_path)[name] == value


def test_the_content_of_what_an_option_names_is_compared_not_its_name(tmp_path):
    """That of a plug-in's option too: nothing but its own declaration says what it is."""

    class Own(TrainOptions):
        words: str = option("", "Words of a plug-in.", path="files")
        tables: str = option("", "Tables of a plug-in.", path="reads")

    (tmp_path / "tables").mkdir()
    for name in ("a.txt", "b.txt", "tables/one"):
        (tmp_path / name).write_text("same")
    manifest = types.SimpleNamespace(
        splits={}, max_sequence_length=9, corpus_fingerprint="c", tokenizer_fingerprint="t"
    )

    def describe(words):
        options = object.__new__(Own)  # whose other options nobody checks
        for field in dataclasses.fields(Own):
            object.__setattr__(options, field.name, field.default)
        object.__setattr__(options, "words", str(tmp_path / words))
        object.__setattr__(options, "tables", str(tmp_path / "tables"))
        return describe_inputs(Setup(options, manifest, None))

    before = describe("a.txt")
    assert before == describe("b.txt")
    assert {"`words`", "`tables` one"} <= {*before}
    (tmp_path / "b.txt").write_text("another")
    (tmp_path / "tables/one").write_text("another")
    now = describe("b.txt")
    assert {name for name in now if now[name] != before[name]} == {"`words`", "`tables` one"}


def test_a_linear_decay_ends_where_it_was_begun_to_end(tmp_path):
    """With other steps the rate would jump: at step 100 of 100 it is 0, of 200 half the peak."""
    _begin(tmp_path, steps=100, decay="linear")
    _save_checkpoint(tmp_path)
    _begin(tmp_path, steps=100, decay="linear")
    with pytest.raises(InputError, match=r"`steps`: 200 \(was 100\).*`decay`"):
        _begin(tmp_path, steps=200, decay="linear")


def test_files_may_move_but_not_change(tmp_path):
    _begin(tmp_path / "old")
    _save_checkpoint(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    _begin(tmp_path / "new", data_dir="elsewhere")
    with pytest.raises(
        InputError, match=r"inputs\.json: .*the corpus: SHA-256 cccc.* \(was .* aaaa"
    ):
        _begin(tmp_path / "new", {**INPUTS, "the corpus": "c" * 64})
    (tmp_path / "new/inputs.json").write_text(json.dumps({**INPUTS, "`words`": "d" * 64}))
    with pytest.raises(InputError, match=r"`words`: none \(was SHA-256 dddd"):
        _begin(tmp_path / "new")
    (tmp_path / "new/inputs.json").write_text("[1]")
    with pytest.raises(InputError, match=r"inputs\.json"):
        _begin(tmp_path / "new")
