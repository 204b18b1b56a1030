"""The model card tells what is known, and nothing of what is not."""

import json
import shutil

import numpy as np
import pytest
import yaml
from tiny_reranker import save_reranker

import dcse_tf
from dcse_tf.errors import InputError
from dcse_tf.evaluation.metrics import Evaluation
from dcse_tf.evaluation.report import make_result, write_json

pytestmark = pytest.mark.slow


@pytest.fixture
def run_dir(trained_run, tmp_path):
    return shutil.copytree(trained_run, tmp_path / "my_run")


def make_card(run_dir, **settings):
    folder = dcse_tf.export(
        run_dir=run_dir,
        output_dir=run_dir.parent / "export",
        format="sentence_transformers",
        overwrite=True,
        **settings,
    )
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
    # Of a score by a context, which turns this holds.
    rows = [line for line in card.splitlines() if line.startswith("| dev/")]
    contexts = {row.split(" | ")[0].strip("| "): row.split(" | ")[-1].strip("| ") for row in rows}
    assert contexts["dev/matching_r1"] == "turns before the response"
    assert contexts["dev/matching_bidirectional_r1"] == "turns before and after it"


def test_only_what_training_changed_is_called_trained(run_dir):
    change(run_dir / "encoder/training.json", step=0)
    card = make_card(run_dir)
    assert "unchanged" in card
    assert "with the task" not in card
    change(run_dir / "encoder/training.json", step=5)
    change(run_dir / "config.json", task="mlm")
    card = make_card(run_dir)
    assert "with the task mlm." in card
    assert "DialogueCSE" not in card
    card = make_card(run_dir / "encoder")
    assert "Training" not in card
    assert "exported by dcse_tf." in card


def test_results_stand_with_interval_chance_and_context(run_dir, caplog, monkeypatch):
    scores = {"map": 62.5, "chance_map": 31.25, "tie_share": 0.0}
    found = Evaluation(scores, {"map": np.linspace(25.0, 100.0, 40)})
    result = make_result("retrieval", "a/b/sets/se|ect.txt", "f", found)
    low, high = result.intervals["map"]
    for model in (run_dir, run_dir.parent / "another"):
        write_json(run_dir / f"{model.name}.json", str(model), {}, [result])
    card = make_card(run_dir, results=[str(run_dir / "my_run.json")])
    row = f"| map | b/sets/se\\|ect.txt | 62.50 | {low:.2f} to {high:.2f} | 31.25 |  |"
    assert row in card
    assert not caplog.messages
    # The run may be named relative to the working directory; another model's scores are noted.
    monkeypatch.chdir(run_dir)
    results = ["my_run.json", "another.json"]
    dcse_tf.export(
        run_dir=".", output_dir="../out", format="sentence_transformers", results=results
    )
    assert [text for text in caplog.messages if text.startswith("another.json")]
    assert not [text for text in caplog.messages if text.startswith("my_run.json")]
    (run_dir / "other.json").write_text('{"other": 1}')
    with pytest.raises(InputError, match=r"other\.json: not a"):
        make_card(run_dir, results=[str(run_dir / "other.json")])


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
