import json

import pytest
import tensorflow as tf
from train_options import make_options, resolve

from dcse_tf.errors import InputError
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.training.checkpoint_store import CheckpointStore
from dcse_tf.training.run_directory import begin_run

INPUTS = {"the corpus": "a" * 64, "the encoder's model.safetensors": "b" * 64}


def _config(run_dir, **changes):
    settings = {"data_dir": "data", "encoder_size": "tiny", "run_dir": str(run_dir)}
    return make_options(**{**settings, **changes})


def _begin(run_dir, inputs=INPUTS, devices=1, **changes):
    """Begins a run as `train` does: the settings given, and those filled in."""
    given = _config(run_dir, **changes)
    return begin_run(resolve(given), given, inputs, devices)


def _save_checkpoint(run_dir):
    CheckpointStore(run_dir, tf.train.Checkpoint(x=tf.Variable(1)), keep=1).save(1)


def _read(run_dir):
    return json.loads((run_dir / "config.json").read_text())


def test_a_run_that_has_begun_keeps_its_settings(tmp_path):
    _begin(tmp_path)
    _save_checkpoint(tmp_path)
    _begin(tmp_path, save_every=7)
    with pytest.raises(InputError, match=r"`seed`: 1 \(was 0\)"):
        _begin(tmp_path, seed=1)
    assert _read(tmp_path)["seed"] == 0


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


def test_more_steps_are_let_through_and_leave_the_warm_up_as_it_was(tmp_path):
    assert _begin(tmp_path, steps=100).warmup_steps == 10
    _save_checkpoint(tmp_path)
    config = _begin(tmp_path, steps=200)
    assert (config.steps, config.warmup_steps) == (200, 10)
    with pytest.raises(InputError, match=r"`warmup_steps`: 20 \(was 10\)"):
        _begin(tmp_path, steps=200, warmup_steps=20)


# Settings that may change when a run is resumed, each with another value; the first list changes
# nothing that is learnt, the second what comes.
FREE = {
    "log_every": 3,
    "save_every": 7,
    "keep_checkpoints": 5,
    "profile_steps": 2,
    "projector_sentences": 5,
    "changes_samples": 20,
    "logical_cpus": 2,
    "epochs": 10.0,  # followed by the steps
}
FROM_NOW_ON = {
    "steps": 300,
    "eval_every": 9,
    "on_divergence": "skip",
    "loss_limit": 50.0,
    "max_skipped": 8,
}
# Those whose content is compared, and the folder itself.
COMPARED = {
    *("data_dir", "run_dir", "encoder", "token_vectors", "token_index"),
    *("dev_retrieval", "dev_sts"),
}
# Of all others the run depends, and nothing else may be taken on a resume.
FIXED = {
    "task": "mlm",
    "encoder_size": "mini",
    "global_batch_size": 10,
    "learning_rate": 1e-4,
    "warmup_steps": 7,
    "decay": "constant",
    "weight_decay": 0.5,
    "clip_norm": 1.0,
    "reduce_dtype": "bfloat16",
    "dropout": 0.2,
    "temperature": 0.5,
    "aggregation": "attention",
    "cosine_weight": 0.5,
    "center_tokens": True,
    "batch_form": "dense",
    "session_turns": 5,
    "negatives": 3,
    "context_turns": 2,
    "context_side": "before",
    "context_tokens": 99,
    "layout": "padded",
    "row_length": 128,
    "compute_dtype": "bfloat16",
    "freeze_layers": 1,
    "lora_rank": 2,
    "freeze_embeddings": False,
    "mask_rate": 0.3,
    "max_predictions": 4,
    "architecture": "esim",
    "lstm_units": 8,
    "lstm_embedding_size": 8,
    "max_context_tokens": 40,
    "max_response_tokens": 20,
    "speaker_embeddings": True,
    "same_role": False,
    "auxiliary": ("consistency",),
    "auxiliary_weight": 0.5,
    "consistency_margin": 0.1,
    "negatives_from": "given",
    "pairs": "pieces",
    "prediction_weight": 0.4,
    "prediction_turns": 2,
    "prediction_rate": 2.0,
    "rehearsal_weight": 0.5,
    "rehearsal_texts": 16,
    "projection_dim": 8,
    "projection_rate": 2.0,
    "projection_share": 0.5,
    "matryoshka_dims": ("8",),
    "seed": 1,
    "deterministic": True,
    "dev_samples": 50,
    "best_metric": "dev/cosine_r1",
}
_LSTM = {"task": "response_selection", "architecture": "dual_lstm", "encoder_size": ""}
_OF_SELECTION = (
    *("max_context_tokens", "max_response_tokens", "speaker_embeddings", "same_role"),
    *("auxiliary", "auxiliary_weight", "consistency_margin", "negatives_from"),
)
# What a setting needs beside it, to be allowed.
BESIDE = {
    "session_turns": {"batch_form": "dense"},
    "context_tokens": {"task": "siamese_multi"},
    "mask_rate": {"task": "mlm"},
    "max_predictions": {"task": "mlm"},
    "pairs": {"task": "post_training"},
    "prediction_weight": {"encoder": "start", "encoder_size": ""},
    "prediction_turns": {"encoder": "start", "encoder_size": "", "prediction_weight": 0.5},
    "prediction_rate": {"encoder": "start", "encoder_size": "", "prediction_weight": 0.5},
    "rehearsal_weight": {"encoder": "start", "encoder_size": ""},
    "rehearsal_texts": {"encoder": "start", "encoder_size": "", "rehearsal_weight": 0.5},
    "projection_dim": {"cosine_weight": 0.5},
    "matryoshka_dims": {"cosine_weight": 0.5},
    "projection_rate": {"cosine_weight": 0.5, "projection_dim": 8},
    "projection_share": {"cosine_weight": 0.5, "projection_dim": 8},
    **dict.fromkeys(("lstm_units", "lstm_embedding_size", "architecture"), _LSTM),
    **{name: {"task": "response_selection"} for name in _OF_SELECTION},
}


def test_every_setting_is_in_one_of_these_lists():
    assert {field.name for field in TrainOptions.all_fields()} == (
        COMPARED | FREE.keys() | FROM_NOW_ON.keys() | FIXED.keys()
    )


@pytest.mark.parametrize("name", FIXED)
def test_what_a_run_depends_on_may_not_change(tmp_path, name):
    beside = BESIDE.get(name, {})
    _begin(tmp_path, **beside)
    _save_checkpoint(tmp_path)
    with pytest.raises(InputError, match=rf"config\.json: .*`{name}`: "):
        _begin(tmp_path, **{**beside, name: FIXED[name]})


@pytest.mark.parametrize("name", [*FREE, *FROM_NOW_ON])
def test_what_a_run_does_not_depend_on_may_change_and_what_comes_is_told(tmp_path, caplog, name):
    _begin(tmp_path)
    _save_checkpoint(tmp_path)
    value = {**FREE, **FROM_NOW_ON}[name]
    with caplog.at_level("INFO", logger="absl"):
        _begin(tmp_path, **{name: value})
    assert _read(tmp_path)[name] == value
    assert (f"from now on `{name}`: {value}" in caplog.text) == (name in FROM_NOW_ON)


def test_another_number_of_devices_is_told(tmp_path, caplog):
    _begin(tmp_path, devices=1)
    _save_checkpoint(tmp_path)
    with caplog.at_level("INFO", logger="absl"):
        _begin(tmp_path, devices=1)
        assert "device" not in caplog.text
        _begin(tmp_path, devices=2)
    assert "from now on devices: 2 (was 1)" in caplog.text


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
    before = {**INPUTS, "`token_vectors`": "d" * 64}
    (tmp_path / "new/inputs.json").write_text(json.dumps(before))
    with pytest.raises(InputError, match=r"`token_vectors`: none \(was SHA-256 dddd"):
        _begin(tmp_path / "new")
    (tmp_path / "new/inputs.json").write_text("[1]")
    with pytest.raises(InputError, match=r"inputs\.json"):
        _begin(tmp_path / "new")
