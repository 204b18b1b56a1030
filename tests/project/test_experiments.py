"""Experiments and benchmarks: their commands are taken by the jobs, runs are done once, reports."""

import argparse
import json
import os
import pathlib

import dialogue_cse
import discovery
import domain
import jobs
import measurements
import numpy as np
import pytest
import report
import response_selection
import runs

from dcse_tf.arguments import parse_flags
from dcse_tf.cli.commands import load_options

ROOT = pathlib.Path(__file__).parents[2]
DIALOGUES = "jsonl:{0}/dialogues.jsonl"
# A row that a user adds; its flags count, whatever the experiment gives.
MORE = "--row more=--learning_rate=0.5"
PLANS = {
    "table 2, small": (dialogue_cse, f"table2 {MORE} --corpus ecd {{d}} {{0}}/select.txt"),
    "table 2, a checkpoint": (
        dialogue_cse,
        "table2 --encoder=bert --mlm_steps=9 --corpus jddc {d} {0}/select.txt {0}/sts.txt "
        "--size=paper --word_vectors={0}/sts.txt --row more=--preset=cosine",
    ),
    **{
        name: (dialogue_cse, f"{name} --encoder=bert --corpus mdc {{d}} {{0}}/select.txt")
        for name in dialogue_cse.SWEEPS
    },
    **{
        f"selection, {name}": (response_selection, f"{name} --corpus ecd {{d}} ecd:{{0}}/sts.txt")
        for name in response_selection.TABLES
    },
    "selection, paper": (response_selection, f"table1 --size=paper {MORE} --corpus ubuntu {{d}}"),
    "selection, given negatives": (
        response_selection,
        "table1 --corpus mutual mutual_candidates:{0}/dialogues.jsonl mutual:{0}/sts.txt",
    ),
    "domain": (domain, "--name=shop --train {d} --set act:{0}/select.txt --guard far:{0}/sts.txt"),
}


def accept(job, flags):
    """Parses flags as the job does, up to where it would begin; returns the options."""
    return parse_flags(load_options(job), job, list(flags))


@pytest.mark.parametrize("name", PLANS)
def test_planned_runs_are_taken_by_their_jobs(name, tmp_path, monkeypatch):
    module, words = PLANS[name]
    for file in ("dialogues.jsonl", "select.txt", "sts.txt"):
        (tmp_path / file).touch()
    monkeypatch.chdir(ROOT)
    given = words.format(tmp_path, d=DIALOGUES.format(tmp_path)).split()
    options = module.parse_arguments([*given, f"--work_dir={tmp_path}/work", "--seeds", "0", "1"])
    plan = module.Experiment(options)
    assert plan.make_tables()
    assert {run.job for run in plan.runs.values()} >= {"prepare_data", "evaluate"}
    for run in plan.runs.values():
        accepted = accept(run.job, [flag.replace(runs.WORK, "work") for flag in run.flags])
        if "--learning_rate=0.5" in run.flags:
            assert accepted.learning_rate == 0.5


def test_benchmarks_commands_are_taken_by_their_jobs(tmp_path, monkeypatch):
    asked = []

    def note(self, job, *flags):
        asked.append(job)
        accept(job, flags)
        seconds = len(asked)
        return jobs.Usage(seconds, seconds, 0.0, 0, 0.0)

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(jobs.Checkout, "run", note)
    monkeypatch.setattr(jobs, "read_training", lambda run_dir: (2.0, 6.0))
    inputs = jobs.write_inputs(tmp_path, sentences=20, contexts=20)
    args = jobs.make_parser("").parse_args([])
    checkout = jobs.Checkout(ROOT, tmp_path / "here", "bert")
    for subject in jobs.SUBJECTS:
        assert checkout.case("here", subject, inputs, args).run().rate > 0
    checkout.export(inputs, "--format=static")
    assert set(asked) == {"prepare_data", "train", "embed", "evaluate", "export"}


@pytest.fixture
def echo(monkeypatch):
    """Runs that write the value of --text, once there is a file --after; "bad" then fails."""
    program = (
        "import pathlib, sys, time; found = dict(f[2:].split('=', 1) for f in sys.argv[2:]);"
        "there = pathlib.Path(found.get('after', '.')).exists;"
        "[time.sleep(0.1) for _ in range(100) if not there()];"
        "pathlib.Path(found['output']).write_text(found['text']);"
        "sys.exit(found['text'] == 'bad' or not there())"
    )
    monkeypatch.setattr(runs, "DCSE", ("-c", program))


def test_runs_are_done_once_and_again_if_something_changed(tmp_path, echo):
    # Of two at once, the one that needs the first must not keep the last one waiting.
    after = f"--after={os.path.relpath(tmp_path / 'work/last/out.txt', ROOT)}"

    def do(text, more="b", weights=""):
        (encoder := tmp_path / "encoder").mkdir(exist_ok=True)
        (encoder / "weights").write_text(weights)
        plan = runs.Plan(argparse.Namespace(work_dir=tmp_path / "work", jobs=2))
        flags = f"--text={text}", f"--encoder={encoder}", after, "--output="
        first = plan.add("first", "embed", "out.txt", *flags)
        with pytest.raises(runs.ExperimentError, match="first: asked for twice, with other flags"):
            plan.add("first", "embed", "out.txt", "--text=none", "--output=")
        plan.add("then", "embed", "out.txt", f"--text={more}", f"--of={first}", "--output=")
        states = [plan.state(run) for run in plan.runs.values()]
        plan.add("last", "embed", "out.txt", "--text=c", "--output=")
        plan.do_all()
        return states

    assert do("a") == ["new", "new"]
    assert do("a") == ["done", "done"]
    assert do("a", "c") == ["done", "changed"]
    # The second needs the first, so it is done again too; what was there is kept.
    assert do("d", "c") == ["changed", "changed"]
    (aside,) = (tmp_path / "work").glob("first.before-*/out.txt")
    assert aside.read_text() == "a"
    with pytest.raises(runs.ExperimentError, match="first: exit status 1"):
        do("bad")
    assert do("e") == ["changed", "changed"]
    assert do("e", weights="new") == ["changed", "changed"]


def test_a_set_that_is_trained_on_is_refused(tmp_path):
    (tmp_path / "a").touch()
    words = f"table1 --work_dir={tmp_path} --corpus ecd ecd:{tmp_path}/a ecd:{tmp_path}/a".split()
    with pytest.raises(runs.ExperimentError, match="a set is among the training files"):
        response_selection.Experiment(response_selection.parse_arguments(words)).make_tables()


def result(values, name="map"):
    scores = {name: 100 * sum(values) / len(values), f"chance_{name}": 10.0}
    items = {name: [100 * value for value in values]}
    found = {"task": "retrieval", "source": "a/b/select.txt", "fingerprint": "1"}
    return {**found, "scores": scores, "items": items, "intervals": {}}


def test_a_report_compares_the_means_over_seeds_with_the_better_base(tmp_path):
    lines = [
        report.Line("start", [[result([0.1, 0.2, 0.3, 0.2])]]),
        report.Line("centred", [[result([0.2, 0.3, 0.4, 0.3])]]),
        report.Line("run", [[result([0.5, 0.6, 0.7, 0.6])], [result([0.7, 0.8, 0.9, 0.8])]]),
        report.Line("not done", []),
    ]
    table = report.Table("toy", ["x/a/b/select.txt"], lines, ("start", "centred"))
    plan = runs.Plan(argparse.Namespace(work_dir=tmp_path))
    found = report.make_report("Toy", [table], ["A note."], plan)
    (shown,) = found["tables"]
    assert shown["columns"] == ["", "MAP", "change", "p"]
    # (60 + 80) / 2, with a deviation of 14.1; less the 30 of the better base, on every item.
    assert [row[:2] for row in shown["rows"]] == [
        ["start", "20.0"],
        ["centred", "30.0"],
        ["run", "70.0 ± 14.1"],
    ]
    assert shown["rows"][2][2] == "+40.0 (40.0 to 40.0)"
    assert shown["rows"][0][2] == ""
    report.write(found, tmp_path / "reports/toy.json")
    assert json.loads((tmp_path / "reports/toy.json").read_text()) == found
    assert (tmp_path / "reports/toy.png").stat().st_size > 1000


def test_scores_say_which_turns_their_context_holds():
    assert report.describe("cosine_r1") == "R@1 by cosine"
    assert report.describe("cosine_bidirectional_r1") == "R@1 by cosine, bidirectional"
    assert report.describe("projected_mrr") == "MRR behind the heads"


def test_the_page_of_measurements_is_that_of_the_results():
    assert measurements.PAGE.read_text(encoding="utf-8") == measurements.make_page()
    named = {name for names in measurements.SECTIONS.values() for name in names.split()}
    assert named == {path.stem for path in measurements.RESULTS.glob("*.json")}


def test_clusters_are_matched_with_labels():
    """Three of four texts are in the cluster of their label; 40 equal scores have no error."""
    assert discovery.match(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 2])) == 0.75
    labels = np.arange(40) // 2 % 4
    found = labels[::-1] - 1  # the last are outliers: one more cluster
    scores = discovery.score(labels, found + 1)
    assert scores == pytest.approx(100)
    assert discovery.describe(found, scores, scores).endswith("/ 100.0 ± 0.0 (3, 25% in none)")
    assert discovery.describe(labels, scores - 1, scores) == "99.0* / 99.0* / 99.0* (4)"
