"""The evaluation job: which turns it sees, what its results say, what becomes of them."""

import collections
import json

import pytest
from dialogue_files import json_lines, run
from tiny_bert import build_backbone, save_checkpoint
from train_options import make_options

from dcse_tf.bert.checkpoints import write_max_sequence_length
from dcse_tf.cli.commands import evaluate as evaluate_command
from dcse_tf.data.dialogue import Utterance
from dcse_tf.errors import OutputError
from dcse_tf.evaluation import report, response_selection
from dcse_tf.evaluation.job import evaluate
from dcse_tf.evaluation.options import EvaluateOptions
from dcse_tf.evaluation.report import compare_results, describe_differences
from dcse_tf.exporting.export_options import ExportOptions
from dcse_tf.exporting.job import export
from dcse_tf.inspecting import changes_job
from dcse_tf.training.build import build_training
from dcse_tf.training.dev_evaluation import DevEvaluation

pytestmark = pytest.mark.slow

LENGTH = 8


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = save_checkpoint(tmp_path_factory.mktemp("saved") / "model", build_backbone())
    write_max_sequence_length(folder, LENGTH)
    return folder


def make_config(model, sessions, **settings):
    values = {"candidates": 4, "max_samples": 20, **settings}
    return EvaluateOptions(model=str(model), response_selection=(str(sessions),), **values)


def test_results_say_what_they_were_computed_with(checkpoint, data_dir, verified_here, tmp_path):
    """As it was resolved: none says 0 for the encoder's own length."""
    exported = tmp_path / "export"
    export(ExportOptions(run_dir=str(checkpoint), output_dir=str(exported)))
    settings = []
    output = tmp_path / "new/results.json"
    for model, length in ((exported, 0), (checkpoint, 0), (checkpoint, 4)):
        sessions = data_dir / "test.jsonl"
        evaluate(make_config(model, sessions, max_sequence_length=length, output=str(output)))
        settings.append(report.read_json(output)[2])
    assert [found["max_sequence_length"] for found in settings] == [LENGTH, LENGTH, 4]
    assert {found["pooling"] for found in settings} == {"mean"}
    assert describe_differences(*settings[:2]) == []
    (difference,) = describe_differences(*settings[1:])
    assert difference == f"`max_sequence_length` is not the same: first {LENGTH}, second 4"


def test_texts_that_are_cut_are_told_once_a_job(checkpoint, data_dir, caplog):
    sets = tuple(str(data_dir / f"{name}.jsonl") for name in ("dev", "test"))
    config = make_config(checkpoint, sets[0], max_sequence_length=4, candidates=2)
    evaluate(config.replace(response_selection=sets))
    (told,) = [text for text in caplog.messages if "`max_sequence_length`" in text]
    assert "distinct texts have more than the 4 tokens" in told


@pytest.mark.parametrize(
    ("output", "message"),
    [("folder", "is a folder"), ("file/results.json", "cannot be written: .*(exists|directory)")],
)
def test_results_that_cannot_be_written_are_found_before_the_work(
    data_dir, tmp_path, output, message
):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    config = make_config("./no model", data_dir / "test.jsonl", output=str(tmp_path / output))
    with pytest.raises(OutputError, match=message):
        evaluate(config)


def test_results_that_cannot_be_written_after_all_are_printed(
    checkpoint, data_dir, tmp_path, monkeypatch, capsys
):
    def fail(*_):
        raise OutputError("no space left")

    monkeypatch.setattr(report, "write_json", fail)
    output = str(tmp_path / "results.json")
    with pytest.raises(OutputError, match="no space left"):
        evaluate_command(make_config(checkpoint, data_dir / "test.jsonl", output=output))
    assert "matching_r1" in capsys.readouterr().out


def make_dialogues():
    """Session to turns; the first letter of a session's name says what its turns are.

    a: x speaks twice, then y. b: x speaks three times. c: between two turns of x, y says what has
    no token: prepare_data leaves that out, and parts the two turns of x also where it joins.
    """
    turns = {"a": "xxy", "b": "xxx", "c": "xyxy"}
    dialogues = {}
    for number in range(150):
        name = f"{'abc'[number % 3]}{number}"
        roles = turns[name[0]]
        dialogues[name] = [(role, f"s{number} t{place}") for place, role in enumerate(roles)]
        if name[0] == "c":
            dialogues[name][1] = ("y", "\ufffd")
    return dialogues


@pytest.fixture
def seen(monkeypatch):
    """The numbers of turns of the sessions that samples are drawn from, by the kind of session."""
    turns = []
    make_samples = response_selection.make_samples

    def spy(sessions, **settings):
        found = collections.defaultdict(set)
        for session in sessions:
            found[session.session_id[0]].add(len(session.turns))
        turns.append(dict(sorted(found.items())))
        return make_samples(sessions, **settings)

    monkeypatch.setattr(response_selection, "make_samples", spy)
    return turns


@pytest.mark.parametrize(
    ("join", "expected"),
    [(True, {"a": {2}, "c": {3}}), (False, {"a": {3}, "b": {3}, "c": {3}})],
    ids=["joined", "apart"],
)
def test_responses_are_selected_among_the_turns_that_training_sees(
    checkpoint, tmp_path, seen, join, expected
):
    fractions = {"dev_fraction": 0.3, "test_fraction": 0.3}
    manifest = run(
        tmp_path,
        json_lines(make_dialogues()),
        format="jsonl",
        join_consecutive=join,
        **fractions,
    )
    for split in ("dev", "test"):
        found = manifest.splits[split]
        assert found.sessions >= 20
        assert (found.utterances == 3 * found.sessions) != join
    training = build_training(
        make_options(
            data_dir=str(tmp_path / "data"),
            run_dir="unused",
            encoder_size="tiny",
            steps=1,
            global_batch_size=4,
            negatives=3,
            dev_samples=20,
        )
    )
    DevEvaluation(training.setup, training.model)
    evaluate(make_config(checkpoint, tmp_path / "data/test.jsonl"))
    assert seen == [expected, expected]


@pytest.mark.parametrize(
    ("dev_samples", "reason"),
    [(9, "`dev_samples`=9: too few to rank a response among 10"), (10, "")],
)
def test_too_few_samples_are_not_blamed_on_the_dev_sessions(data_dir, caplog, dev_samples, reason):
    options = make_options(
        data_dir=str(data_dir), run_dir="unused", encoder_size="tiny", dev_samples=dev_samples,
        steps=1, global_batch_size=4, negatives=3,
    )  # fmt: skip
    training = build_training(options)
    DevEvaluation(training.setup, training.model)
    assert "too few dev sessions" not in caplog.text
    assert (f"{reason}; no response selection" in caplog.text) == bool(reason)


def test_samples_say_who_speaks(data_dir):
    path = data_dir / "test.jsonl"
    settings = {"candidates": 3, "context_turns": 2, "max_samples": 0, "seed": 0}
    sessions = response_selection.read_sessions(path)
    samples = response_selection.make_samples(sessions, **settings)
    assert "role" not in repr(samples)  # which is what the results' fingerprint is of
    turns = {turn for session in sessions for turn in session.turns}
    assert samples
    for sample in samples:
        assert len(sample.roles) == len(sample.context)
        said = [*zip(sample.roles, sample.context), (sample.responder, sample.candidates[0])]
        assert all(Utterance(*each) in turns for each in said)


@pytest.fixture
def drawn(monkeypatch):
    """The lists of samples that the jobs draw, in the order of the jobs."""
    found = []

    def spy(*args, **settings):
        found.append(make_samples(*args, **settings))
        return found[-1]

    make_samples = response_selection.make_samples
    for module in (response_selection, changes_job):
        monkeypatch.setattr(module, "make_samples", spy)
    return found


def test_pieces_of_a_dialogue_are_no_negatives_of_each_other_in_any_job(
    checkpoint, tmp_path, drawn
):
    """As prepare_data holds out groups of candidates: a session for each response."""
    lines = []
    for number in range(10):
        turns = [{"role": "xy"[turn % 2], "text": f"s{number} t{turn}"} for turn in range(5)]
        lines += [
            {"session_id": f"{number}:{end}", "turns": turns[:end], "dialogue": f"d{number}"}
            for end in range(2, 6)
        ]
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {"candidates": 8, "max_samples": 0, "seed": 0}
    evaluate(make_config(checkpoint, path, **settings))
    changes_job.read_held_out(tmp_path, None, 20, context_turns=3, **settings)
    assert len(drawn) == 2
    said = {json.dumps([turn["text"] for turn in line["turns"][-4:]]) for line in lines}
    for samples in drawn:
        assert {json.dumps([*each.context, each.candidates[0]]) for each in samples} == said
        for sample in samples:
            own, *negatives = (text.split()[0] for text in sample.candidates)
            assert own not in negatives


def test_turns_of_a_file_of_other_origin_are_joined_if_told_to(
    checkpoint, tmp_path, seen, monkeypatch
):
    path = tmp_path / "sessions.jsonl"
    path.write_text(json_lines(make_dialogues()))
    warnings = []
    monkeypatch.setattr(
        "dcse_tf.evaluation.job.logging.warning", lambda *args: warnings.append(args)
    )
    for join in (False, True):
        evaluate(make_config(checkpoint, path, join_consecutive=join))
        told = [args for args in warnings if "consecutive turns" in args[0]]
        assert len(told) == 1  # of the first, which says what it did
    assert "`join_consecutive`" in warnings[0][0]
    assert seen == [{"a": {3}, "b": {3}, "c": {4}}, {"a": {2}, "c": {4}}]


def test_grouped_candidates_are_scored_both_ways_and_compared(checkpoint, tmp_path):
    """Lines of two and of three candidates; contexts of which only the last turn is used."""
    lines = []
    for number in range(6):
        context = f"s{number} t0\ts{number} t1"
        texts = [f"s{number} t2", *(f"w{n} s{n} w{number}" for n in range(1 + number % 2))]
        lines += [f"{int(n == 0)}\t{context}\t{text}" for n, text in enumerate(texts)]
    path = tmp_path / "test.txt"
    path.write_text("\n".join(lines) + "\n")
    found, settings = [], []
    for turns in (0, 1):
        output = tmp_path / f"{turns}.json"
        evaluate(
            EvaluateOptions(
                model=str(checkpoint),
                candidates_file=(str(path),),
                candidates_format="ubuntu",
                candidates_turns=turns,
                output=str(output),
            )
        )
        _, results, used = report.read_json(output)
        found.append(results)
        settings.append(used)
    assert [result.task for result in found[0]] == ["candidates_matching", "candidates_cosine"]
    for result, way in zip(found[0], ("matching", "cosine"), strict=True):
        names = [f"{way}_{name}" for name in ("r1", "r2", "r1_of_2", "map", "mrr")]
        assert [name for name in result.scores if name.startswith(way)] == names
        assert set(result.intervals) == set(names)
        assert result.scores["groups_of_2"] == result.scores["groups_of_3"] == 3
        assert len(result.items[f"{way}_r1"]) == 3  # of those of three
    assert len(compare_results(*found)) == 10
    assert describe_differences(*settings) == [
        "`candidates_turns` is not the same: first 0, second 1"
    ]
