"""What changed from one encoder to another: figures by hand, the job, the end of a training."""

import json
import shutil
import types

import numpy as np
import pytest
from test_merge import make_checkpoint
from train_options import make_options

from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.cli import commands
from dcse_tf.data.manifest import read_manifest
from dcse_tf.errors import InputError
from dcse_tf.evaluation.metrics import Evaluation
from dcse_tf.evaluation.options import ChangesOptions
from dcse_tf.inspecting import changes
from dcse_tf.inspecting.changes import (
    compare_embeddings,
    compare_scores,
    describe,
    find_neighbours,
    format_markdown,
    format_text,
)
from dcse_tf.inspecting.changes_job import draw_sentences, read_held_out, show_changes
from dcse_tf.training import changes as at_the_end
from dcse_tf.training import job
from dcse_tf.training.best_encoder import read_kept
from dcse_tf.training.changes import ShowChanges

TEXTS = [f"text {number}" for number in range(24)]


def on_a_circle(degrees):
    places = np.radians(np.asarray(degrees, np.float64))
    return np.stack([np.cos(places), np.sin(places)], axis=1)


# Two groups of twelve on opposite sides, one degree apart: the ten nearest are of one's own group.
GROUPS = on_a_circle([*range(12), *range(180, 192)])


def test_an_encoder_and_itself_have_changed_in_nothing():
    found = compare_embeddings(TEXTS, GROUPS, GROUPS)
    assert (found.kept, found.moved, found.scores) == (100.0, (), ())
    assert found.cosine == pytest.approx(1.0)
    assert found.mean_cosine[0] == found.mean_cosine[1]
    assert found.hub[0] == found.hub[1]
    assert found.hub_sentence[0] == found.hub_sentence[1]


def test_a_rotation_and_a_scale_change_nothing_but_the_raw_cosine():
    turn = on_a_circle([60, 150])  # the axes, turned by 60 degrees
    found = compare_embeddings(TEXTS, GROUPS, 3.0 * GROUPS @ turn)
    assert (found.kept, found.moved) == (100.0, ())
    assert found.cosine == pytest.approx(0.5)  # cos 60
    assert found.mean_cosine[0] == pytest.approx(found.mean_cosine[1])


def test_who_moves_to_the_other_group_loses_all_neighbours():
    """Texts 0 and 12 change places."""
    swapped = GROUPS[[12, *range(1, 12), 0, *range(13, 24)]]
    found = compare_embeddings(TEXTS, GROUPS, swapped)
    assert [(moved.sentence, moved.kept) for moved in found.moved[:2]] == [
        ("text 0", 0),
        ("text 12", 0),
    ]
    assert (found.moved[0].before, found.moved[0].after) == ("text 1", "text 13")
    # Of a group's twelve each has ten of the eleven others and leaves out the farthest: texts 1 to
    # 5 leave out 11 and so lose 0, one of ten; 6 to 11 leave out 0 and lose none. So too the other
    # group. The two themselves lose all.
    assert found.kept == pytest.approx(100 * (2 * 0 + 10 * 9 + 12 * 10) / (24 * 10))
    # 22 rows stayed (cosine 1), two went to the other side (-1).
    assert found.cosine == pytest.approx((22 - 2) / 24)


def test_mean_cosine_and_hub_by_hand():
    """13 texts that point one way, but for the first, at a right angle to the others."""
    texts = TEXTS[:13]
    embeddings = on_a_circle([90, *[0] * 12])
    found = compare_embeddings(texts, GROUPS[:13], embeddings)
    # Of 13 x 12 pairs, 24 have a cosine of 0 and the others of 1.
    assert found.mean_cosine[1] == pytest.approx((156 - 24) / 156)
    # Equals are ranked by their row: text 1 is among the ten of the other twelve.
    assert (found.hub_sentence[1], found.hub[1]) == ("text 1", pytest.approx(100 * 12 / 13))
    assert found.chance_kept == pytest.approx(100 * 10 / 12)


def test_neighbours_do_not_depend_on_how_many_are_asked_for_at_a_time(monkeypatch):
    drawn = np.random.default_rng(0).normal(size=(40, 5))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    whole = find_neighbours(drawn)
    cosines = drawn @ drawn.T
    np.fill_diagonal(cosines, -2.0)
    np.testing.assert_array_equal(whole, np.argsort(-cosines, axis=1)[:, :10])
    monkeypatch.setattr(changes, "_QUERIES", 7)
    np.testing.assert_array_equal(find_neighbours(drawn), whole)


def test_the_order_of_the_sentences_does_not_matter():
    rng = np.random.default_rng(1)
    before, after = rng.normal(size=(24, 8)), rng.normal(size=(24, 6))
    order = rng.permutation(24)
    first = compare_embeddings(TEXTS, before, after)
    second = compare_embeddings([TEXTS[i] for i in order], before[order], after[order])
    assert first.kept == pytest.approx(second.kept)
    assert first.hub == second.hub
    assert first.moved == second.moved
    assert first.cosine is None  # 8 and 6 dimensions


def test_too_few_sentences_are_one_error():
    with pytest.raises(InputError, match="only 11 different sentences to compare; expected 12"):
        compare_embeddings(TEXTS[:11], GROUPS[:11], GROUPS[:11])


def make_evaluation(hits):
    items = {"cosine_r1": 100.0 * np.array(hits), "cosine_mrr": 100.0 * np.array(hits)}
    return Evaluation({name: float(np.mean(values)) for name, values in items.items()}, items)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ([0] * 20 + [1] * 20, [1] * 40, "response selection (R@1) rose 50.0 -> 100.0 (p 0.0004)"),
        ([1] * 40, [0] * 20 + [1] * 20, "response selection (R@1) fell 100.0 -> 50.0 (p 0.0004)"),
        (
            [0, 1] * 20,
            [1, 0] * 20,
            "no significant change in response selection (R@1), 50.0 -> 50.0 (p",
        ),
    ],
)
def test_the_verdict_says_what_the_figures_carry(before, after, words):
    scores = compare_scores(make_evaluation(before), make_evaluation(after))
    verdict = describe(compare_embeddings(TEXTS, GROUPS, GROUPS, scores))
    assert verdict.startswith(words)
    assert "; 100% of the 10 nearest neighbours kept (43% by chance); " in verdict
    assert "response selection" not in describe(compare_embeddings(TEXTS, GROUPS, GROUPS))


def test_the_page_holds_any_text():
    texts = [f"{text} | a\nb" for text in TEXTS]
    found = compare_embeddings(texts, GROUPS, GROUPS[::-1].copy())
    page = format_markdown(found, "Title", ["A note."])
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") == 5 for line in rows)
    assert "A note." in page
    assert "text 3 | a\nb" not in format_text(found)


def test_sentences_are_drawn_by_their_text():
    said = ["Hello there", "parcel", "HELLO there", "thanks", "bye", "parcel"]
    found = draw_sentences(said, 10, 0)
    assert sorted(found) == ["Hello there", "bye", "parcel", "thanks"]
    assert draw_sentences(said[::-1], 10, 0)[:2] in (found[:2], ["HELLO there", *found[1:2]])
    assert draw_sentences(said, 2, 0) == found[:2]
    assert draw_sentences(said, 10, 1) != found


@pytest.fixture(scope="module")
def start(data_dir, tmp_path_factory):
    vocabulary = read_vocabulary(data_dir / "vocabulary")
    return make_checkpoint(tmp_path_factory.mktemp("start") / "start", vocabulary, 1)


def make_job(before, after, data_dir, **settings):
    folders = {"before": str(before), "after": str(after), "data_dir": str(data_dir)}
    return ChangesOptions(**folders, candidates=4, **settings)


def test_the_job_compares_an_encoder_with_itself(start, data_dir, tmp_path, capsys):
    commands.changes(make_job(start, start, data_dir, output_dir=str(tmp_path / "out")))
    printed = capsys.readouterr().out
    assert "100% of the 10 nearest neighbours kept" in printed
    assert "the sentences that moved most" not in printed
    content = json.loads((tmp_path / "out/changes.json").read_text())
    assert (content["kept"], content["moved"]) == (100.0, [])
    assert [score["name"] for score in content["scores"]] == ["cosine_r1", "cosine_mrr"]
    assert all(score["difference"]["value"] == 0.0 for score in content["scores"])
    page = (tmp_path / "out/changes.md").read_text()
    assert page.startswith(f"# From {start} to {start}\n\n{content['verdict']}.")
    assert "sentences of the dev dialogues" in page


@pytest.mark.parametrize("option", ["before", "after"])
def test_an_encoder_that_is_not_there_is_named_by_its_option(start, data_dir, tmp_path, option):
    options = make_job(start, start, data_dir).replace(**{option: str(tmp_path / "none")})
    with pytest.raises(InputError, match=f"`{option}`={tmp_path / 'none'}"):
        show_changes(options)


def test_an_empty_dev_split_gives_way_to_the_train_split(start, data_dir, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(data_dir, folder)
    (folder / "dev.jsonl").write_text("")
    found = show_changes(make_job(start, start, folder, sentences=30))
    assert (found.sentences, found.scores) == (30, ())
    held_out = read_held_out(
        folder,
        read_manifest(folder),
        30,
        candidates=4,
        context_turns=3,
        max_samples=0,
        seed=0,
    )
    assert "30 sentences of the train dialogues" in held_out.notes[0]
    assert held_out.notes[1].startswith("No response selection: too few dev sessions")
    assert any(text.startswith("where is my parcel") for text in held_out.sentences)


def run_training(data_dir, run_dir, start, **settings):
    values = {
        "task": "simcse",
        "encoder": str(start),
        "steps": 2,
        "global_batch_size": 8,
        "learning_rate": 1e-2,
        "dev_samples": 12,
        "eval_every": 2,
        "projector_sentences": 0,
        "changes_samples": 40,
    }
    options = {"data_dir": str(data_dir), "run_dir": str(run_dir), **values, **settings}
    return job.train(make_options(**options))


@pytest.fixture
def said(monkeypatch):
    """What the check at the end of a training logs, and how often it measures."""
    lines, measured = [], []
    monkeypatch.setattr(
        at_the_end.logging, "info", lambda text, *values: lines.append(text % values)
    )
    measure = at_the_end.measure_changes
    monkeypatch.setattr(
        at_the_end, "measure_changes", lambda *args: measured.append(1) or measure(*args)
    )
    return lines, measured


@pytest.mark.slow
def test_a_training_ends_with_what_it_changed_once(data_dir, tmp_path, start, said, monkeypatch):
    lines, measured = said
    # Whichever step is best: of two evaluations the second is kept.
    monkeypatch.setattr("dcse_tf.training.best_encoder.BestEncoder._is_better", lambda *_: True)
    hooks = []
    monkeypatch.setattr(
        job, "ShowChanges", lambda setup: hooks.append(ShowChanges(setup)) or hooks[-1]
    )
    run = tmp_path / "run"
    heads = {"task": "dialogue_cse", "negatives": 3, "cosine_weight": 0.5, "projection_dim": 8}
    run_training(data_dir, run, start, **heads)
    content = json.loads((run / "changes.json").read_text())
    assert content["sentences"] == 40
    assert content["kept"] < 100.0
    assert len(content["moved"]) == changes._MOVED
    assert any(line.startswith("what the training changed:\n") for line in lines)
    names = ["projected_r1", "projected_mrr", "cosine_r1", "cosine_mrr"]
    assert [score["name"] for score in content["scores"]] == names
    # One figure for a score: that by which the step was kept, also behind the heads.
    kept = read_kept(run / "encoder").scores
    for score in content["scores"]:
        assert score["after"] == pytest.approx(kept[f"dev/{score['name']}"], abs=1e-9)
    assert "R@1 behind the projection heads, %" in (run / "changes.md").read_text()
    assert "(R@1) behind the projection heads" in content["verdict"]
    assert content["verdict"].count("response selection (R@1)") == 2
    assert any(
        note.startswith("Behind the projection heads: before, by") for note in content["notes"]
    )
    assert not any("Longest sentence" in note for note in content["notes"])
    assert content["verdict"] in (run / "changes.md").read_text()
    before = (run / "changes.json").stat().st_mtime_ns

    run_training(data_dir, run, start, **heads)  # finished: it is there already
    assert (len(measured), (run / "changes.json").stat().st_mtime_ns) == (1, before)
    for written in ("", "{"):  # as if it had been killed before, or the disk had been full
        (run / "changes.json").write_text(written)
        hooks[-1].end(2)
        assert json.loads((run / "changes.json").read_text()) == content
    shutil.copyfile(start / "model.safetensors", run / "encoder/model.safetensors")
    hooks[-1].end(2)  # another encoder, here the start
    assert len(measured) == 4
    assert json.loads((run / "changes.json").read_text())["kept"] == 100.0


def _setup_of(data_dir, run_dir, start):
    """What the report at the end of a training in `run_training` reads."""
    settings = {"encoder": str(start), "dev_samples": 12, "changes_samples": 40, "task": "simcse"}
    return types.SimpleNamespace(
        options=make_options(data_dir=str(data_dir), run_dir=str(run_dir), **settings),
        data_dir=data_dir,
        manifest=read_manifest(data_dir),
        vocabulary=read_vocabulary(data_dir / "vocabulary"),
        source=start,
    )


@pytest.mark.parametrize(("own", "prefix"), [("", "where: "), ("where: ", "")])
def test_the_start_reads_the_prefix_of_the_corpus(
    data_dir, tmp_path, start, monkeypatch, own, prefix
):
    """Otherwise the prefix alone would count as a change."""
    corpus, run = tmp_path / "data", tmp_path / "run"
    vocabulary = read_vocabulary(data_dir / "vocabulary").with_prefix(prefix)
    shutil.copytree(data_dir, corpus)
    start = shutil.copytree(start, tmp_path / "start")
    vocabulary.with_prefix(own).write(start)
    vocabulary.write(corpus / "vocabulary")
    content = json.loads((corpus / "manifest.json").read_text())
    content["tokenizer_fingerprint"] = vocabulary.fingerprint()
    (corpus / "manifest.json").write_text(json.dumps(content))
    run_training(corpus, run, start, learning_rate=1e-9, steps=1, dev_samples=0)
    monkeypatch.setattr(ShowChanges, "_why_not", lambda self: "")
    ShowChanges(_setup_of(corpus, run, start)).end(1)
    found = json.loads((run / "changes.json").read_text())
    assert found["cosine"] == pytest.approx(1.0, abs=1e-4)
    assert not any("Put before" in note for note in found["notes"])


def test_too_few_dev_sessions_choose_no_step(data_dir, tmp_path, start, monkeypatch):
    """Then the report does not say that they did."""
    monkeypatch.setattr(at_the_end, "CANDIDATES", 1000)
    run_training(data_dir, tmp_path / "run", start, steps=1, dev_samples=0)
    ShowChanges(_setup_of(data_dir, tmp_path / "run", start))._show()
    notes = " ".join(json.loads((tmp_path / "run/changes.json").read_text())["notes"])
    assert "No response selection: too few dev sessions" in notes
    assert "chosen by its scores" not in notes
    assert notes.endswith("The test sessions were not used.")


@pytest.mark.parametrize(
    ("settings", "source", "reason"),
    [
        ({}, False, "the training started from random weights"),
        ({"dev_samples": 0}, True, "`dev_samples`=0 asks for nothing to be measured"),
        ({}, True, "the run kept the encoder that it started from"),
        ({"task": "response_selection"}, True, "a re-ranker gives no embeddings"),
        ({"changes_samples": 0}, True, ""),
    ],
)
def test_a_training_says_why_it_does_not_show_what_changed(
    tmp_path, said, settings, source, reason
):
    kept = {"step": 0, "metric": "dev/map", "score": 1.0, "last_step": 7, "last_score": 0.5}
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder/training.json").write_text(json.dumps({**kept, "files": {}}))
    options = make_options(data_dir="d", run_dir=str(tmp_path), encoder="start", **settings)
    setup = types.SimpleNamespace(options=options, source=tmp_path if source else None)
    at_the_end.ShowChanges(setup).end(7)
    lines, measured = said
    assert lines == ([f"what the training changed is not shown: {reason}"] if reason else [])
    assert measured == []
    assert not (tmp_path / "changes.json").exists()
