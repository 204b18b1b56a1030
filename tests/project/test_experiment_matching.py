"""The experiment on what each form of the matching keeps and adds."""

import importlib
import json
import pathlib
import sys

import numpy as np
import pytest
import reference
from tiny_bert import build_backbone, save_checkpoint

from dcse_tf.evaluation import bootstrap
from dcse_tf.evaluation.response_selection import Sample

FOLDER = pathlib.Path(__file__).parents[2] / "experiments"
SAMPLES = [Sample(["a", "b"], ["c", "d"]), Sample(["d"], ["a", "c"])]


@pytest.fixture
def forms(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)
    return importlib.import_module("matching_forms")


def draw():
    rng = np.random.default_rng(0)
    return {text: rng.normal(size=(n, 8)) + 0.3 for n, text in enumerate("abcd", start=2)}


def test_powers_0_and_1_are_the_cosine_and_the_papers_matching(forms):
    tokens = draw()
    found = forms.score_powers(SAMPLES, tokens, (0.0, 0.5, 1.0, 2.0))
    for sample, *rows in zip(SAMPLES, *found.values(), strict=True):
        context = [tokens[text] for text in sample.context]
        for place, text in enumerate(sample.candidates):
            response = tokens[text]
            assert rows[0][place] == pytest.approx(reference.plain_cosine(context, response))
            assert rows[2][place] == pytest.approx(reference.similarity(context, response))
            # G twice, as it is written.
            gram = response.T @ response
            c = np.mean([rows.mean(axis=0) for rows in context], axis=0)
            twice = reference.cosine(gram @ gram @ c, response.mean(axis=0))
            assert rows[3][place] == pytest.approx(twice)
    assert np.abs(found["p=0.5"] - found["p=1"]).max() > 1e-3


def test_centring_takes_the_mean_of_the_tokens_of_some_texts(forms):
    tokens = draw()
    found = forms.center(tokens, ["a", "b"])
    mean = np.concatenate([tokens["a"], tokens["b"]]).mean(axis=0)
    for text, rows in tokens.items():
        np.testing.assert_allclose(found[text], rows - mean, atol=1e-6)


def test_a_form_that_knows_what_the_cosine_does_not_is_used_and_noise_is_not(forms):
    rng = np.random.default_rng(1)
    chosen = np.arange(400) % 2 == 0
    cosine = rng.normal(size=(400, 5))
    cosine[:, 0] += 1.0
    other = 0.01 * rng.normal(size=(400, 5))  # its unit does not count
    other[:, 0] += 0.01
    found = forms.mix(cosine, other, chosen)
    assert 0.2 < found["weight"] < 0.8
    assert found["samples"] == 200
    assert found["r1"]["value"] == pytest.approx(found["r1"]["together"] - found["r1"]["cosine"])
    assert found["r1"]["low"] > 0
    useless = forms.mix(cosine, np.zeros_like(cosine), chosen)
    assert (useless["weight"], useless["r1"]["value"]) == (1.0, 0.0)


def test_the_half_that_reports_has_no_say_in_the_weight(forms):
    rng = np.random.default_rng(2)
    chosen = np.arange(100) % 2 == 0
    cosine, other = rng.normal(size=(2, 100, 5))
    other[chosen, 0] += 5.0
    before = forms.mix(cosine, other, chosen)
    other[~chosen] *= -3.0
    assert forms.mix(cosine, other, chosen)["weight"] == before["weight"] < 0.5


def test_the_script_writes_every_row_and_table(forms, data_dir, tmp_path, monkeypatch, capsys):
    model = save_checkpoint(tmp_path / "model", build_backbone())
    output = tmp_path / "forms.json"
    arguments = ["--dialogues", str(data_dir / "test.jsonl"), "--model", str(model)]
    arguments += ["--candidates", "4", "6", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["matching_forms.py", *arguments])
    forms.main()
    content = json.loads(output.read_text())
    assert len(content["rows"]) == 2 * 2 * (5 + 4)
    assert len(content["mixtures"]) == 2 * 2 * 4
    scores = {(r["candidates"], r["tokens"], r["score"]): r["mrr"] for r in content["rows"]}
    for count in (4, 6):
        for kind in ("raw", "centred"):
            of_paper = scores[count, kind, "paper"]
            assert of_paper == pytest.approx(scores[count, kind, "p=1"], abs=1e-3)
    printed = capsys.readouterr().out
    assert f"| {model} | 6 | centred | maxsim |" in printed


def test_too_few_dialogues_are_named(forms, data_dir, tmp_path, monkeypatch):
    arguments = ["--dialogues", str(data_dir / "test.jsonl"), "--model", "./none"]
    arguments += ["--candidates", "1000", "--output", str(tmp_path / "forms.json")]
    monkeypatch.setattr(sys, "argv", ["matching_forms.py", *arguments])
    with pytest.raises(SystemExit, match=r"test\.jsonl: too few responses for --candidates 1000"):
        forms.main()


@pytest.mark.parametrize(
    ("flag", "value", "least"),
    [("--candidates", "1", 2), ("--samples", "-1", 0), ("--context_turns", "0", 1)],
)
def test_a_number_that_cannot_be_used_is_named(forms, flag, value, least, capsys):
    with pytest.raises(SystemExit):
        forms.parse_arguments(["--dialogues=d", "--model=m", "--output=o", flag, value])
    assert f"{flag}: {value}: expected at least {least}" in capsys.readouterr().err


def test_a_length_that_cannot_be_used_is_named(forms, data_dir, tmp_path, monkeypatch):
    arguments = ["--dialogues", str(data_dir / "test.jsonl"), "--model", "./none"]
    arguments += ["--max_sequence_length=2", "--output", str(tmp_path / "forms.json")]
    monkeypatch.setattr(sys, "argv", ["matching_forms.py", *arguments])
    with pytest.raises(SystemExit, match="max_sequence_length`=2: expected 0 or at least 3"):
        forms.main()
