"""Similarities taken apart by pairs of tokens, and the job that shows them."""

import html.parser
import json
import re

import matplotlib.font_manager
import matplotlib.image
import numpy as np
import pytest
import reference
from tiny_bert import DIM, VOCABULARY, build_backbone, encode_alone, save_checkpoint

from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.data.dialogue import Context
from dcse_tf.encoder.graph import EncoderGraph, GraphBackend
from dcse_tf.errors import InputError
from dcse_tf.inspecting import heatmap
from dcse_tf.inspecting.explain import explain
from dcse_tf.inspecting.explanation import decompose, explain_response, top_pairs
from dcse_tf.matching.matching_files import MatchingForm, build_turn_attention, write_matching
from dcse_tf.options import OptionError
from dcse_tf.sets.options import ExplainOptions

SESSION = (
    "s<1>",
    ["where is my parcel", "it left today", "<b>好的</b> thanks", "ok", "i want a refund ."],
)
KINDS = [None, "attention", "additive_attention"]


def draw(turns, seed=0):
    """Token embeddings of context turns of these lengths, and of a response of 4 tokens."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, 8)) + 0.3 for n in turns], rng.normal(size=(4, 8)) + 0.3


def total(matching):
    return sum(float(cells.sum()) for cells in matching.contributions)


def test_a_decomposition_by_hand():
    # d = 4, so M = U R^T / 2. Two turns, of 2 and 1 tokens; the response's tokens e1 and e2.
    first = np.array([[2.0, 0, 0, 0], [0, 4.0, 0, 0]])
    second = np.array([[2.0, 2.0, 0, 0]])
    response = np.eye(4)[:2]
    matching = decompose([first, second], response)
    np.testing.assert_array_equal(matching.matrices[0], [[1, 0], [0, 2]])
    np.testing.assert_array_equal(matching.matrices[1], [[1, 1]])
    # Pooled R_hat: (1/2, 1) and (1, 1); r~ is their mean (3/4, 1), of length 5/4. rbar is
    # (1/2, 1/2), of length sqrt(1/2), and R_j . rbar = 1/2.
    norms = 1.25 * np.sqrt(0.5)
    np.testing.assert_allclose(matching.contributions[0] * norms, [[1 / 8, 0], [0, 1 / 4]])
    np.testing.assert_allclose(matching.contributions[1] * norms, [[1 / 4, 1 / 4]])
    assert matching.similarity == pytest.approx(7 / 8 / norms)
    pairs = top_pairs(matching, 3)
    assert [(p.turn, p.context_token, p.response_token) for p in pairs] == [
        *((0, 1, 1), (1, 0, 0), (1, 0, 1)),
    ]


@pytest.mark.parametrize("turns", [[1], [3, 5], [7, 1, 2, 4]])
@pytest.mark.parametrize("seed", range(5))
def test_contributions_add_up_to_the_similarity(turns, seed):
    context, response = draw(turns, seed)
    matching = decompose(context, response)
    assert abs(total(matching) - reference.similarity(context, response)) < 1e-12
    assert abs(total(matching) - matching.similarity) < 1e-12
    for utterance, matrix in zip(context, matching.matrices):
        expected = reference.matching_matrix(utterance, response)
        np.testing.assert_allclose(matrix, expected, atol=1e-12)


def test_weights_scale_the_turns_of_a_context():
    """Equation 5 with given weights, and the cosine of what comes out."""
    context, response = draw([2, 6, 3])
    weights = [0.7, 0.1, 0.2]
    matching = decompose(context, response, lambda pooled: np.array(weights))
    pooled = [reference.mean_of_rows(reference.refined_embedding(u, response)) for u in context]
    aware = sum(w * row for w, row in zip(weights, pooled))
    expected = reference.cosine(aware, reference.mean_of_rows(response))
    assert abs(total(matching) - expected) < 1e-12
    # Scaled by one factor, as 1 + alpha against alpha, a cosine stays what it is.
    scaled = decompose(context, response, lambda pooled: 3.0 * np.array(weights))
    np.testing.assert_allclose(scaled.contributions[1], matching.contributions[1])


def test_a_response_without_length_has_no_similarity():
    context, response = draw([2])
    matching = decompose(context, 0.0 * response)
    assert (matching.similarity, total(matching)) == (0.0, 0.0)


@pytest.fixture(scope="module")
def backbone():
    return build_backbone()


@pytest.mark.parametrize("kind", KINDS)
def test_an_explanation_is_of_the_models_own_similarity(backbone, kind):
    attention = build_turn_attention(kind, DIM, 5) if kind else None
    if attention:  # sharply, so that weights differ
        for variable in attention.trainable_variables:
            variable.assign(variable * 100.0)
    bert, form = build_bert_encoder(backbone), MatchingForm(attention=attention)
    scorer = GraphBackend(EncoderGraph(bert, VOCABULARY, 6, "mean", matching=form))
    context = Context(3, "both").of(5, 2)
    assert context == [0, 1, 3, 4]
    found = explain_response(scorer, VOCABULARY.tokens, SESSION, 2, context)
    texts = SESSION[1]
    scored = scorer.score([[texts[turn] for turn in context]], [[texts[2]]])[0, 0]
    assert found.scored == scored
    assert abs(total(found.matching) - scored) < 1e-6
    assert [text.turn for text in found.context] == context
    assert found.context[3].tokens == ["[CLS]", "i", "want", "a", "refund", "[SEP]"]  # cut at 6
    ids = [[VOCABULARY.index(token) for token in text.tokens] for text in found.context]
    encoded = [encode_alone(bert, row) for row in ids]
    response = encode_alone(bert, [VOCABULARY.index(token) for token in found.response.tokens])
    assert len(found.response.tokens) == 6
    for place, rows in enumerate(encoded):
        expected = reference.matching_matrix(rows, response)
        np.testing.assert_allclose(found.matching.matrices[place], expected, atol=1e-5)
    if kind is None:
        assert found.matching.weights.tolist() == [0.25] * 4
        assert abs(total(found.matching) - reference.similarity(encoded, response)) < 1e-6
    else:
        assert found.matching.weights.sum() == pytest.approx(1.0 if kind == "attention" else 5.0)
        assert np.ptp(found.matching.weights) > 0.01


@pytest.fixture(scope="module")
def folder(backbone, tmp_path_factory):
    """model/ with turn attention, and sessions.jsonl."""
    folder = tmp_path_factory.mktemp("explain")
    save_checkpoint(folder / "model", backbone)
    write_matching(
        folder / "model", MatchingForm(attention=build_turn_attention("attention", DIM, 5))
    )
    sessions = [("one", ["alone"]), SESSION, ("later", ["a", "b"])]
    lines = [
        json.dumps(
            {"session_id": i, "turns": [{"role": "xy"[k % 2], "text": t} for k, t in enumerate(s)]}
        )
        for i, s in sessions
    ]
    (folder / "sessions.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def make_config(folder, **changes):
    settings = {
        "model": str(folder / "model"),
        "input": str(folder / "sessions.jsonl"),
        "output_dir": str(folder / "out"),
        "overwrite": True,
    }
    return ExplainOptions(**{**settings, **changes})


class Page(html.parser.HTMLParser):
    """The cells of every table that has a caption, and what would be loaded from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.loaded, self.tags, self._cell = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loaded += [value for name, value in attributes if name in ("src", "href")]
        if tag == "caption":
            self.tables.append([])
        self._cell = tag == "td" and bool(self.tables)

    def handle_data(self, data):
        if self._cell:
            self.tables[-1].append(float(data))
            self._cell = False


def test_the_job_writes_a_page_figures_and_drawings(folder):
    printed = explain(make_config(folder, response=2))
    out = folder / "out"
    names = ["contributions.png", "explanation.html", "explanation.json", "matching.png"]
    assert sorted(path.name for path in out.iterdir()) == names
    found = json.loads((out / "explanation.json").read_text(encoding="utf-8"))
    assert (found["session_id"], found["response"]["turn"]) == ("s<1>", 2)
    parts = [np.array(turn["contributions"]) for turn in found["context"]]
    assert abs(sum(part.sum() for part in parts) - found["scored"]) < 1e-6
    assert f"similarity {found['similarity']:.4f}" in printed
    text = (out / "explanation.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.loaded == []
    assert not {"script", "b>"} & set(page.tags)
    assert "url(" not in text
    assert "<h1>Turn 2 of session s&lt;1&gt;</h1>" in text
    assert "&lt;" in text
    assert "好" in text
    assert len(page.tables) == 2 * 4
    for place, turn in enumerate(found["context"]):
        matrix, contributions = page.tables[2 * place : 2 * place + 2]
        np.testing.assert_allclose(matrix, np.ravel(turn["matching"]), atol=0.051)
        np.testing.assert_allclose(contributions, 1000 * parts[place].ravel(), atol=0.051)
    biggest = max(parts, key=lambda part: np.abs(part).max())
    value = biggest.ravel()[np.abs(biggest).argmax()]
    assert text.index(f"{value:+.4f}</td>") < text.index("<caption>")  # it heads the list of pairs
    for name in ("matching.png", "contributions.png"):
        image = matplotlib.image.imread(out / name)
        assert min(image.shape[:2]) > 300
        assert image[..., :3].std() > 0.05


def test_the_first_session_and_its_middle_turn_are_explained_if_not_told(folder):
    explain(make_config(folder))
    found = json.loads((folder / "out/explanation.json").read_text(encoding="utf-8"))
    assert (found["session_id"], found["response"]["turn"]) == (SESSION[0], 2)
    explain(make_config(folder, session="later", context_side="before"))
    found = json.loads((folder / "out/explanation.json").read_text(encoding="utf-8"))
    assert (found["response"]["text"], len(found["context"])) == ("b", 1)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"session": "none"}, InputError, r"sessions\.jsonl: no session 'none'.* s<1>, later"),
        ({"session": "one"}, InputError, r"no session 'one' of two turns or more"),
        ({"response": 5}, OptionError, r"`response`=5: session s<1> has 5 turns, 0 to 4"),
        ({"response": 0, "context_side": "before"}, OptionError, "`response`=0: "),
        ({"model": "./none"}, InputError, r"`model`=\./none"),
        ({"input": "none.jsonl"}, InputError, r"none\.jsonl:1: cannot be read"),
    ],
)
def test_a_fault_is_named_and_leaves_what_was_there(folder, settings, error, message):
    explain(make_config(folder))
    before = (folder / "out/explanation.json").read_bytes()
    with pytest.raises(error, match=message):
        explain(make_config(folder, **settings))
    assert (folder / "out/explanation.json").read_bytes() == before


def test_characters_that_no_font_has_are_drawn_as_their_codes(monkeypatch):
    manager = matplotlib.font_manager.fontManager
    plain = [font for font in manager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(manager, "ttflist", plain)
    families = heatmap._find_families(["ok", "好a"])
    assert list(families) == ["DejaVu Sans"]
    assert heatmap._spell("ok 好é", families) == "ok U+597Dé"
    assert heatmap._spell("a\u200bb", families) == "aU+200Bb"


def test_equal_explanations_give_equal_files(folder):
    files = []
    for _ in range(2):
        explain(make_config(folder))
        files.append({path.name: path.read_bytes() for path in (folder / "out").iterdir()})
    assert files[0] == files[1]
    assert re.search(rb"IEND", files[0]["matching.png"])
