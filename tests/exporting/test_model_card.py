"""The model card tells what is known, and nothing of what is not."""

import hashlib
import json

import numpy as np
import pytest
import yaml
from tiny_bert import LAYERS
from train_options import make_options

from dcse_tf.bert import bert, checkpoints
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.data.manifest import read_manifest
from dcse_tf.errors import InputError
from dcse_tf.evaluation.metrics import Evaluation
from dcse_tf.evaluation.report import make_result, write_json
from dcse_tf.exporting.card import collect_training, name_model
from dcse_tf.exporting.job import export
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.training.run_directory import record_corpus


@pytest.fixture
def run_dir(data_dir, tmp_path):
    """A run directory as `train` leaves it, with random weights; its corpus is elsewhere now."""
    folder = tmp_path / "my_run"
    encoder = folder / "encoder"
    encoder.mkdir(parents=True)
    vocabulary = read_vocabulary(data_dir / "vocabulary")
    config = bert.make_bert_config(LAYERS, 64, len(vocabulary.tokens))
    bert.save_backbone(encoder, bert.build_backbone(config, 0.0), config)
    vocabulary.write(encoder)
    checkpoints.write_max_sequence_length(encoder, 16)
    settings = {"data_dir": "moved", "run_dir": str(folder), "steps": 7}
    make_options(encoder="/home/me/models/start", **settings).write_json(folder / "config.json")
    kept = {"step": 5, "metric": "dev/map", "score": 64.25, "last_step": 7, "last_score": 63.0}
    _write(encoder / "training.json", {**kept, "files": {}})
    record_corpus(folder, read_manifest(data_dir))
    return folder


def _write(path, content):
    path.write_text(json.dumps(content))


def make_card(run_dir, **settings):
    folder = run_dir.parent / "export"
    export(
        ExportOptions(
            run_dir=str(run_dir),
            output_dir=str(folder),
            format="sentence_transformers",
            overwrite=True,
            **settings,
        )
    )
    return (folder / "README.md").read_text()


def test_the_front_matter_is_yaml_without_guesses(run_dir):
    card = make_card(run_dir)
    head = yaml.safe_load(card.split("---")[1])
    assert head["pipeline_tag"] == "sentence-similarity"
    assert head["library_name"] == "sentence-transformers"
    assert "sentence-transformers" in head["tags"]
    assert not {"language", "license", "base_model"} & set(head)


def test_corpus_settings_and_weights_are_told(run_dir, data_dir):
    card = make_card(run_dir)
    manifest = read_manifest(data_dir)
    split = manifest.splits["train"]
    assert f"| train split | {split.sessions} sessions, {split.utterances} utterances" in card
    assert manifest.corpus_fingerprint in card
    assert "| files | dialogues.jsonl |" in card
    assert "| steps | 7 |" in card
    weights = (run_dir.parent / "export/model.safetensors").read_bytes()
    assert f"| model.safetensors | {hashlib.sha256(weights).hexdigest()} |" in card
    assert "Evaluation" not in card


def test_the_step_that_is_kept_and_every_setting_are_told(run_dir):
    settings = json.loads((run_dir / "config.json").read_text())
    settings |= {"negatives": 0, "freeze_layers": 0, "center_tokens": False, "dropout": 0.0}
    _write(run_dir / "config.json", settings)
    card = make_card(run_dir)
    assert "A sentence encoder trained on dialogues by dcse_tf" in card
    assert "trained on dialogues without labels" in card
    assert "| kept checkpoint | step 5 of 7, dev/map 64.25 (last step: 63) |" in card
    for row in ("negatives | all", "freeze_layers | 0", "center_tokens | False", "dropout | 0.0"):
        assert f"| {row} |" in card


def test_an_encoder_that_training_did_not_improve_is_not_called_trained(run_dir):
    kept = {"step": 0, "metric": "dev/map", "score": 64.25, "last_step": 7, "last_score": 63.0}
    _write(run_dir / "encoder/training.json", {**kept, "files": {}})
    card = make_card(run_dir)
    assert "trained on dialogues" not in card
    assert "the one that the training started from, unchanged" in card


@pytest.mark.parametrize("task", ["mlm", "simcse"])
def test_another_task_is_not_called_the_paper_s(run_dir, task):
    settings = json.loads((run_dir / "config.json").read_text())
    _write(run_dir / "config.json", {**settings, "task": task})
    card = make_card(run_dir)
    assert f"A sentence encoder trained by dcse_tf with the task {task}." in card
    assert "DialogueCSE" not in card
    assert "without labels" not in card


def test_no_folder_of_the_machine_is_told(run_dir):
    settings = json.loads((run_dir / "config.json").read_text())
    settings |= {"token_index": "/home/me/words/rows.json"}
    _write(run_dir / "config.json", settings)
    card = make_card(run_dir)
    assert str(run_dir.parent) not in card
    assert "/home/me" not in card
    assert "| encoder | models/start |" in card
    assert "| token_index | words/rows.json |" in card


def test_of_the_corpus_of_an_older_run_the_record_of_its_inputs_is_told(run_dir):
    (run_dir / "corpus.json").unlink()
    splits = "train 5 sessions, 70 tokens, 1 shards, at most 16 tokens"
    inputs = {"the corpus": "0" * 64, "the corpus' splits and lengths": splits}
    _write(run_dir / "inputs.json", inputs)
    card = make_card(run_dir)
    assert "0" * 64 in card
    assert f"| splits | {splits} |" in card
    (run_dir / "inputs.json").unlink()
    assert "| corpus | not known" in make_card(run_dir)


def test_scores_stand_with_interval_and_chance(run_dir):
    scores = {"map": 62.5, "chance_map": 31.25, "tie_share": 0.0}
    found = Evaluation(scores, {"map": np.linspace(25.0, 100.0, 40)})
    result = make_result("retrieval", "a/b/sets/se|ect.txt", "f", found)
    low, high = result.intervals["map"]
    write_json(run_dir / "r.json", str(run_dir), {}, [result])
    card = make_card(run_dir, results=(str(run_dir / "r.json"),))
    row = f"| map | 62.50 | {low:.2f} to {high:.2f} | 31.25 |"
    assert f"| retrieval | b/sets/se\\|ect.txt {row}" in card


def test_a_run_may_be_named_relative_to_the_working_directory(run_dir, caplog, monkeypatch):
    found = Evaluation({"map": 62.5, "tie_share": 0.0}, {"map": np.array([50.0, 75.0])})
    result = make_result("retrieval", "select.txt", "f", found)
    for model in (run_dir, run_dir.parent / "another"):
        write_json(run_dir / f"{model.name}.json", str(model), {}, [result])
    monkeypatch.chdir(run_dir)
    options = ExportOptions(run_dir=".", output_dir="out", results=("my_run.json", "another.json"))
    assert name_model(options.run_dir) == "my_run"
    collect_training(options, run_dir / "encoder")
    assert [each.message.partition(":")[0] for each in caplog.records] == ["another.json"]


def test_a_data_report_is_told(run_dir):
    statistics = {
        "sessions": 1234,
        "turns": 5678,
        "speakers": {"a": 1, "b": 2},
        "repeated_utterances": 0.25,
        "repeated_sessions": 0.0,
    }
    leak = {"source": "x/sts.txt", "exact": 3, "near": 2, "sentences": 100}
    content = {"statistics": statistics, "leaks": [leak]}
    _write(run_dir / "report.json", content)
    card = make_card(run_dir, data_report=str(run_dir))
    assert "| sessions | 1,234 |" in card
    assert "| turns whose text another turn has | 25.0% |" in card
    assert "| sentences of x/sts.txt in the corpus | 3 word for word and 2 nearly, of 100 |" in card


@pytest.mark.parametrize("flag", ["results", "data_report"])
def test_a_file_that_is_no_such_file_is_one_error(run_dir, flag):
    _write(run_dir / "report.json", {"other": 1})
    value = (str(run_dir / "report.json"),) if flag == "results" else str(run_dir)
    with pytest.raises(InputError, match=r"report\.json: not a"):
        make_card(run_dir, **{flag: value})


def test_a_checkpoint_that_was_not_trained_here_says_so(run_dir):
    card = make_card(run_dir / "encoder")
    assert "Training" not in card
    assert "exported by dcse_tf" in card
