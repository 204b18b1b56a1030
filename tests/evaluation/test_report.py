import dataclasses
import json

import numpy as np
import pytest

from dcse_tf.errors import InputError
from dcse_tf.evaluation import bootstrap
from dcse_tf.evaluation.metrics import Evaluation
from dcse_tf.evaluation.report import (
    Result,
    align,
    format_table,
    make_result,
    read_json,
    write_json,
)

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
        "set                 score  value    95% interval  chance",
        "--------------------------------------------------------",
        "ecd/dev/select.txt  map    51.23  51.00 to 51.47   46.05",
        "ecd/dev/select.txt  mrr    70.00                   63.90",
    ]


def test_table_ends_with_the_warnings():
    lines = format_table([RETRIEVAL, STS]).splitlines()
    assert [line.split() for line in lines[4:5]] == [
        ["sts.txt", "spearman", "-3.14", "-100.00", "to", "0.00", "0.00"]
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


def test_what_was_written_is_read_back(tmp_path):
    path = tmp_path / "scores.json"
    write_json(path, "模型", {"seed": 3}, [RETRIEVAL, STS])
    assert read_json(path) == ("模型", [RETRIEVAL, STS], {"seed": 3})


def test_results_of_a_later_version_with_more_fields_are_read(tmp_path):
    path = tmp_path / "scores.json"
    write_json(path, "run", {}, [STS])
    content = json.loads(path.read_text())
    content["results"][0]["colour"] = "red"
    path.write_text(json.dumps({**content, "date": "today"}))
    model, (result,), _ = read_json(path)
    assert (model, result.items, result.scores) == ("run", STS.items, STS.scores)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1]",
        "null",
        '{"model": "a"}',
        '{"model": "a", "results": 3}',
        '{"model": "a", "results": [3]}',
        '{"results": []}',
        '{"model": "a", "results": []}',
        '{"model": "a", "results": [], "settings": 3}',
        '{"model": "a", "results": [{"task": "sts", "source": "s", "scores": {}}]}',
        b"\xff\xfe",
    ],
)
def test_what_evaluate_did_not_write_is_named(tmp_path, content):
    path = tmp_path / "scores.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}: not a file of results of evaluate")


@pytest.mark.parametrize("name", ["nowhere.json", "."])
def test_results_that_cannot_be_read_are_named(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(InputError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}: cannot be read")


def test_a_result_has_an_interval_for_every_score_and_for_nothing_else(monkeypatch):
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)
    items = {
        "map": np.array([20.0, 40, 90, 60]),
        "mrr": np.full(4, 50.0),
        "chance_map": np.array([45.0, 46, 47, 46]),
        "tie_share": np.zeros(4),
    }
    scores = {"map": 52.5, "mrr": 50.0, "chance_map": 46.0, "tie_share": 0.0, "queries": 4.0}
    result = make_result("retrieval", "a/select.txt", "f00d", Evaluation(scores, items))
    assert (result.task, result.source, result.fingerprint) == ("retrieval", "a/select.txt", "f00d")
    assert result.scores == scores
    assert result.items == {name: values.tolist() for name, values in items.items()}
    assert list(result.intervals) == ["map", "mrr"]
    assert result.intervals["mrr"] == (50, 50)
    low, high = result.intervals["map"]
    assert 20 <= low < 52.5 < high <= 90


def test_items_keep_what_decides_a_rank_and_no_more(monkeypatch, tmp_path):
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)
    # Millionths, as scores are rounded to them: 7 * 1e-6 is 6.999999999999999e-06.
    millionths = np.random.default_rng(0).integers(-100, 100, 30)
    degrees = np.arange(30) % 5 + 1.0
    scores = {"spearman": 12.0, "chance_spearman": 0.0, "tie_share": 0.0}
    evaluation = Evaluation(scores, {"degree": degrees, "cosine": 1e-6 * millionths})
    write_json(tmp_path / "a.json", "run", {}, [make_result("sts", "s", "f", evaluation)])
    items = read_json(tmp_path / "a.json")[1][0].items
    assert items["degree"] == degrees.tolist()
    assert items["cosine"] == [float(f"{count}e-6") for count in millionths]


def test_a_score_of_one_item_has_no_interval_and_a_line_all_the_same():
    scores = {"map": 40.0, "chance_map": 46.0, "tie_share": 0.0, "queries": 1.0}
    evaluation = Evaluation(scores, {"map": np.array([40.0]), "chance_map": np.array([46.0])})
    result = make_result("retrieval", "s", "f", evaluation)
    assert result.intervals == {}
    assert format_table([result]).splitlines()[2].split() == [
        "s", "map", "40.00", "46.00"
    ]  # fmt: skip


def test_chinese_takes_two_columns_of_a_terminal():
    rows = [("what", "意图", "turns"), ("退货", "a", "1,234"), ("ok", "，。", "5")]
    # "退货" is as wide as "what"; full-width marks count as letters do.
    assert align(rows, text_columns=2).splitlines() == [
        "what  意图  turns",
        "-----------------",
        "退货  a     1,234",
        "ok    ，。      5",
    ]


def test_wide_and_narrow_cells_of_a_column_of_figures_end_together():
    rows = [("a", "数"), ("b", "12345"), ("c", "半ｱ角"), ("d", "é")]
    # A half-width katakana is one column wide: 2 + 1 + 2 = 5.
    assert align(rows, text_columns=1).splitlines() == [
        "a     数",
        "--------",
        "b  12345",
        "c  半ｱ角",
        "d      é",
    ]


def test_a_table_may_be_of_its_head_alone():
    assert align([("意图", "n")], text_columns=1) == "意图  n\n-------"
