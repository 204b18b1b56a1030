"""What the experiments on response selection report, from made-up results."""

import json
import pathlib
import sys
import types
from importlib import import_module as load

import numpy as np
import pytest

from dcse_tf.errors import InputError
from dcse_tf.evaluation import bootstrap
from dcse_tf.evaluation.report import Result, write_json
from dcse_tf.evaluation.response_selection import Sample

FOLDER = pathlib.Path(__file__).parents[2] / "experiments"
# R@1 of four contexts, which have 1, 1, 3 and 5 turns.
HITS = {"bert": [0, 0, 0, 100], "bert_vft": [0, 0, 100, 100], "bert_sl": [100, 0, 100, 100]}


@pytest.fixture(autouse=True)
def experiments_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)
    monkeypatch.setattr(load("report"), "RESAMPLES", 200)
    monkeypatch.setattr(sys, "argv", ["experiments/selection.py", "table1"])


def result(hits, way="reranker", fingerprint="f"):
    """Groups of 10 in which MRR is 50 where the true response is not first."""
    items = {
        f"{way}_r1": [float(hit) for hit in hits],
        f"{way}_mrr": [max(50.0, hit) for hit in hits],
        "tie_share": [0.0] * len(hits),
    }
    scores = {name: float(np.mean(values)) for name, values in items.items()}
    counts = {"groups": 4.0, "candidates": 10.0, f"chance_{way}_r1": 10.0}
    limits = {f"{way}_r1": (1.0, 99.0), f"{way}_mrr": (2.0, 98.0)}
    return Result(
        f"candidates_{way}", "groups.jsonl", fingerprint, {**scores, **counts}, items, limits
    )


def make_group(turns):
    context = [{"role": "ab"[i % 2], "text": "x" * (i + 1)} for i in range(turns)]
    texts = [f"t{i}" for i in range(10)]
    labels = [1, *[0] * 9]
    return {"id": f"{turns}", "context": context, "responder": "a", "candidates": texts} | {
        "labels": labels
    }


@pytest.fixture
def made(tmp_path):
    """Settings and plan of a table of chitchat, results of three rows and two seeds among it."""
    (tmp_path / "talk.txt").touch()

    def make(name, lacking=()):
        selection = load("selection")
        flags = [f"--chitchat_train=chitchat:{tmp_path}/talk.txt", f"--work_dir={tmp_path}/work"]
        rows = ["--rows", *HITS, "--seeds", "0", "1"]
        options = selection.parse_arguments([name, *flags, *rows])
        settings = load("selection_settings").read_settings(options)
        variants = selection.list_variants(name, settings, options.rows)
        found = load("selection_plan").make_plan(settings, variants, name == "choose")
        for (variant, _), paths in found.plan.results.items():
            for seed, path in enumerate(paths):
                if (variant.name, seed) in lacking:
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                hits = HITS[variant.row.name.partition("-")[0]]
                # Another seed of BERT-VFT finds nothing.
                hits = [0] * 4 if (variant.name, seed) == ("bert_vft", 1) else hits
                if "auxiliary_weight=0.3" in variant.name:
                    hits = [100] * 4
                write_json(path, "model", {}, [result(hits)])
        for each in found.sets.values():
            path = each.locate(settings.work_dir)
            path.parent.mkdir(parents=True, exist_ok=True)
            groups = [{**make_group(turns), "id": str(n)} for n, turns in enumerate((1, 1, 3, 5))]
            lines = map(json.dumps, groups)
            path.write_text("\n".join(lines) + "\n")
        return settings, found

    return make


def reports(name, made, **more):
    return list(load("selection").make_reports(name, *made(name, **more), "c1"))


def test_table_1_is_the_mean_over_seeds_compared_with_bert_vft(made):
    (report,) = reports("table1", made)
    (lines,) = report.sets.values()
    means = {line.label: line.scores["r1"].mean for line in lines}
    assert means == {"BERT": 25, "BERT-VFT": 25, "BERT-SL": 75}  # BERT-VFT: 50 and 0
    by_name = {line.label: line for line in lines}
    assert by_name["BERT-VFT"].differences == {}
    assert by_name["BERT-VFT"].paper == {}  # drawn groups are not the paper's
    difference = by_name["BERT-SL"].differences["r1"]
    assert difference.value == 50
    assert set(by_name["BERT"].differences) == {"r1", "mrr"}
    text = load("report").format_markdown(report)
    assert "## chitchat, drawn from held-out dialogues" in text
    assert "Difference from BERT-VFT:" in text
    assert "4 comparisons of this report" in text
    # 50 and 0: deviation 50 / sqrt(2); t of one degree 12.706 x 25.
    assert "| BERT-VFT | 2 | 25.0 ± 35.4 [-292.7, 342.7] |" in text


def test_the_papers_figures_stand_beside_its_own_test_file():
    report, variant = load("selection_report"), load("rows").Variant(load("selection_rows").BERT_SL)
    scores = {variant: [{"candidates": report._strip(result([0, 100]), "reranker_")}]}
    (line,) = report.make_lines(scores, {}, "ecd")
    assert line.paper == {"r1": 77.6, "r2": 91.9, "r5": 99.1}


def test_the_order_is_the_papers_where_a_gain_is_a_gain_here(made):
    (report,) = reports("table1", made)
    heading = "chitchat, drawn from held-out dialogues: R@1 against the order on Ubuntu"
    # Ubuntu: BERT 81.7, BERT-VFT 86.7, BERT-SL 88.4. Here BERT-VFT is not above BERT.
    assert report.tables[heading][1][:2] == ["BERT-VFT", "BERT"]
    assert report.tables[heading][1][2:] == pytest.approx([5.0, 0.0])
    assert report.tables[heading][-1][0] == "in the paper's order: 2 of 3 pairs"
    assert len(report.tables[heading]) == 3


def test_a_report_of_a_plan_that_is_not_done_says_what_lacks(made):
    lacking = [("bert_sl", 0), ("bert_sl", 1), ("bert_vft", 1)]
    (report,) = reports("table1", made, lacking=lacking)
    (lines,) = report.sets.values()
    assert [line.label for line in lines] == ["BERT", "BERT-VFT"]
    assert report.notes[0] == "Not done yet: 3 of 6 scores."
    assert lines[1].scores["r1"].values == (50,)


def test_figure_3_is_r1_of_the_contexts_of_a_length(made, tmp_path):
    turns, characters = reports("figure3", made)
    assert (turns.axis, characters.axis) == ("turns of the context", "characters of the context")
    (lines,) = turns.sets.values()
    found = {line.label: line.scores["r1"].mean for line in lines if line.series == "BERT-SL"}
    assert found == {
        "BERT-SL, 1 to 1 (2 groups)": 50,
        "BERT-SL, 3 to 3 (1 groups)": 100,
        "BERT-SL, 5 to 5 (1 groups)": 100,
    }
    # Of 1 + 2 + 3 and 1 + ... + 5 characters.
    assert [line.x for line in next(iter(characters.sets.values()))][:3] == [1, 6, 15]
    load("plots").write_plot(tmp_path / "a.png", turns)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_bins_have_as_many_groups_as_equal_lengths_allow():
    split = load("selection_report").split_by_length
    assert [part.tolist() for part in split(range(8))] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [part.tolist() for part in split([2, 2, 2, 2])] == [[0, 1, 2, 3]]
    assert [part.tolist() for part in split([9, 1, 1, 1, 1, 1, 1, 1])] == [
        [1, 2, 3, 4, 5, 6, 7],
        [0],
    ]


def test_a_candidate_file_that_is_not_the_one_scored_is_refused():
    report = load("selection_report")
    row = load("rows").Variant(load("selection_rows").BERT)
    seeds = [{"candidates": report._strip(result([0, 100]), "reranker_")}]
    with pytest.raises(InputError, match="other groups than were scored"):
        report.make_length_lines({row: seeds}, [(1, 10), (2, 10), (3, 10)])


def test_scores_of_another_way_or_another_set_are_refused(tmp_path):
    read_seeds = load("selection_report").read_seeds
    write_json(tmp_path / "a.json", "m", {}, [result([0, 100], "cosine")])
    write_json(tmp_path / "b.json", "m", {}, [result([0, 100], "cosine", "g")])
    (seed,) = read_seeds([tmp_path / "a.json"], "cosine")
    assert seed["candidates"].scores["r1"] == 50
    assert seed["candidates"].scores["chance_r1"] == 10
    with pytest.raises(InputError, match="no scores of candidates_reranker"):
        read_seeds([tmp_path / "a.json"], "reranker")
    with pytest.raises(InputError, match="different sets"):
        read_seeds([tmp_path / "a.json", tmp_path / "b.json"], "cosine")


def test_the_value_with_the_highest_mrr_on_dev_is_chosen(made):
    selection = load("selection")
    report, best = selection.choose(*made("choose"), "c1")
    # The first of equals; a weight of 0.3 finds every response.
    rates = {"post_learning_rate": 3e-5, "learning_rate": 3e-5}
    assert best == {**rates, "auxiliary_weight": 0.3, "consistency_margin": 0.2}
    assert report.notes[0].startswith("Highest MRR on dev: post_learning_rate 3e-05, learning_rate")
    labels = [line.label for line in report.sets["post_learning_rate"]]
    assert labels == ["BERT-VFT, 1e-05", "BERT-VFT, 3e-05", "BERT-VFT, 0.0001"]
    labels = [line.label for line in report.sets["auxiliary_weight"]]
    assert labels == ["BERT-SL, 0.1", "BERT-SL, 0.3", "BERT-SL, 1"]


def test_nothing_is_chosen_from_some_of_the_values(made):
    lacking = [("bert_sl-auxiliary_weight=1", 1), ("bert_vft-learning_rate=0.0003", 0)]
    report, best = load("selection").choose(*made("choose", lacking=lacking), "c1")
    assert set(best) == {"post_learning_rate", "consistency_margin"}
    assert len(report.sets["auxiliary_weight"]) == 3


def test_the_dev_scores_are_those_of_the_step_that_is_kept(tmp_path):
    import tensorflow as tf

    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder/training.json").write_text('{"step": 20}')
    writer = tf.summary.create_file_writer(str(tmp_path / "tensorboard"))
    for step, value in ((10, 60.0), (20, 70.0), (30, 80.0)):
        with writer.as_default(step=step):
            tf.summary.scalar("eval/dev/incoherence_accuracy", value)
            tf.summary.scalar("eval/dev/incoherence_chance", 12.5)
            tf.summary.scalar("train/loss", 1.0)
    writer.close()
    report = load("selection_report")
    scores = report.read_dev_scores(tmp_path)
    assert scores == {"dev/incoherence_accuracy": 70.0, "dev/incoherence_chance": 12.5}
    assert report.read_dev_scores(tmp_path / "nowhere") == {}
    variant = load("rows").Variant(load("selection_rows").BERT_SL)
    plan = types.SimpleNamespace(models={(variant, "ecd"): [tmp_path, tmp_path / "nowhere"]})
    table = report.describe_tasks(plan, "ecd")
    assert table[1] == ["BERT-SL", "1", "", "", 70.0, ""]
    assert table[2] == ["without reading", "", "", "", 12.5, ""]
    assert report.describe_tasks(plan, "sgd") == []


def test_the_papers_figures_are_those_of_its_tables():
    figures = load("paper").SELECTION
    names = {row.name for row in load("selection_rows").ROWS}
    assert set(figures) <= names
    assert figures["bert_sl"]["ecd"] == {"r1": 77.6, "r2": 91.9, "r5": 99.1}
    assert figures["bert_vft"]["ubuntu"] == {"r1_of_2": 96.9, "r1": 86.7, "r2": 93.9, "r5": 98.7}
    # Table 2 repeats the lines of table 1 that it starts from.
    assert figures["esim"]["ubuntu"] == {"r1_of_2": 95.0, "r1": 79.6, "r2": 87.4, "r5": 97.5}
    assert figures["dual_lstm_sl"]["ecd"] == {"r1": 51.8, "r2": 72.2, "r5": 93.3}


class Words:
    """A re-ranker by the number of letters that a response shares with the context."""

    def score(self, contexts, candidates, roles=None, responders=None, show_progress=True):
        return [
            np.array([float(len(set(text) & set("".join(context)))) for text in texts])
            for context, texts in zip(contexts, candidates, strict=True)
        ]


class Letters:
    """An encoder by two letters of a text; its heads, if any, turn contexts by a right angle."""

    def __init__(self, turned=False):
        self.heads = {"context": (), "response": ()} if turned else {}

    def encode(self, texts, show_progress=True):
        return np.array([[text.count("a"), text.count("b") + 0.5] for text in texts], float)

    def project(self, embeddings, side):
        x, y = embeddings.T
        rows = np.stack([-y, x] if side == "context" else [x, y], axis=1)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_two_stages_are_the_rerankers_order_of_what_the_cosine_finds(tmp_path):
    stages = load("two_stages")
    cosines, logits = np.array([0.5, 0.9, 0.8, 0.1]), np.array([3.0, 1.0, 2.0, 9.0])
    scored = stages.Scored(cosines, logits)
    # What was not found is below all, and equal.
    assert stages.join_stages(scored, 4, 3).tolist() == [3.0, 1.0, 2.0, 0.0]
    assert stages.join_stages(scored, 4, 2).tolist() == [0.0, 1.0, 2.0, 0.0]
    assert stages.join_stages(scored, 3, 9).tolist() == [3.0, 1.0, 2.0]
    # With twice the cosine, 4, 2.8 and 3.6.
    both = stages.list_ways([3], 2.0)["embeddings, then the re-ranker on 3, plus 2 x cosine"]
    np.testing.assert_allclose(both(scored, 4), [4.0, 2.8, 3.6, 1.8])
    # Of equal cosines the true response is found last.
    even = stages.Scored(np.array([0.5, 0.5]), logits[:2])
    assert stages.join_stages(even, 2, 1).tolist() == [0.0, 1.0]


def test_the_weight_of_the_cosine_is_the_first_with_the_highest_mrr():
    stages = load("two_stages")
    # The logits are wrong by 1 or 3, and the cosines right by 0.5: above 2 and above 6.
    one, three = (stages.Scored(np.array([0.5, 0.0]), np.array([0.0, x])) for x in (1.0, 3.0))
    assert stages.choose_weight([one]) == 4
    assert stages.choose_weight([one, three]) == 8
    wrong = stages.Scored(np.array([0.0, 0.5]), np.array([1.0, 0.0]))
    assert stages.choose_weight([wrong]) == 0


@pytest.mark.parametrize("flag", ["--timed", "--contexts", "--top"])
def test_two_stages_need_something_to_rank_and_time(flag, capsys):
    needed = ("--candidates_file=g", "--encoder=e", "--reranker=r", "--output=o")
    with pytest.raises(SystemExit):
        load("two_stages").parse_arguments([*needed, flag, "0"])
    assert f"{flag}: 0: expected at least 1" in capsys.readouterr().err


def test_two_stages_score_and_time_every_way(tmp_path):
    stages = load("two_stages")
    texts = ["abc", *(f"b{'z' * n}" for n in range(11))]
    group = {
        "id": "1",
        "context": [{"role": "x", "text": "abc"}],
        "responder": "y",
        "candidates": texts,
        "labels": [1, *[0] * 11],
    }
    lines = [json.dumps({**group, "id": name}) for name in "12"]
    (tmp_path / "groups.jsonl").write_text("\n".join(lines) + "\n")
    samples = stages.read_samples(tmp_path / "groups.jsonl", 5)
    embed = stages.make_embeddings(Letters(), "texts")
    vectors = stages.embed_candidates(samples, embed.responses)
    scored = stages.score_all(samples, vectors, embed.context, Words())
    rows = stages.summarise(scored, [3])
    # (1, 1.5) is nearest to itself; of the others each has one letter in common with the context.
    assert [(row["way"], row["candidates"], row["r1"]) for row in rows] == [
        (way, count, 100.0)
        for way in ("embeddings", "re-ranker", "embeddings, then the re-ranker on 3")
        for count in (10, 12)
    ]
    times = stages.time_ways(samples, vectors, embed.context, Words(), [3])
    assert set(times) == {(row["way"], row["candidates"]) for row in rows}
    for row in rows:
        row["ms"] = times[row["way"], row["candidates"]]
    assert "| re-ranker | 12 | 100.0 [100.0, 100.0] |" in stages.format_markdown(rows)
    few = make_group(1) | {"candidates": ["a", "b"], "labels": [1, 0]}
    (tmp_path / "few.jsonl").write_text(json.dumps(few))
    with pytest.raises(InputError, match="groups of one size"):
        stages.read_samples(tmp_path / "few.jsonl", 5)


def test_the_first_stage_is_behind_the_heads_of_an_encoder_that_has_them():
    stages = load("two_stages")
    turns, texts = ["a", "ab"], ["abc", "bb", ""]
    # Their mean is (1, 1), the responses (1, 1.5), (0, 2.5) and (0, 0.5).
    for turned, cosines in ((False, [2.5 / 3.25**0.5, 1, 1]), (True, [0.5 / 3.25**0.5, 1, 1])):
        embed = stages.make_embeddings(Letters(turned), "responses" if turned else "texts")
        found = stages.find_by_cosine(Sample(turns, texts), embed.responses(texts), embed.context)
        np.testing.assert_allclose(found, np.array(cosines) / 2**0.5)


def note_done(found, settings):
    """Records every run of a plan as done with its present command."""
    runner = load("runner").Runner(settings.work_dir, found.plan.runs)
    for name, run in found.plan.runs.items():
        folder = settings.work_dir / name
        (folder / run.output).parent.mkdir(parents=True, exist_ok=True)
        (folder / run.output).touch()
        record = {"digest": runner._digests[name], "commits": ["c1"], "seconds": 1.0}
        (folder / "run.json").write_text(json.dumps(record))


def test_results_of_former_settings_are_not_reported(made, tmp_path, capsys):
    """The trainings took 600 steps, then 7 are asked for."""
    selection, (settings, found) = load("selection"), made("table1")
    note_done(found, settings)
    flags = [f"--chitchat_train=chitchat:{tmp_path}/talk.txt", f"--work_dir={tmp_path}/work"]
    given = ["table1", *flags, "--rows", *HITS, "--seeds", "0", "1", "--minutes=0"]
    selection.run(selection.parse_arguments(given))
    assert "| BERT-SL | 2 | 75.0" in capsys.readouterr().out
    report = tmp_path / "work/reports/table1-small.md"
    report.unlink()
    selection.run(selection.parse_arguments([*given, "--steps=7"]))
    assert "0 minutes are over" in capsys.readouterr().out
    assert not report.exists()


def test_after_the_minutes_no_run_is_begun(tmp_path):
    runner = load("runner")
    write = "open('{work}/%s/out.txt', 'w').write('x')"
    runs = {name: runner.Run(name, ("-c", write % name), "out.txt") for name in ("b", "a")}
    assert not runner.Runner(tmp_path, runs, say=lambda line: None, minutes=0).run_all()
    assert not (tmp_path / "a").exists()
    said = []
    assert runner.Runner(tmp_path, runs, say=said.append, minutes=5).run_all()
    assert said[0].startswith("[1 of 2] b: new")  # the order given, not that of the names
    assert runner.Runner(tmp_path, runs, say=said.append, minutes=0).run_all()  # done before
