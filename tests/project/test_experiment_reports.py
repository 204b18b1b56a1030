"""Statistics over seeds, and the reports, from made-up results."""

import argparse
import dataclasses
import json
import pathlib
import sys
from importlib import import_module as load

import numpy as np
import pytest
import scipy.stats

from dcse_tf.errors import InputError
from dcse_tf.evaluation import bootstrap
from dcse_tf.evaluation.report import Result, write_json

FOLDER = pathlib.Path(__file__).parents[2] / "experiments"
DEGREES = [1.0, 2, 3, 4, 5, 5]
RISING, FALLING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.5], [0.9, 0.8, 0.7, 0.6, 0.5, 0.5]


@pytest.fixture(autouse=True)
def experiments_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)
    monkeypatch.setattr(load("report"), "RESAMPLES", 200)


def results(more=0.0, cosine=RISING, fingerprint="f"):
    """A seed's results: MAP items 40, 50, 60 and MRR 30, 100, 50, each raised by `more`."""
    items = {"map": [40 + more, 50 + more, 60 + more], "mrr": [30 + more, 100 + more, 50 + more]}
    spearman = 100 * scipy.stats.spearmanr(DEGREES, cosine).statistic
    retrieval = Result(
        "retrieval",
        "select.txt",
        fingerprint,
        {**{name: float(np.mean(values)) for name, values in items.items()}, "tie_share": 0.0},
        items,
        {"map": (41.0, 59.0), "mrr": (31.0, 99.0)},
    )
    sts = Result(
        "sts",
        "sts.txt",
        f"{fingerprint}s",
        {"spearman": float(spearman), "tie_share": 0.0},
        {"degree": DEGREES, "cosine": list(cosine)},
        {"spearman": (10.0, 90.0)},
    )
    return {"retrieval": retrieval, "sts": sts}


def test_the_interval_over_seeds_is_students():
    # 50, 52, 57: mean 53, deviation sqrt((9 + 1 + 16) / 2) = sqrt(13); t(2 degrees) = 4.30265.
    score = load("report").summarise([results(0), results(2), results(7)], "map")
    assert score.values == (50, 52, 57)
    assert score.mean == pytest.approx(53)
    assert score.deviation == pytest.approx(13**0.5)
    half = 4.302653 * 13**0.5 / 3**0.5
    assert (score.low, score.high) == pytest.approx((53 - half, 53 + half), rel=1e-6)


def test_one_seed_has_the_interval_of_its_items():
    score = load("report").summarise([results()], "mrr")
    assert (score.mean, score.deviation, score.low, score.high) == (60, None, 31, 99)


def test_a_difference_is_of_the_means_over_seeds():
    compare = load("report").compare
    ours, theirs = [results(0), results(4)], [results(10)]
    found = compare(ours, theirs, "map")
    # 60 - (50 + 54) / 2; every item differs by it, so every draw does.
    assert (found.value, found.low, found.high) == pytest.approx((8, 8, 8))
    assert found.p_value == pytest.approx(2 / 201)
    assert compare(theirs, ours, "map").value == pytest.approx(-8)
    same = compare(ours, ours, "mrr")
    assert (same.value, same.p_value) == (0, 1)


def test_differences_by_seed_are_between_equal_seeds():
    """MAP 50, 54, 57 against 60, 50, 57; an untrained start, 50, is compared with each seed."""
    compare = load("report").compare
    ours = [results(more) for more in (0, 4, 7)]
    theirs = [results(more) for more in (10, 0, 7)]
    assert compare(ours, theirs, "map").by_seed == pytest.approx((10, -4, 0))
    assert compare([results()], theirs, "map").by_seed == pytest.approx((10, 0, 7))
    assert compare(ours, theirs[:2], "map").by_seed == ()
    turned = [results(cosine=FALLING), results()]
    assert compare([results()], turned, "spearman").by_seed == pytest.approx((-200, 0))


def test_a_correlations_difference_is_of_the_means_of_the_seeds_correlations():
    """The mean of correlations 100 and -100 is 0; the correlation of the mean cosines is none."""
    compare = load("report").compare
    ours, theirs = [results(), results(cosine=FALLING)], [results()]
    found = compare(ours, theirs, "spearman")
    assert found.value == pytest.approx(100)
    assert compare(theirs, [results(cosine=FALLING)] * 2, "spearman").value == pytest.approx(-200)


def test_one_seed_against_one_is_what_compare_says():
    ours, theirs = results(cosine=[0.3, 0.1, 0.5, 0.2, 0.6, 0.4]), results(cosine=RISING)
    found = load("report").compare([ours], [theirs], "spearman")
    items = [
        {name: np.array(values) for name, values in each["sts"].items.items()}
        for each in (ours, theirs)
    ]
    expected = dataclasses.asdict(bootstrap.difference(*items, "spearman"))
    assert dataclasses.asdict(found) == {**expected, "by_seed": (pytest.approx(expected["value"]),)}


def test_results_of_different_sets_are_refused(tmp_path):
    for name, fingerprint in (("a", "f"), ("b", "g")):
        path = tmp_path / f"{name}.json"
        write_json(path, "model", {}, list(results(fingerprint=fingerprint).values()))
    scores = load("report")
    files = ["select.txt", "sts.txt"]
    assert scores.read_results([tmp_path / "a.json"], files) == [results()]
    with pytest.raises(InputError, match="different sets"):
        scores.read_results([tmp_path / "a.json", tmp_path / "b.json"], files)
    with pytest.raises(InputError, match="different sets"):
        scores.compare([results()], [results(fingerprint="g")], "map")
    write_json(tmp_path / "c.json", "model", {}, [results()["sts"]])
    with pytest.raises(InputError, match=r"c\.json: no evaluation of select\.txt"):
        scores.read_results([tmp_path / "c.json"], files)


def test_of_several_sets_of_a_kind_the_one_asked_for_is_read(tmp_path):
    scores = load("report")
    other = dataclasses.replace(results(9)["retrieval"], source="other.txt")
    write_json(tmp_path / "a.json", "model", {}, [*results().values(), other])
    (found,) = scores.read_results([tmp_path / "a.json"], ["other.txt"])
    assert found == {"retrieval": other}
    assert scores.get_names([found]) == ["map", "mrr"]
    assert scores.get_names([results()]) == ["spearman", "map", "mrr"]


def report(axis="", seeds=2, names=("spearman", "map", "mrr")):
    """Two models on one corpus, the second better by 3 in MAP and MRR."""
    made = load("report")
    base = [results(more) for more in (0, 2)[:seeds]]
    better = [results(more) for more in (3, 5)[:seeds]]
    lines = [
        made.Line(
            label,
            "model",
            x,
            {name: made.summarise(found, name) for name in names},
            paper,
            {name: made.compare(base, found, name) for name in names} if x == 2 else {},
            {"alignment": 0.5, "uniformity": -2.125} if x == 1 else {},
        )
        for label, x, found, paper in (("a", 1, base, {"map": 69.32}), ("b", 2, better, {}))
    ]
    sets = made.correct({"ECD": lines})
    return made.Report("table9-small", "Table 9", axis, "a", ["A note."], sets, {})


def test_the_markdown_has_our_scores_beside_the_papers():
    text = load("report").format_markdown(report())
    # Seeds 50 and 52: deviation sqrt(2) = 1.4, half of the interval 12.706 x sqrt(2) / sqrt(2).
    assert text.splitlines()[:10] == [
        "# Table 9",
        "",
        "- A note.",
        "",
        "## ECD",
        "",
        "|  | seeds | Corr. | MAP | paper | MRR |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| a | 2 | 100.0 ± 0.0 [100.0, 100.0] | 51.0 ± 1.4 [38.3, 63.7] | 69.32 "
        "| 61.0 ± 1.4 [48.3, 73.7] |",
        "| b | 2 | 100.0 ± 0.0 [100.0, 100.0] | 54.0 ± 1.4 [41.3, 66.7] |  "
        "| 64.0 ± 1.4 [51.3, 76.7] |",
    ]
    assert "Difference from a:" in text
    # Of three p-values the two least, 2 / 201 each, are multiplied by 3.
    compared = "by seed | p | p (Holm)"
    assert f"|  | Corr. | {compared} | MAP | {compared} | MRR | {compared} |" in text
    assert "| b | +0.0 [+0.0, +0.0] | +0.0, +0.0 | 1.0000 | 1.0000 | +3.0 [+3.0, +3.0] " in text
    assert "| +3.0 [+3.0, +3.0] | +3.0, +3.0 | 0.0100 | 0.0299 |" in text


def test_the_geometry_is_the_mean_over_seeds_and_below_the_scores():
    def seed(value):
        sts = results()["sts"]
        scores = {**sts.scores, "alignment": value, "uniformity": -2.0}
        return {**results(), "sts": dataclasses.replace(sts, scores=scores)}

    describe = load("report").describe_geometry
    assert describe([seed(0.25), seed(0.75)]) == {"alignment": 0.5, "uniformity": -2.0}
    assert describe([results()]) == {}
    text = load("report").format_markdown(report())
    assert "|  | alignment | uniformity | anisotropy |" in text
    assert "| a | 0.50 | -2.12 |  |\n| b |  |  |  |" in text


def test_a_set_without_sts_has_no_column_of_it(tmp_path):
    text = load("report").format_markdown(report(names=("map", "mrr")))
    assert "|  | seeds | MAP | paper | MRR |" in text
    assert "|  | MAP | by seed | p | p (Holm) | MRR | by seed | p | p (Holm) |" in text
    load("plots").write_plot(tmp_path / "a.png", report(names=("map", "mrr")))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_one_seed_says_no_deviation():
    text = load("report").format_markdown(report(seeds=1))
    assert "| a | 1 | 100.0 [10.0, 90.0] | 50.0 [41.0, 59.0] | 69.32 | 60.0 [31.0, 99.0] |" in text
    assert "|  | Corr. | p | p (Holm) | MAP | p | p (Holm) | MRR | p | p (Holm) |" in text


def test_the_json_has_everything_unrounded(tmp_path):
    load("report").write_json(tmp_path / "r.json", report(), {"steps": 300})
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["settings"] == {"steps": 300}
    first, second = content["sets"]["ECD"]
    assert first["scores"]["map"]["values"] == [50, 52]
    assert first["paper"] == {"map": 69.32}
    assert second["differences"]["mrr"]["value"] == pytest.approx(3)


@pytest.mark.parametrize("axis", ["", "temperature"])
def test_a_plot_is_a_png_that_shows_the_scores(axis, tmp_path):
    plots = load("plots")
    plots.write_plot(tmp_path / "a.png", report(axis))
    content = (tmp_path / "a.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    plots.write_plot(tmp_path / "b.png", report(axis))
    assert (tmp_path / "b.png").read_bytes() == content
    plots.write_plot(tmp_path / "c.png", report(axis, seeds=1))
    assert (tmp_path / "c.png").read_bytes() != content


def test_an_error_bar_goes_to_the_ends_of_the_interval():
    lines = report().sets["ECD"]
    down, up = load("plots")._errors(lines, "map")
    assert down == pytest.approx([12.706, 12.706], abs=1e-3)
    assert up == pytest.approx(down)


def test_the_papers_figures_are_those_of_its_tables():
    paper = load("paper")
    assert paper.TABLE_2["dialogue_cse_i2"]["ecd"] == {"spearman": 83.94, "map": 69.32, "mrr": 81.2}
    assert paper.TABLE_2["bert_flow"]["mdc"]["map"] == 33.13
    assert set(paper.TABLE_2) <= {row.name for row in load("rows").ROWS}
    # The defaults' columns of tables 3 and 4 are table 2's row.
    for corpus in ("jddc", "ecd"):
        whole = paper.TABLE_2["dialogue_cse_i2"][corpus]
        for table, value in ((paper.TABLE_3, 0.1), (paper.TABLE_4, 9)):
            assert table[value][corpus] == {name: whole[name] for name in ("spearman", "map")}


def test_a_report_says_half_sizes_picks_correction_command_and_commits(tmp_path, monkeypatch):
    """Two corpora, three rows: 2 comparisons x 3 scores x 2 corpora are one family of 12."""
    reproduce, rows, settings = load("reproduce"), load("rows"), load("settings")
    for corpus in ("ecd", "jddc"):
        for part in ("train", "retrieval", "sts"):
            (tmp_path / f"{corpus}_{part}.txt").touch()
    flags = [f"--{p.stem}={p}" for p in tmp_path.glob("*.txt")]
    parser = argparse.ArgumentParser()
    settings.add_flags(parser)
    chosen = settings.read_settings(parser.parse_args([f"--work_dir={tmp_path}/work", *flags]))
    variants = [rows.Variant(row) for row in rows.ROWS if row.name in ("adapt_avg", "cosine")]
    variants.append(rows.Variant(rows.RECOMMENDED))
    table = reproduce.Experiment("T", variants, against="recommended", half="report")
    plan = reproduce.make_plan(chosen, table.variants, table.half)
    # Recommended is above plain cosine on JDDC alone; at every query, so p is the least there is.
    more = {("recommended", "ecd"): 1.0, ("recommended", "jddc"): 9.0, ("cosine", "ecd"): 1.0}
    for (variant, corpus), (path,) in plan.results.items():
        path.parent.mkdir(parents=True)
        found = results(more.get((variant.row.name, corpus), 0.0))
        for (name, result), part in zip(found.items(), ("retrieval", "sts"), strict=True):
            source = str(tmp_path / f"{corpus}_{part}.txt")
            size = {"retrieval": {"queries": 3.0}, "sts": {"pairs": 6.0}}[name]
            scores = {**result.scores, **size}
            found[name] = dataclasses.replace(result, source=source, scores=scores)
        write_json(path, "model", {}, list(found.values()))
    for number, name in enumerate(plan.runs):
        path = chosen.work_dir / name / "run.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"commits": ["c1"] if number else ["c1", "c2-dirty"]}))
    monkeypatch.setattr(sys, "argv", ["experiments/t.py", "--train_flags=--steps=2 --dropout=0.2"])
    report = reproduce.make_report("t", table, chosen, plan, "c3")
    text = load("report").format_markdown(report)
    assert "evaluate --half=report" in text
    assert "JDDC: 3 queries and 6 pairs; ECD: 3 queries and 6 pairs." in text
    assert "Settings picked by comparing scores: those of recommended." in text
    assert "12 comparisons of this report. With 200 draws, no p is below 0.0100" in text
    assert "smallest corrected p is at least 0.1194" in text  # 12 x 2 / 201
    command = "python experiments/t.py '--train_flags=--steps=2 --dropout=0.2'"
    assert f"Made by `{command}` at commit c3." in text
    assert f"c1, c2-dirty (1); c1 ({len(plan.runs) - 1})." in text
    # Six p-values of 2 / 201 (adapt_avg on both, cosine on JDDC; MAP and MRR each), the others 1.
    assert (
        "| plain cosine | +0.0 [+0.0, +0.0] | 1.0000 | 1.0000 | -9.0 [-9.0, -9.0] | 0.0100 | 0.1194"
        in text
    )
    load("report").write_json(tmp_path / "r.json", report, {})
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["origin"] == {
        "half": "report",
        "command": command,
        "commit": "c3",
        "commits_of_runs": {"c1, c2-dirty": 1, "c1": len(plan.runs) - 1},
    }
    cosine = content["sets"]["ECD"][1]
    assert cosine["label"] == "plain cosine"
    assert cosine["corrected"] == {"spearman": 1, "map": 1, "mrr": 1}
    choosing = dataclasses.replace(table, half="choose")
    text = "\n".join(reproduce.make_report("t", choosing, chosen, plan, "c3").notes)
    assert "evaluate --half=choose" in text
    assert "makes its scores too high: those of recommended." in text


@pytest.mark.parametrize("names", [("glove",), ("glove", "adapt_avg")])
def test_a_corpus_without_word_vectors_has_the_other_rows_if_any(names, tmp_path, monkeypatch):
    """MDC is measured first. On ECD there is nothing to compare adapt_avg with."""
    reproduce, rows, settings = load("reproduce"), load("rows"), load("settings")
    for corpus in ("mdc", "ecd"):
        for part in ("train", "retrieval", "sts"):
            (tmp_path / f"{corpus}_{part}.txt").touch()
    flags = [f"--{p.stem}={p}" for p in tmp_path.glob("*.txt")]
    (tmp_path / "words.vec").touch()
    flags += [f"--work_dir={tmp_path}/work", f"--english_word_vectors={tmp_path}/words.vec"]
    parser = argparse.ArgumentParser()
    settings.add_flags(parser)
    chosen = settings.read_settings(parser.parse_args(flags))
    variants = [rows.Variant(row) for row in rows.ROWS if row.name in names]
    table = reproduce.Experiment("T", variants, against="glove", half="report")
    plan = reproduce.make_plan(chosen, table.variants, table.half)
    for (_, corpus), (path,) in plan.results.items():
        path.parent.mkdir(parents=True)
        found = [
            dataclasses.replace(result, source=f"{tmp_path}/{corpus}_{part}.txt")
            for result, part in zip(results().values(), ("retrieval", "sts"), strict=True)
        ]
        write_json(path, "model", {}, found)
    monkeypatch.setattr(sys, "argv", ["experiments/reproduce.py"])
    report = reproduce.make_report("t", table, chosen, plan, "c1")
    assert list(report.sets) == (["MDC"] if len(names) == 1 else ["MDC", "ECD"])
    assert report.against == "Avg. word vectors"
    assert "Left out: Avg. word vectors on ECD: no file of word vectors." in report.notes


def test_a_table_without_any_row_is_refused(tmp_path, monkeypatch):
    reproduce = load("reproduce")
    for part in ("train", "retrieval", "sts"):
        (tmp_path / f"{part}.txt").touch()
    flags = [f"--ecd_{part}={tmp_path}/{part}.txt" for part in ("train", "retrieval", "sts")]
    given = ["reproduce.py", "table2", "--rows", "glove", *flags, f"--work_dir={tmp_path}/work"]
    monkeypatch.setattr(sys, "argv", given)
    with pytest.raises(SystemExit, match="error: all rows are left out"):
        reproduce.main()
