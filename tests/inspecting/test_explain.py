"""Similarities taken apart by pairs of tokens, and the job that shows them."""

import re

import numpy as np
import pytest
import reference
from tiny_bert import DIM, VOCABULARY, build_backbone, save_random
from written_dialogues import json_lines

from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.errors import InputError
from dcse_tf.inspecting.explain import ExplainOptions, decompose, explain, explain_turns
from dcse_tf.matching.equations import build_turn_attention, write_matching
from dcse_tf.options import OptionError

TEXTS = ["where is my parcel", "it left today", "<b>好的</b> thanks", "ok", "i want a refund ."]


def test_a_decomposition_by_hand():
    # d = 4, so M = U R^T / 2. Two turns, of 2 and 1 tokens; the response's tokens e1 and e2.
    first = np.array([[2.0, 0, 0, 0], [0, 4.0, 0, 0]])
    second = np.array([[2.0, 2.0, 0, 0]])
    found = decompose([first, second], np.eye(4)[:2])
    np.testing.assert_array_equal(found.matrices[0], [[1, 0], [0, 2]])
    np.testing.assert_array_equal(found.matrices[1], [[1, 1]])
    # Pooled R_hat: (1/2, 1) and (1, 1); r~ is their mean (3/4, 1), of length 5/4. rbar is
    # (1/2, 1/2), of length sqrt(1/2), and R_j . rbar = 1/2.
    norms = 1.25 * np.sqrt(0.5)
    np.testing.assert_allclose(found.contributions[0] * norms, [[1 / 8, 0], [0, 1 / 4]])
    np.testing.assert_allclose(found.contributions[1] * norms, [[1 / 4, 1 / 4]])
    assert found.similarity == pytest.approx(7 / 8 / norms)
    assert decompose([first], np.zeros([2, 4])).similarity == 0.0


@pytest.mark.parametrize("turns", [[1], [3, 5], [7, 1, 2, 4]])
def test_contributions_add_up_to_the_similarity(turns):
    rng = np.random.default_rng(0)
    context, response = [rng.normal(size=(n, 8)) + 0.3 for n in turns], rng.normal(size=(4, 8))
    found = decompose(context, response)
    total = sum(float(cells.sum()) for cells in found.contributions)
    assert abs(total - reference.similarity(context, response)) < 1e-12
    assert abs(total - found.similarity) < 1e-12
    for utterance, matrix in zip(context, found.matrices, strict=True):
        expected = reference.matching_matrix(utterance, response)
        np.testing.assert_allclose(matrix, expected, atol=1e-12)
    # Equation 5 with given weights, and the cosine of what comes out.
    weights = rng.uniform(size=len(turns))
    found = decompose(context, response, lambda pooled: weights)
    pooled = [reference.mean_of_rows(reference.refined_embedding(u, response)) for u in context]
    aware = sum(weight * row for weight, row in zip(weights, pooled, strict=True))
    expected = reference.cosine(aware, reference.mean_of_rows(response))
    assert abs(found.similarity - expected) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("kind", [None, "attention", "additive_attention"])
def test_an_explanation_is_of_the_models_own_similarity(kind):
    attention = build_turn_attention(kind, DIM, 5) if kind else None
    if attention:  # sharply, so that weights differ
        for variable in attention.trainable_variables:
            variable.assign(variable * 100.0)
    bert = build_bert_encoder(build_backbone())
    backend = EncoderGraph(bert, VOCABULARY, 6, "mean", attention=attention)
    tokens, found = explain_turns(backend, TEXTS)
    assert tokens[4] == ["[CLS]", "i", "want", "a", "refund", "[SEP]"]  # cut at 6
    scored = backend.score([TEXTS[:4]], [TEXTS[4:]])[0, 0]
    assert abs(sum(cells.sum() for cells in found.contributions) - scored) < 1e-6
    if kind:
        assert np.ptp(found.weights) > 0.01
    else:
        assert found.weights.tolist() == [0.25] * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """model/ with turn attention, and sessions.jsonl."""
    folder = tmp_path_factory.mktemp("explain")
    write_matching(save_random(folder / "model"), build_turn_attention("attention", DIM, 5))
    (save_random(folder / "reranker") / "reranker.json").touch()
    sessions = {"one": ["alone"], "s<1>": TEXTS, "later": ["a", "b"]}
    spoken = {name: [("x", text) for text in texts] for name, texts in sessions.items()}
    (folder / "sessions.jsonl").write_text(json_lines(spoken))
    return folder


def run(folder, **settings):
    files = {"model": str(folder / "model"), "input": str(folder / "sessions.jsonl")}
    output = {"output_dir": str(folder / "out"), "overwrite": True}
    printed = explain(ExplainOptions(**{**files, **output, **settings}))
    return printed, (folder / "out/explanation.html").read_text(encoding="utf-8")


def test_the_job_writes_a_page_of_the_first_session_s_middle_turn(folder):
    printed, page = run(folder)
    assert [path.name for path in (folder / "out").iterdir()] == ["explanation.html"]
    assert "session s<1>, response turn 2: " in printed
    assert "<h1>Turn 2 of session s&lt;1&gt;</h1>" in page
    assert re.findall(r"Turn (\d), weight", page) == ["0", "1", "3", "4"]
    # All contributions, in thousandths, add up to the similarity; the largest has the full colour.
    similarity = float(re.search(r"similarity (-?[\d.]+);", printed)[1])
    cells = re.findall(r"rgba\((.+?),([\d.]+)\)'>(-?[\d.]+)<", page)
    assert sum(float(value) for *_, value in cells) / 1000 == pytest.approx(similarity, abs=5e-3)
    color, shade, largest = max(cells, key=lambda cell: abs(float(cell[2])))
    assert (color, shade) == ("178,24,43" if float(largest) > 0 else "33,102,172", "1.00")
    assert printed.splitlines()[2].split()[0][:5] == f"{float(largest) / 1000:+.4f}"[:5]
    _, page = run(folder, session="later", context_side="before")
    assert re.findall(r"Turn (\d), weight", page) == ["0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "error", "field"),
    [
        ({"session": "one"}, OptionError, "`session`=one.*s<1>, later"),
        ({"response": 5}, OptionError, "`response`=5"),
        ({"response": 0, "context_side": "before"}, OptionError, "`context_side`"),
        ({"model": "./none"}, InputError, r"`model`=\./none"),
        ({"model": "reranker"}, InputError, "`model`=reranker: is a re-ranker"),
        ({"input": "none.jsonl"}, InputError, r"none\.jsonl"),
    ],
)
def test_a_fault_is_named_and_leaves_what_was_there(folder, settings, error, field, monkeypatch):
    monkeypatch.chdir(folder)
    _, before = run(folder)
    with pytest.raises(error, match=field):
        run(folder, **settings)
    assert (folder / "out/explanation.html").read_text(encoding="utf-8") == before
