import dataclasses
import json

import pytest

from dcse_tf.evaluation.report import Result, format_table, write_json

RETRIEVAL = Result(
    "retrieval",
    "/long/way/to/ecd/dev/select.txt",
    "1f2e",
    {
        "map": 51.234,
        "mrr": 70.0,
        "chance_map": 46.049,
        "chance_mrr": 63.9,
        "tie_share": 0.5,
        "queries": 2.0,
    },
    {"map": [51.0, 51.468], "mrr": [70.0, 70.0], "chance_map": [46.0, 46.098]},
    {"map": (51.0, 51.468)},
)
STS = Result(
    "sts",
    "sts.txt",
    "3d4c",
    {"spearman": -3.14159, "chance_spearman": 0.0, "tie_share": 40.0, "pairs": 2.0},
    {"degree": [1.0, 2.0], "cosine": [0.5, 0.4]},
    {"spearman": (-100.0, 0.0)},
)


def test_table_has_a_line_a_score_with_its_interval_and_chance():
    lines = format_table([RETRIEVAL]).splitlines()
    assert lines == [
        "evaluation  file                score  value    95% interval  chance  tied %",
        "----------------------------------------------------------------------------",
        "retrieval   ecd/dev/select.txt  map    51.23  51.00 to 51.47   46.05     0.5",
        "retrieval   ecd/dev/select.txt  mrr    70.00                   63.90     0.5",
    ]


def test_table_ends_with_the_warnings():
    lines = format_table([RETRIEVAL, STS]).splitlines()
    assert [line.split() for line in lines[4:5]] == [
        ["sts", "sts.txt", "spearman", "-3.14", "-100.00", "to", "0.00", "0.00", "40.0"]
    ]
    assert lines[5:] == [STS.warning()]


@pytest.mark.parametrize(
    ("share", "warns"), [(0.0, False), (0.9, False), (1.0, False), (1.1, True), (100.0, True)]
)
def test_more_than_one_percent_of_ties_is_reported(share, warns):
    warning = dataclasses.replace(STS, scores={**STS.scores, "tie_share": share}).warning()
    assert (warning is not None) == warns
    if warning:
        assert warning.startswith(f"sts on sts.txt: {share:.1f}% of the scores are tied")


def test_json_has_the_results_and_what_produced_them(tmp_path):
    path = tmp_path / "new" / "folder" / "scores.json"
    write_json(path, "模型", {"seed": 3, "sts": ["sts.txt"]}, [RETRIEVAL, STS])
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["model"] == "模型"
    assert content["settings"] == {"seed": 3, "sts": ["sts.txt"]}
    first, second = content["results"]
    assert first == {
        "task": "retrieval",
        "source": RETRIEVAL.source,
        "fingerprint": "1f2e",
        "scores": RETRIEVAL.scores,
        "items": RETRIEVAL.items,
        "intervals": {"map": [51.0, 51.468]},
        "warning": None,
    }
    assert second["warning"] == STS.warning()
    assert [entry.name for entry in path.parent.iterdir()] == ["scores.json"]


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "scores.json"
    write_json(path, "old", {}, [])
    with pytest.raises(TypeError):
        write_json(path, "new", {"not for json": object()}, [])
    assert json.loads(path.read_text())["model"] == "old"
