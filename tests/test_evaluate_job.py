"""The evaluation job: what its results say, and what becomes of them."""

import pytest
from tiny_bert import build_backbone, save_checkpoint

from dcse_tf.cli.evaluate import evaluate as evaluate_command
from dcse_tf.config import EvaluateConfig, ExportConfig
from dcse_tf.errors import OutputError
from dcse_tf.evaluation import report
from dcse_tf.evaluation.comparison import describe_differences
from dcse_tf.jobs.evaluate import evaluate
from dcse_tf.jobs.export import export
from dcse_tf.models.checkpoints import write_max_sequence_length

LENGTH = 8


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = save_checkpoint(tmp_path_factory.mktemp("saved") / "model", build_backbone())
    write_max_sequence_length(folder, LENGTH)
    return folder


def make_config(model, sessions, **settings):
    values = {"candidates": 4, "max_samples": 20, **settings}
    return EvaluateConfig(model=str(model), response_selection=(str(sessions),), **values)


def test_results_say_what_they_were_computed_with(checkpoint, data_dir, tmp_path):
    """As it was resolved: none says 0 for the encoder's own length."""
    exported = tmp_path / "export"
    export(ExportConfig(run_dir=str(checkpoint), output_dir=str(exported)))
    settings = []
    output = tmp_path / "new/results.json"
    for model, length in ((exported, 0), (checkpoint, 0), (checkpoint, 4)):
        sessions = data_dir / "test.jsonl"
        evaluate(make_config(model, sessions, max_sequence_length=length, output=str(output)))
        settings.append(report.read_json(output)[2])
    assert [found["max_sequence_length"] for found in settings] == [LENGTH, LENGTH, 4]
    assert {found["pooling"] for found in settings} == {"mean"}
    assert describe_differences(*settings[:2]) == []
    (difference,) = describe_differences(*settings[1:])
    assert difference == f"--max_sequence_length is not the same: first {LENGTH}, second 4"


@pytest.mark.parametrize(
    ("output", "message"),
    [("folder", "is a folder"), ("file/results.json", "cannot be written: .*(exists|directory)")],
)
def test_results_that_cannot_be_written_are_found_before_the_work(
    data_dir, tmp_path, output, message
):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    config = make_config("./no model", data_dir / "test.jsonl", output=str(tmp_path / output))
    with pytest.raises(OutputError, match=message):
        evaluate(config)


def test_results_that_cannot_be_written_after_all_are_printed(
    checkpoint, data_dir, tmp_path, monkeypatch, capsys
):
    def fail(*_):
        raise OutputError("no space left")

    monkeypatch.setattr(report, "write_json", fail)
    output = str(tmp_path / "results.json")
    with pytest.raises(OutputError, match="no space left"):
        evaluate_command(make_config(checkpoint, data_dir / "test.jsonl", output=output))
    assert "response (matching)" in capsys.readouterr().out
