"""The evaluate and compare jobs: what they read, what the results say, what becomes of them."""

import collections
import re

import numpy as np
import pytest
from dialogue_files import run
from shared_files import shared_file
from train_options import make_options
from written_dialogues import json_lines

from dcse_tf.cli import commands
from dcse_tf.errors import InputError, OutputError
from dcse_tf.evaluation import evaluate as job
from dcse_tf.evaluation import report, response_selection
from dcse_tf.evaluation.evaluate import CompareOptions, EvaluateOptions, evaluate
from dcse_tf.evaluation.report import compare_results, describe_differences
from dcse_tf.training.build import build_training
from dcse_tf.training.dev_evaluation import make_dev_evaluation


def make_config(model, sessions, **settings):
    values = {"candidates": 4, "max_samples": 20, **settings}
    return EvaluateOptions(model=str(model), response_selection=(str(sessions),), **values)


@pytest.mark.slow
def test_every_r1_says_which_turns_its_context_holds_earlier_ones_first(
    model, data_dir, tmp_path, capsys, caplog
):
    output = tmp_path / "new/results.json"
    config = make_config(model, data_dir / "test.jsonl", output=str(output), context_turns=2)
    commands.evaluate(config.replace(max_sequence_length=4))
    _, results, settings = report.read_results(output)
    assert [(result.task, result.context) for result in results] == [
        ("response_matching", "2 before"),
        ("response_matching_bidirectional", "2 before, 2 after"),
        ("response_cosine", "2 before"),
        ("response_cosine_bidirectional", "2 before, 2 after"),
    ]
    lines = [re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines()]
    found = {row[1]: row[2] for row in lines if len(row) > 4 and row[1].endswith("_r1")}
    assert found == {f"{r.task.removeprefix('response_')}_r1": r.context for r in results}
    chances = [r.scores[f"chance_{name}"] for r, name in zip(results, found, strict=True)]
    assert chances == pytest.approx([25.0] * 4)
    # The settings as they were resolved: 0 would say the encoder's own length.
    assert (settings["max_sequence_length"], settings["pooling"]) == (4, "mean")
    (told,) = [text for text in caplog.messages if "`max_sequence_length`" in text]
    assert "distinct texts have more than the 4 tokens" in told  # once a job


@pytest.mark.slow
def test_the_log_of_a_training_says_which_turns_dev_scores_see(data_dir, monkeypatch):
    said = []
    log = "dcse_tf.training.dev_evaluation.logging.info"
    monkeypatch.setattr(log, lambda text, *values: said.append(text % values))
    options = make_options(
        data_dir=str(data_dir), run_dir="unused", encoder_size="tiny", dev_samples=10,
        steps=1, global_batch_size=4, negatives=3,
    )  # fmt: skip
    make_dev_evaluation(build_training(options))
    (told,) = [text for text in said if "dev/cosine_r1" in text]
    assert "dev/cosine_r1 and so on: 3 before;" in told
    assert told.endswith("dev/cosine_bidirectional_r1 and so on: 3 before, 3 after")


def by_text(texts):
    """Random directions, the same for a text wherever it stands."""
    return np.array([np.random.default_rng(list(s.encode())).normal(size=8) for s in texts])


@pytest.fixture
def no_model(monkeypatch):
    """An evaluation without a model: directions by text, and a matching of no use."""

    def load(config):
        score = lambda samples: response_selection.score_by_embeddings(samples, by_text, {})  # noqa: E731
        return {"max_sequence_length": 64}, by_text, score

    monkeypatch.setattr(job, "_load", load)


@pytest.mark.parametrize("place", ["results.json", "file/results.json"])
def test_results_that_cannot_be_written_after_all_are_printed(
    no_model, data_dir, tmp_path, monkeypatch, capsys, place
):
    def fail(*_):
        raise OutputError("no space left")

    monkeypatch.setattr(report, "write_results", fail)
    (tmp_path / "file").touch()
    config = make_config("m", data_dir / "test.jsonl", output=str(tmp_path / place))
    with pytest.raises(OSError, match=r"no space left|file"):
        commands.evaluate(config)
    # A folder that cannot be made is found out before anything is scored.
    assert ("cosine_r1" in capsys.readouterr().out) == (place == "results.json")


def write_sets(folder):
    """A retrieval set of two intents and pairs with degrees, 60 of each."""
    lines = []
    for i in range(60):
        same, other = ([j for j in range(60) if j != i and (i - j) % 2 == k] for k in (0, 1))
        lines.append(f"{i}\ts {i}\t\t{','.join(map(str, same))}\t{','.join(map(str, other))}")
    (folder / "select.txt").write_text("\n".join(lines) + "\n")
    (folder / "sts.txt").write_text("".join(f"{i % 5 + 1}\ta {i}\tb {i}\n" for i in range(60)))
    return {"retrieval": (str(folder / "select.txt"),), "sts": (str(folder / "sts.txt"),)}


def test_halves_and_models_are_compared(no_model, tmp_path, capsys):
    found, sets = {}, [f"--{name}={path}" for name, (path,) in write_sets(tmp_path).items()]
    for half in ("all", "choose", "report"):
        given = [f"--model={half}", f"--half={half}", f"--output={tmp_path}/{half}.json"]
        commands.main(["evaluate", *given, *sets])
        assert f"results are in {tmp_path}/{half}.json" in capsys.readouterr().out
        _, found[half], settings = report.read_results(tmp_path / f"{half}.json")
        assert settings["half"] == half
    counts = [[r[0].scores["queries"], r[1].scores["pairs"]] for r in found.values()]
    assert counts[0] == [60, 60]
    assert np.add(counts[1], counts[2]).tolist() == counts[0]
    with pytest.raises(InputError, match="no evaluation set in common"):
        compare_results(found["all"], found["choose"])

    files = tuple(str(tmp_path / f"{name}.json") for name in ("report", "report"))
    commands.compare(CompareOptions(results=files))
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "first: report, second: report"
    assert last.split()[-5:] == ["+0.00", "to", "+0.00", "1.0000", "1.0000"]


def test_settings_that_bear_on_the_scores_are_named_and_no_others():
    first = EvaluateOptions(model="a", sts=("s.txt",), pooling="cls", batch_tokens=64)
    second = EvaluateOptions(model="b", sts=("s.txt",), batch_tokens=9, prefix="query: ")

    def compare(*configs):
        return describe_differences(*(config.to_dict() for config in configs))

    assert compare(first, second) == [
        "`pooling` is not the same: first cls, second ''",
        "`prefix` is not the same: first '', second 'query: '",
    ]
    assert compare(first, first.replace(batch_tokens=5)) == []
    assert describe_differences(first.to_dict(), {"pooling": None, "prefix": None}) == []


def make_dialogues():
    """Session to turns; the first letter of a session's name says what its turns are.

    a: x speaks twice, then y. b: x speaks three times. c: between two turns of x, y says what has
    no token: prepare_data leaves that out, and parts the two turns of x also where it joins.
    """
    turns = {"a": "xxy", "b": "xxx", "c": "xyxy"}
    dialogues = {}
    for number in range(90):
        name = f"{'abc'[number % 3]}{number}"
        dialogues[name] = [(r, f"s{number} t{i}") for i, r in enumerate(turns[name[0]])]
        if name[0] == "c":
            dialogues[name][1] = ("y", "\ufffd")
    return dialogues


@pytest.fixture
def seen(monkeypatch):
    """The numbers of turns of the sessions that samples are drawn from, by the kind of session."""
    turns = []

    def spy(sessions, **settings):
        found = collections.defaultdict(set)
        for session in sessions:
            found[session.session_id[0]].add(len(session.turns))
        turns.append(dict(sorted(found.items())))
        return make_samples(sessions, **settings)

    make_samples = response_selection.make_samples
    monkeypatch.setattr(response_selection, "make_samples", spy)
    return turns


def test_of_copies_under_other_ids_the_first_alone_is_read(tmp_path):
    said = {"a": [("x", "where is my parcel"), ("y", "it left")], "b": [("x", "hi"), ("y", "hi")]}
    copies = {f"{name}2": turns for name, turns in said.items()}
    (tmp_path / "dev.jsonl").write_text(json_lines(said | copies))
    found = response_selection.read_dialogues(tmp_path / "dev.jsonl")
    assert [each.session_id for each in found] == ["a", "b", "b2"]  # greetings recur by chance


@pytest.mark.slow
@pytest.mark.parametrize(
    ("join", "expected"),
    [(True, {"a": {2}, "c": {3}}), (False, {"a": {3}, "b": {3}, "c": {3}})],
)
def test_responses_are_selected_among_the_turns_that_training_sees(
    no_model, tmp_path, seen, join, expected
):
    fractions = {"dev_fraction": 0.3, "test_fraction": 0.3}
    run(tmp_path, json_lines(make_dialogues()), format="jsonl", join_consecutive=join, **fractions)
    evaluate(make_config("m", tmp_path / "data/test.jsonl"))
    evaluate(make_config("m", tmp_path / "data/dev.jsonl"))
    assert seen == [expected, expected]


def test_grouped_candidates_are_scored_and_compared_whatever_is_used_of_their_contexts(
    no_model, tmp_path
):
    """Lines of two and of three candidates; contexts of which only the last turn is used."""
    lines = []
    for number in range(6):
        context = f"s{number} t0\ts{number} t1"
        texts = [f"s{number} t2", *(f"w{n} s{n} w{number}" for n in range(1 + number % 2))]
        lines += [f"{int(n == 0)}\t{context}\t{text}" for n, text in enumerate(texts)]
    (tmp_path / "test.txt").write_text("\n".join(lines) + "\n")
    found, settings = [], []
    for turns in (0, 1):
        files = {"candidates_file": (f"{tmp_path}/test.txt",), "candidates_format": "ubuntu"}
        config = EvaluateOptions(model="m", candidates_turns=turns, **files)
        (result,) = evaluate(config)
        found.append([result])
        settings.append(config.to_dict())
        assert result.context == ("all before", "1 before")[turns]
        names = [f"cosine_{name}" for name in ("r1", "r2", "r1_of_2", "map", "mrr")]
        assert [name for name in result.scores if name.startswith("cosine")] == names
        assert result.scores["groups_of_2"] == result.scores["groups_of_3"] == 3
    assert len(compare_results(*found)) == 5
    (difference,) = describe_differences(*settings)
    assert difference == "`candidates_turns` is not the same: first 0, second 1"
    (tmp_path / "empty").touch()
    with pytest.raises(InputError, match="empty: no group of candidates"):
        evaluate(EvaluateOptions(model="m", candidates_file=(str(tmp_path / "empty"),)))


def rank_in_plain_python(path):
    """R_10@k, MAP, MRR and R_2@1 of the character score below, from the file's own fields.

    Every context has one true response; tied with others, it is at each of their places equally
    often.
    """
    groups, sums = collections.defaultdict(lambda: {"0": [], "1": []}), collections.Counter()
    for row in path.read_text(encoding="utf-8").splitlines():
        label, *context, response = row.split("\t")
        heard = set("".join("".join(context).split()))
        score = sum(letter in heard for letter in "".join(response.split()))
        groups[tuple(context)][label].append(score)
    for scores in groups.values():
        (true,), others = scores["1"], scores["0"]
        better, tied = sum(other > true for other in others), others.count(true)
        places = np.arange(better + 1, better + tied + 2)
        sums.update({f"r{k} of 10": np.mean(places <= k) for k in (1, 2, 5)})
        sums["r1 of 2"] += (true > others[0]) + (true == others[0]) / 2
        sums["map"] += np.mean(1 / places)
    sums["mrr"] = sums["map"]
    return {name: 100 * total / len(groups) for name, total in sums.items()}


def count_heard(samples):
    """The same score, of the samples that the job makes."""
    rows = []
    for sample in samples:
        heard = set("".join(sample.context)) - {" "}
        rows.append(np.array([sum(map(heard.__contains__, text)) for text in sample.candidates]))
    return {"own": rows}


def test_evaluate_prints_what_plain_python_computes(monkeypatch, capsys):
    path = shared_file("ecd_response_selection/test")
    scored = {}, None, count_heard
    monkeypatch.setattr(job, "_load", lambda config: scored)
    config = EvaluateOptions(model="m", candidates_file=(str(path),), candidates_format="ecd")
    commands.evaluate(config)
    printed = capsys.readouterr().out
    found = dict(re.findall(r"own_(\S+(?: of \d+)?) +all before +([0-9.]+) ", printed))
    expected = rank_in_plain_python(path)
    assert {name: f"{value:.2f}" for name, value in expected.items()} == found
    assert "100 groups of 10 candidates" in printed
