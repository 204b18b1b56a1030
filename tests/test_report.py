import json

import pytest

from dcse_tf.evaluation.report import Result, format_table, write_json

RETRIEVAL = Result(
    "retrieval",
    "/long/way/to/ecd/dev/select.txt",
    {
        "map": 51.234,
        "mrr": 70.0,
        "chance_map": 46.049,
        "chance_mrr": 63.9,
        "tie_share": 0.5,
        "queries": 7.0,
    },
)
STS = Result("sts", "sts.txt", {"spearman": -3.14159, "chance_spearman": 0.0, "tie_share": 40.0,
                                "pairs": 5.0})  # fmt: skip


def test_table_has_a_line_a_score_with_its_chance():
    lines = format_table([RETRIEVAL]).splitlines()
    assert lines == [
        "evaluation  file                score  value  chance",
        "----------------------------------------------------",
        "retrieval   ecd/dev/select.txt  map    51.23   46.05",
        "retrieval   ecd/dev/select.txt  mrr    70.00   63.90",
    ]


def test_table_ends_with_the_warnings():
    lines = format_table([RETRIEVAL, STS]).splitlines()
    assert [line.split() for line in lines[4:5]] == [
        ["sts", "sts.txt", "spearman", "-3.14", "0.00"]
    ]
    assert lines[5:] == [STS.warning()]


@pytest.mark.parametrize(
    ("share", "warns"), [(0.0, False), (0.9, False), (1.0, False), (1.1, True), (100.0, True)]
)
def test_more_than_one_percent_of_ties_is_reported(share, warns):
    warning = Result("sts", "sts.txt", {**STS.scores, "tie_share": share}).warning()
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
    assert first == {"task": "retrieval", "source": RETRIEVAL.source, "scores": RETRIEVAL.scores,
                     "warning": None}  # fmt: skip
    assert second["warning"] == STS.warning()
    assert [entry.name for entry in path.parent.iterdir()] == ["scores.json"]


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "scores.json"
    write_json(path, "old", {}, [])
    with pytest.raises(TypeError):
        write_json(path, "new", {"not for json": object()}, [])
    assert json.loads(path.read_text())["model"] == "old"
