"""The share of a merge that is chosen: the rule on curves by hand, and the job on a tiny pair."""

import json
import shutil

import numpy as np
import pytest
from test_merge import make_checkpoint
from tiny_bert import DIM

from dcse_tf.arguments import parse_flags
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.cli import commands
from dcse_tf.errors import InputError
from dcse_tf.evaluation.job import evaluate
from dcse_tf.evaluation.metrics import Evaluation
from dcse_tf.evaluation.options import EvaluateOptions
from dcse_tf.evaluation.response_selection import Sample
from dcse_tf.evaluation.retrieval import Query, RetrievalSet, write_retrieval_set
from dcse_tf.matching.head_files import list_head_maps, write_heads
from dcse_tf.matching.projection import build_heads
from dcse_tf.training.merge import merge
from dcse_tf.training.merge_options import AUTO, MergeOptions
from dcse_tf.training.merge_share import Judge, Measured, compare_shares, pick_share

RISING = {0.25: 2.0, 0.5: 4.2, 0.75: 5.0, 1.0: 4.0}


@pytest.mark.parametrize(
    ("gains", "keep", "share"),
    [
        (RISING, 0.8, 0.5),  # 4.2 of 5.0 are 84%, 2.0 are 40%
        (RISING, 0.85, 0.75),
        (RISING, 1.0, 0.75),
        (RISING, 0.4, 0.25),  # exactly 40%
        (RISING, 0.0, 0.25),
        ({0.1: -1.0, 0.25: 0.0, 0.5: 3.0}, 0.0, 0.5),  # what gains nothing is never chosen
        ({0.25: 2.0}, 0.8, 0.25),  # the others are refused by a guard
        ({0.5: 0.0, 1.0: -2.0}, 0.8, 0.0),
        ({}, 0.8, 0.0),
    ],
)
def test_the_smallest_share_with_most_of_the_gain(gains, keep, share):
    assert pick_share(gains, keep) == share


SENTENCES = [f"text {number}" for number in range(14)]


def make_measured(mrrs, maps, angle=0.0):
    """What would be measured of an encoder whose sentences lie on a circle, turned by an angle."""
    items = {"cosine_mrr": np.array(mrrs), "cosine_r1": np.array(mrrs)}
    scores = {name: float(np.mean(values)) for name, values in items.items()}
    places = np.arange(len(SENTENCES)) ** 1.5 / 10 + angle
    embeddings = np.stack([np.cos(places), np.sin(places)], axis=1)
    return Measured(Evaluation(scores, items), maps, embeddings)


@pytest.fixture
def judge():
    samples = [Sample([SENTENCES[2 * n]], [SENTENCES[2 * n + 1], "other"]) for n in range(7)]
    guard = RetrievalSet(["a", "b", "c"], [Query(0, np.array([1]), np.array([2]))], ["x", "x", "y"])
    judge = Judge(samples, {"sets/guard.txt": guard}, 0)
    judge.sentences = SENTENCES
    return judge


def test_the_table_is_the_start_and_the_shares_beside_it(judge, caplog):
    start = make_measured([50.0, 50.0, 20.0, 40.0], (60.0,))
    shares = {
        0.5: make_measured([60.0, 52.0, 20.0, 40.0], (59.8,), 0.5),
        1.0: make_measured([100.0, 50.0, 50.0, 40.0], (59.6,), 1.0),
    }
    choice = compare_shares(judge, start, start, shares, 0.8, 0.3)
    assert choice.share == 0.5  # 3 points of MRR; of the other, 20 points, the guard fell by 0.4
    assert "a guard refuses 1" in choice.reason
    assert [row.name for row in choice.rows] == ["0", "0.5", "1"]
    assert [row.passes for row in choice.rows] == [True, True, False]
    assert [row.gain.value if row.gain else None for row in choice.rows] == [None, 3.0, 20.0]
    # Turned as a whole: the neighbours are the same, the raw cosine is that of the angle.
    assert [row.kept for row in choice.rows] == [100.0] * 3
    assert [row.cosine for row in choice.rows] == pytest.approx([1.0, np.cos(0.5), np.cos(1.0)])
    head, _, *lines = choice.format_table().splitlines()
    assert head.split("  ")[-1] == "MAP sets/guard.txt"
    assert [line.split()[-1] for line in lines] == ["60.00", "chosen", "guard"]

    choice = compare_shares(judge, start, start, {1.0: shares[1.0]}, 0.8, 0.3)
    assert choice.share == 0.0
    assert choice.reason.startswith("no share beats the start in response selection; a guard refu")
    assert choice.reason in caplog.text


def test_gains_are_over_the_centred_start_and_guards_under_the_start_as_it_is(judge):
    start, base = make_measured([40.0, 40.0], (60.0,)), make_measured([48.0, 48.0], (50.0,))
    shares = {0.5: make_measured([50.0, 50.0], (59.9,)), 1.0: make_measured([60.0, 60.0], (50.0,))}
    choice = compare_shares(judge, start, base, shares, 0.8, 0.3)
    assert choice.share == 0.5
    assert [row.name for row in choice.rows] == ["start", "0", "0.5", "1"]
    gains = [row.gain.value if row.gain else None for row in choice.rows]
    assert gains == [-8.0, None, 2.0, 12.0]


@pytest.fixture(scope="module")
def pair(data_dir, tmp_path_factory):
    folder, vocabulary = tmp_path_factory.mktemp("pair"), read_vocabulary(data_dir / "vocabulary")
    return [make_checkpoint(folder / f"seed{seed}", vocabulary, seed) for seed in (1, 2)]


def make_arguments(pair, data_dir, output, **settings):
    values = {
        "start": str(pair[0]),
        "trained": str(pair[1]),
        "share": AUTO,
        "shares": ("0.5", "1"),
        "data_dir": str(data_dir),
        "candidates": 4,
        "output_dir": str(output),
    }
    return MergeOptions(**{**values, **settings})


def test_the_job_chooses_writes_the_table_and_prints_it(pair, data_dir, tmp_path, capsys):
    guard = tmp_path / "select.txt"
    sentences = ["where is my parcel", "my parcel is late", "the cat sleeps", "cats hide"]
    queries = [Query(0, np.array([1]), np.array([2, 3])), Query(2, np.array([3]), np.array([0, 1]))]
    write_retrieval_set(guard, RetrievalSet(sentences, queries, ["a", "a", "b", "b"]))
    flags = [f"--start={pair[0]}", f"--trained={pair[1]}", "--share=auto", "--shares=0.5,1"]
    flags += [f"--data_dir={data_dir}", "--candidates=4", f"--output_dir={tmp_path / 'merged'}"]
    flags += ["--center", f"--guard={guard}"]
    commands.merge(parse_flags(MergeOptions, "merge", flags))
    found = json.loads((tmp_path / "merged/shares.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["start", "0", "0.5", "1"]
    assert all(len(row["maps"]) == 1 for row in found["rows"])
    assert json.loads((tmp_path / "merged/merge.json").read_text())["share"] == found["share"]
    printed = capsys.readouterr().out
    assert found["reason"] in printed
    assert "gain in MRR" in printed
    assert f"the encoder is in {tmp_path / 'merged'}" in printed


def test_a_start_that_nothing_beats_stays(pair, data_dir, tmp_path):
    """The same encoder twice: no gain."""
    options = make_arguments([pair[0], pair[0]], data_dir, tmp_path / "merged")
    merged = merge(options)
    assert merged.share == 0.0
    assert merged.choice.rows[0].kept == merged.choice.rows[2].kept == 100.0
    weights = [folder / "model.safetensors" for folder in (pair[0], merged.folder)]
    assert weights[0].read_bytes()[-4096:] == weights[1].read_bytes()[-4096:]


def test_too_few_dev_sessions_are_one_error(pair, data_dir, tmp_path):
    options = make_arguments(pair, data_dir, tmp_path / "merged", candidates=500)
    with pytest.raises(InputError, match=r"dev\.jsonl: too few sessions to choose by: expe"):
        merge(options)


def test_responses_are_ranked_behind_the_heads_of_the_trained_encoder(pair, data_dir, tmp_path):
    """Centred or not: what the mean contributes is added to the heads."""
    trained = tmp_path / "trained"
    shutil.copytree(pair[1], trained)
    write_heads(trained, list_head_maps(build_heads(DIM, 8, 5.0, seed=1)))
    mrr = {}
    for center in (False, True):
        arguments = make_arguments((pair[0], trained), data_dir, tmp_path / f"{center}")
        merged = merge(arguments.replace(center=center))
        # Share 0 has the heads too, so that the gain is that of the weights.
        assert [row.name for row in merged.choice.rows] == ["start", "0", "0.5", "1"]
        mrr[center] = [row.mrr for row in merged.choice.rows if row.name == "1"]
    settings = EvaluateOptions(
        model=str(trained), response_selection=(str(data_dir / "dev.jsonl"),), candidates=4
    )
    scores = {name: value for found in evaluate(settings) for name, value in found.scores.items()}
    assert mrr[False] == pytest.approx([scores["projected_mrr"]])
    assert mrr[True] == pytest.approx(mrr[False])
    assert scores["projected_mrr"] != pytest.approx(scores["cosine_mrr"], abs=0.01)
