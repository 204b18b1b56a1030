"""What changed from one encoder to another: figures by hand, the job, the end of a training."""

import json
import shutil

import numpy as np
import pytest
from test_merge import make_checkpoint

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
