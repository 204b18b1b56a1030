"""The model card tells what is known, and nothing of what is not."""

import json
import shutil

import pytest
import yaml
from tiny_reranker import save_reranker

import dcse_tf

pytestmark = pytest.mark.slow


@pytest.fixture
def run_dir(trained_run, tmp_path):
    return shutil.copytree(trained_run, tmp_path / "my_run")


def make_card(run_dir, **settings):
    to = {"output_dir": run_dir.parent / "export", "overwrite": True}
    folder = dcse_tf.export(run_dir=run_dir, format="sentence_transformers", **to, **settings)
    return (folder / "README.md").read_text()


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_run_is_told_by_its_corpus_its_settings_and_its_dev_scores(run_dir):
    change(run_dir / "config.json", dropout=0.25, encoder="/home/me/models/start")
    card = make_card(run_dir)
    head = yaml.safe_load(card.split("---")[1])
    assert head["pipeline_tag"] == "sentence-similarity"
    assert head["library_name"] == "sentence-transformers"
    assert not {"language", "license", "base_model"} & set(head)
    assert "with the task dialogue_cse (DialogueCSE" in card
    assert "| files | dialogues.jsonl |" in card
    assert "| train split |" in card
    assert "| dropout | 0.25 |" in card
    # Without what does not matter, defaults, and folders of the machine.
    assert "| log_every |" not in card
    assert "| seed |" not in card
    assert "| encoder | models/start |" in card
    assert str(run_dir.parent) not in card
    # What the context of a score holds.
    assert "| dev/matching_bidirectional_r1 |" in card
    assert 'with "bidirectional" in its name also has the turns' in card


def test_only_what_training_changed_is_called_trained(run_dir):
    change(run_dir / "encoder/training.json", step=0)
    card = make_card(run_dir)
    assert "unchanged" in card
    assert "with the task" not in card
    scores = {"dev/loss": 2.5, "dev/accuracy": 0.5}
    change(run_dir / "encoder/training.json", step=5, last_step=None, scores=scores)
    merged = {
        "start": {"name": "/a/run/debug"},
        "trained": {"name": "/a/run/encoder"},
        "share": 0.0,
    }
    (run_dir / "encoder/merge.json").write_text(json.dumps(merged))
    change(run_dir / "config.json", task="mlm")
    card = make_card(run_dir)
    assert "with the task mlm." in card
    assert "in percent but for dev/loss" in card
    assert "DialogueCSE" not in card
    assert "| kept checkpoint | step 5 of a halted run |" in card
    assert "| averaged weights | 1 of run/debug, 0 of run/encoder |" in card
    card = make_card(run_dir / "encoder")
    assert "Training" not in card
    assert "exported by dcse_tf." in card


def test_a_reranker_is_told_its_limits_and_its_task(tmp_path):
    run = save_reranker(tmp_path / "run")
    (run / "config.json").write_text(
        json.dumps({"task": "response_selection", "encoder": "some/bert", "mine": 3})
    )
    kept = {"step": 5, "metric": "dev/r1", "score": 64.2, "last_step": 7, "scores": {}}
    (run / "encoder/training.json").write_text(json.dumps(kept))
    card = make_card(run)
    assert yaml.safe_load(card.split("---")[1])["tags"][1] == "cross-encoder"
    assert "with the task response_selection." in card
    assert "| longest context | 14 tokens; longer ones are cut at the start |" in card
    assert "| kept checkpoint | step 5 of 7 |" in card
    assert "| encoder | some/bert |" in card
    assert "| mine | 3 |" in card  # of a plug-in that is not installed here
    assert "1 / (1 + exp(-score))" in card
