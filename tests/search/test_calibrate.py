"""Calibration: the threshold by hand and by its guarantee, the job, and who abstains by it."""

import json
import types

import numpy as np
import pytest
from load_once import load_once  # noqa: F401
from tiny_bert import build_backbone, save_checkpoint
from tiny_reranker import save_reranker
from written_dialogues import json_lines, make_dialogues

import dcse_tf
from dcse_tf.cli.commands import main
from dcse_tf.errors import InputError
from dcse_tf.evaluation.response_selection import make_samples, read_dialogues
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.search import calibrate as job
from dcse_tf.search.calibration import Calibration


def test_a_threshold_is_a_quantile_of_wrong_scores():
    """Of 9 scores, rate 20: the ceil(10 x 0.8) = 8th; rate 5: a 10th, which there is not."""
    wrong = [float(score) for score in range(1, 10)]
    rates = {70.0: 3.0, 20.0: 8.0, 19.0: 9.0, 5.0: np.inf, 90.0: 1.0, 95.0: 1.0, 100.0: -np.inf}
    assert {rate: Calibration({}, 0.0, wrong).threshold(rate) for rate in rates} == rates
    for rate in (-1.0, 150.0, float("nan")):  # 150 would count from the end
        with pytest.raises(ValueError, match="from 0 to 100"):
            Calibration({}, 0.0, wrong).threshold(rate)


@pytest.mark.parametrize("rate", [2.0, 10.0, 50.0])
def test_wrong_answers_are_given_at_no_higher_a_rate(rate):
    """Over 20,000 draws of 60 dialogues; a plain quantile gives 3.3, 11.5 and 50.8 percent."""
    scores = np.random.default_rng(0).gumbel(size=(20_000, 61))
    least = [Calibration({}, 0.0, sorted(row[:-1])).threshold(rate) for row in scores]
    real = 100 * np.mean(scores[:, -1] > least)
    assert rate - 100 / 61 - 1 < real < rate + 0.7


def test_a_weight_is_that_which_the_true_responses_were_drawn_with():
    """Drawn by 10 cosine + score / 2, it is 20; large if scores, small if cosines say nothing."""
    rng = np.random.default_rng(0)
    rows = rng.normal(3.0, [0.1, 2.0], [20_000, 10, 2])  # cosines and scores
    for shares, least, most in (((10, 0.5), 19, 21), ((10, 0), 200, 1e5), ((0, 0.5), 0, 1)):
        drawn = np.argsort(-(rows @ shares + rng.gumbel(size=[20_000, 10])), axis=1)  # first
        assert least <= job.fit_weight(np.take_along_axis(rows, drawn[..., None], axis=1)) <= most
    assert job.fit_weight(np.zeros([30, 10, 2])) == 1.0


def test_the_table_of_a_calibration_by_hand(tmp_path, monkeypatch):
    """The best wrong responses score 1 to 9, so the threshold at 20% is 8. Above it are one of them
    and four true ones, of which one is behind that.
    """
    true = [8.5, 8.5, 8.5, *[0.5] * 5, 8.5]
    scores = np.array([[x, n, n - 1] for n, x in enumerate(true, start=1)])
    rows = np.stack([np.zeros_like(scores), scores], axis=2)
    model = types.SimpleNamespace(fingerprint=lambda: "f")
    monkeypatch.setattr(job, "draw_samples", lambda *_, **__: [])
    monkeypatch.setattr(job, "_score", lambda *_: rows)
    monkeypatch.setattr(Reranker, "from_options", lambda *_: model)
    paths = {"dialogues": "pyproject.toml", "output": str(tmp_path / "out.json")}
    table = job.calibrate(job.CalibrateOptions(model="m", candidates=3, **paths)).splitlines()
    assert table[0].endswith("R@1 of 3 33.3")
    assert table[-1].split() == ["20%", "8.000", "11.1%", "33.3%"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate")
    save_checkpoint(folder / "model", build_backbone())
    save_reranker(folder / "reranker", speakers=True)
    dialogues = [(name, [("a", x) for _, x in own]) for name, own in make_dialogues(90).items()]
    (folder / "dev.jsonl").write_text(json_lines(dict(dialogues[:50])))
    (folder / "test.jsonl").write_text(json_lines(dict(dialogues[50:80])))
    texts = [f"{text}\n" for _, turns in dialogues[80:] for _, text in turns]
    (folder / "texts.txt").write_text("".join(texts))
    return folder


def calibrate(folder, output, *flags):
    main(["calibrate", f"--dialogues={folder}/dev.jsonl", f"--output={output}", *flags])
    return Calibration.read(output)


def test_a_reranker_alone_learns_what_its_wrong_answers_score(folder, tmp_path, capsys):
    flags = f"--model={folder}/reranker", "--candidates=5", f"--check_dialogues={folder}/te*.jsonl"
    found = calibrate(folder, tmp_path / "it.json", *flags)
    reranker = Reranker.load(folder / "reranker")
    sessions = read_dialogues(folder / "dev.jsonl")
    samples = make_samples(sessions, candidates=5, context_turns=3, max_samples=0, seed=0)
    scores = reranker.score([s.context for s in samples], [s.candidates for s in samples])
    np.testing.assert_allclose(found.wrong, sorted(row[1:].max() for row in scores), atol=1e-5)
    printed = capsys.readouterr().out
    assert printed.count("R@1 of 5") == 2
    assert f"{found.threshold(20.0):.3f}" in printed

    sample = samples[0]
    best = reranker.rank(sample.context, sample.candidates)[0].score
    assert reranker.rank(sample.context, sample.candidates, none_below=best) == []
    assert len(reranker.rank(sample.context, sample.candidates, none_below=best - 0.01)) == 5


def test_search_answers_only_what_is_good_enough(folder, tmp_path, capsys):
    stages = [f"--model={folder}/model", f"--reranker={folder}/reranker", "--rerank_top=4"]
    index = f"--index={tmp_path}/index"
    query = "--query=hello [EOT] where is my blue parcel"
    main(["search", *stages, index, f"--corpus={folder}/texts.txt", query, "--top=3"])
    found = calibrate(folder, tmp_path / "it.json", *stages[:2])
    assert found.cosine_weight > 0
    given = [index, query, "--top=3", "--output=-", f"--calibration={tmp_path}/it.json"]

    def ask(rate):
        capsys.readouterr()
        main(["search", *stages, *given, f"--false_accepts={rate}"])
        answered, log = capsys.readouterr()
        assert ("without --index: far more wrong answers" in log) == (rate < 100)
        return json.loads(answered)["answers"]

    every = ask(100)
    sums = [hit["score"] + found.cosine_weight * hit["cosine"] for hit in every]
    assert sums == sorted(sums, reverse=True)
    assert len(sums) == 3
    for rate in (2, 10, 30, 50, 70, 90):
        assert ask(rate) == (every if sums[0] > found.threshold(rate) else [])
    with pytest.raises(SystemExit, match=r"--false_accepts=1.*: with the 50 .*at least 1\.97"):
        ask(1)


@pytest.mark.parametrize("count", [20, 10])
def test_wrong_responses_can_be_what_an_index_finds(folder, tmp_path, count):
    settings = {"candidates": 2, "context_turns": 3, "max_samples": 20, "seed": 0}
    samples = make_samples(read_dialogues(folder / "dev.jsonl"), **settings)
    texts = [sample.candidates[0] for sample in samples]  # each is true once and wrong 19 times
    # A doubled space makes no other response.
    (tmp_path / "texts.txt").write_text("".join(f" {x.replace(' ', '  ')}\n" for x in texts))
    models = f"--model={folder}/model", f"--reranker={folder}/reranker", f"--index={tmp_path}/index"
    main(["search", *models, f"--corpus={tmp_path}/texts.txt", "--query=ok"])
    given = *models, "--max_samples=19", f"--candidates={count}"
    found = calibrate(folder, tmp_path / "it.json", *given)

    encoder = dcse_tf.SentenceEncoder.load(folder / "model")
    rows = encoder.encode(texts, normalize_embeddings=True)
    wrong = []
    for sample in samples[:19]:
        mean = encoder.encode(sample.context).mean(axis=0)
        cosines = rows @ mean / np.linalg.norm(mean)
        scores = Reranker.load(folder / "reranker").score([sample.context], [texts])[0]
        near = [x for x in np.argsort(-cosines) if texts[x] != sample.candidates[0]][: count - 1]
        wrong.append(max((scores + found.cosine_weight * cosines)[near]))
    np.testing.assert_allclose(found.wrong, sorted(wrong), atol=1e-4)
    with pytest.raises(SystemExit, match=r"--index=.*: has 19 .*; give --candidates=20, not 101"):
        calibrate(folder, tmp_path / "it.json", *models)


def test_a_calibration_of_other_models_is_refused(folder, tmp_path):
    calibrate(folder, tmp_path / "it.json", f"--model={folder}/reranker")
    models = [f"--model={folder}/model", f"--reranker={folder}/reranker"]
    given = [f"--calibration={tmp_path}/it.json", f"--corpus={folder}/texts.txt"]
    with pytest.raises(SystemExit, match=r"--calibration=.*it.json: is of other models: `?.*model"):
        main(["search", *models, *given, "--query=ok", f"--index={tmp_path}/index"])
    assert not (tmp_path / "index").exists()
    (tmp_path / "broken.json").write_text('{"wrong": 3}')
    with pytest.raises(InputError, match=r"broken.json: not what calibrate writes"):
        dcse_tf.Calibration.read(tmp_path / "broken.json")
    with pytest.raises(SystemExit, match=r"--calibration=.*: is for answers"):
        main(["search", models[0], *given, "--query=ok"])
    with pytest.raises(SystemExit, match=r"--find=responses: .* has no projection heads"):
        calibrate(folder, tmp_path / "it.json", models[0], "--find=responses")
    # Before models are loaded.
    for flags, problem in (
        (["--find=responses", "--truncate_dim=3"], "--truncate_dim=3: has no meaning with --find"),
        (["--pooling=cls"], "--pooling=cls: has no meaning without --reranker"),
        (["--index=i"], "--index=i: has no meaning without --reranker"),
        (["--max_samples=5"], "--max_samples=5: expected at least --candidates=10, or 0"),
    ):
        with pytest.raises(SystemExit, match=problem):
            calibrate(folder, tmp_path / "it.json", "--model=nothing", *flags)
    with pytest.raises(SystemExit, match=f"{tmp_path} is a folder"):
        calibrate(folder, tmp_path, "--model=nothing")
    (tmp_path / "few.jsonl").write_text("")
    flags = ["--model=nothing", f"--check_dialogues={tmp_path}/few.jsonl"]
    with pytest.raises(SystemExit, match=r"few.*: too few different responses .* of 0 dialogues"):
        calibrate(folder, tmp_path / "more.json", *flags)
