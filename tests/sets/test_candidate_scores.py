"""A re-ranker's scores of grouped candidates: what is written, resumed and refused."""

import json

import numpy as np
import pytest
from tiny_reranker import save_reranker

from dcse_tf.data.formats import FORMATS
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines
from dcse_tf.options import OptionError
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.sets import candidate_scores as job
from dcse_tf.sets.options import ScoreCandidatesOptions

TEXTS = ["where is my parcel", "it left today", "thanks", "i want a refund", "ok", "the blue cup"]


def make_groups(count):
    return [
        {
            "id": f"{number}:1",
            "dialogue": str(number),
            "context": [{"role": "a", "text": TEXTS[number % 6]}, {"role": "b", "text": "ok"}],
            "responder": "a",
            "candidates": [TEXTS[(number + place) % 6] for place in range(1, 3 + number % 2)],
            "labels": [0, 1, 0][: 2 + number % 2],
        }
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_reranker(tmp_path_factory.mktemp("runs") / "run", speakers=True)


@pytest.fixture(scope="module")
def reranker(run):
    return Reranker.load(run)


def options(folder, run, groups=7, **changes):
    path = folder / "groups.jsonl"
    path.write_text("".join(json.dumps(group) + "\n" for group in make_groups(groups)))
    values = {"input": str(path), "output": str(folder / "scored.jsonl"), "model": str(run)}
    return ScoreCandidatesOptions(**{**values, "block_size": 3, **changes})


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_candidate_has_the_score_of_the_re_ranker(tmp_path, run, reranker):
    scored = job.score_candidates(options(tmp_path, run), reranker)
    found = read_lines(tmp_path / "scored.jsonl")
    groups = make_groups(7)
    assert [group["id"] for group in found] == [group["id"] for group in groups]
    best = 0
    for before, after in zip(groups, found, strict=True):
        true, *others = before["candidates"][1::-1] + before["candidates"][2:]
        assert after["candidates"] == [true, *others]
        assert after["labels"] == [1] + [0] * len(others)
        same = ("id", "dialogue", "context", "responder")
        assert [after[key] for key in same] == [before[key] for key in same]
        (alone,) = reranker.score(
            [[turn["text"] for turn in before["context"]]], [after["candidates"]],
            [["a", "b"]], ["a"], show_progress=False,
        )  # fmt: skip
        np.testing.assert_allclose(after["scores"], alone, rtol=1e-4, atol=1e-5)
        best += alone[0] > alone[1:].max()
    assert (scored.groups, scored.candidates, scored.bad_lines) == (7, 17, 0)
    assert scored.first == pytest.approx(best / 7)
    sessions = FORMATS["candidates"].read(tmp_path / "scored.jsonl", BadLines(0))
    assert [list(given.scores) for *_, given in sessions] == [group["scores"] for group in found]


def test_a_job_that_was_stopped_goes_on_where_it_was(tmp_path, run, reranker, monkeypatch):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    job.score_candidates(options(whole, run), reranker)
    calls, write = [], job._write_block

    def stop_at_the_third(reranker, block, path):
        calls.append(block[0].id)
        if len(calls) == 3:
            raise KeyboardInterrupt
        write(reranker, block, path)

    monkeypatch.setattr(job, "_write_block", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        job.score_candidates(options(cut, run), reranker)
    assert not (cut / "scored.jsonl").exists()
    with pytest.raises(InputError, match="begun with other settings or files: `batch_tokens`: 99"):
        job.score_candidates(options(cut, run, batch_tokens=99), reranker)
    job.score_candidates(options(cut, run), reranker)
    assert calls == ["0:1", "3:1", "6:1", "6:1"]
    assert (cut / "scored.jsonl").read_bytes() == (whole / "scored.jsonl").read_bytes()
    assert sorted(path.name for path in cut.iterdir()) == ["groups.jsonl", "scored.jsonl"]


def test_a_re_ranker_that_has_diverged_scores_nothing(tmp_path, run, reranker, monkeypatch):
    def diverge(contexts, candidates, *speakers, show_progress):
        return [np.full(len(texts), np.nan, np.float32) for texts in candidates]

    monkeypatch.setattr(reranker, "score", diverge)
    with pytest.raises(InputError, match="not a finite number: the re-ranker has diverged"):
        job.score_candidates(options(tmp_path, run), reranker)
    assert not (tmp_path / "scored.jsonl").exists()


def test_what_cannot_be_scored_is_refused(tmp_path, run, reranker):
    config = options(tmp_path, run)
    with open(config.input, "a") as file:
        file.write("{}\n")
    with pytest.raises(InputError, match=r"groups.jsonl:8: expected \"id\" and \"responder\""):
        job.score_candidates(config, reranker)
    assert job.score_candidates(config.replace(max_bad_lines=1), reranker).bad_lines == 1
    with pytest.raises(FileExistsError, match=r"scored\.jsonl already exists"):
        job.score_candidates(config, reranker)
    (tmp_path / "none.jsonl").touch()
    none = config.replace(input=str(tmp_path / "none.jsonl"), overwrite=True)
    with pytest.raises(InputError, match="no group of candidates"):
        job.score_candidates(none, reranker)
    with pytest.raises(OptionError, match="`format`=jsonl: has no candidates; expected one of can"):
        config.replace(format="jsonl")
