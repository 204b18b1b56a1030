"""Re-rankers: scores against arithmetic by hand, orders, speakers, and what is refused."""

import itertools
import json

import numpy as np
import pytest
import reference
import tensorflow as tf
from tiny_bert import VOCABULARY, build_backbone, save_checkpoint
from tiny_reranker import (
    END,
    EPSILON,
    FIRST_TOKENS,
    SECOND_TOKENS,
    WITH_END,
    make_tensors,
    save_reranker,
)

import dcse_tf
from dcse_tf.bert.blanks import NO_CANDIDATE
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.options import OptionError
from dcse_tf.reading.reranker_files import RerankerSettings, read_reranker_settings
from dcse_tf.reading.reranker_files import write_reranker_settings as write_settings
from dcse_tf.reranker.reranker import Reranker

# One turn; a turn that is empty; more than the 12 tokens that are kept, cut inside a turn.
CONTEXTS = [
    ["where is my parcel"],
    ["i want a refund", "", "ok thanks"],
    ["i want a refund for the blue cup", "ok", "where is my parcel it left today ."],
    ["where is my parcel", "it left today"],
]
# Of any number, repeated, empty, longer than the 5 tokens that are kept.
CANDIDATES = [
    ["it left today", "thanks", "it left today", ""],
    ["ok"],
    ["the blue cup it left today thanks", "好 的", "a refund"],
    [],
]
ROLES = [["agent"], ["a", "a", "b"], ["guest", "host", "host"], ["x", "y"]]
RESPONDERS = ["agent", "a", "guest", "z"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By whether the model knows who speaks."""
    folder = tmp_path_factory.mktemp("runs")
    return {known: save_reranker(folder / str(known), known) for known in (False, True)}


@pytest.fixture(scope="module")
def rerankers(runs):
    return {known: Reranker.load(run) for known, run in runs.items()}


def ids_of(text):
    return [WITH_END.index(word) for word in text.split()]


def expect(turns, response, speakers=None):
    """By the reference, without blank turns; speakers of a model that knows them, of all turns."""
    if not response.strip():
        return NO_CANDIDATE
    if speakers:
        speakers = [who for turn, who in zip(turns, speakers, strict=True) if turn.strip()]
    turns = [turn for turn in turns if turn.strip()]
    sequence = reference.pair_sequence(
        [ids_of(turn) for turn in turns],
        speakers or [0] * len(turns),
        ids_of(response),
        FIRST_TOKENS,
        SECOND_TOKENS,
        WITH_END.index("[CLS]"),
        WITH_END.index("[SEP]"),
        END,
    )
    tensors = make_tensors(speakers=speakers is not None)
    return reference.cross_encoder(sequence, tensors, 2, EPSILON)


def assert_scores(found, expected):
    assert [scores.shape for scores in found] == [(len(scores),) for scores in expected]
    assert all(scores.dtype == np.float32 for scores in found)
    for scores, row in zip(found, expected, strict=True):
        np.testing.assert_allclose(scores, row, atol=2e-5)


@pytest.mark.parametrize("batch_tokens", [1, 60, 4096])
def test_scores_are_those_of_the_reference(runs, batch_tokens):
    """In batches of one pair, of several with padding, and in one batch."""
    reranker = Reranker.load(runs[False], batch_tokens=batch_tokens)
    expected = [[expect(c, r) for r in group] for c, group in zip(CONTEXTS, CANDIDATES)]
    assert np.ptp([score for row in expected for score in row if score != NO_CANDIDATE]) > 0.5
    assert_scores(reranker.score(CONTEXTS, CANDIDATES), expected)


def test_turns_alternate_where_nobody_says_who_speaks(rerankers):
    """The last turn is another's than the response, the one before it the responder's."""
    # The empty turn is none, and so nobody's.
    speakers = [[1], [0, None, 1], [1, 0, 1], [0, 1]]
    expected = [
        [expect(c, r, s) for r in group] for c, s, group in zip(CONTEXTS, speakers, CANDIDATES)
    ]
    assert_scores(rerankers[True].score(CONTEXTS, CANDIDATES), expected)


def test_roles_say_who_speaks(rerankers):
    speakers = [[0], [0, 0, 1], [0, 1, 1], [1, 1]]
    expected = [
        [expect(c, r, s) for r in group] for c, s, group in zip(CONTEXTS, speakers, CANDIDATES)
    ]
    found = rerankers[True].score(CONTEXTS, CANDIDATES, ROLES, RESPONDERS)
    assert_scores(found, expected)
    without = rerankers[True].score(CONTEXTS, CANDIDATES)
    assert np.abs(found[0] - without[0])[:3].min() > 1e-3  # the fourth is blank


def test_one_context_of_two_speakers_is_two_contexts(rerankers):
    turns, roles = CONTEXTS[2], ROLES[2]
    scores = rerankers[True].score([turns] * 2, [["ok"]] * 2, [roles] * 2, ["guest", "host"])
    expected = [[expect(turns, "ok", s)] for s in ([0, 1, 1], [1, 0, 0])]
    assert_scores(scores, expected)


def test_a_model_that_does_not_know_who_speaks_leaves_roles_unread(rerankers):
    found = rerankers[False].score(CONTEXTS, CANDIDATES, ROLES, RESPONDERS)
    assert_scores(found, rerankers[False].score(CONTEXTS, CANDIDATES))


def test_each_distinct_pair_is_computed_once(rerankers, monkeypatch):
    reranker, rows = rerankers[False], []
    score_rows = reranker._score_rows

    def count(contexts, texts, context_rows, text_rows):
        rows.append(len(context_rows))
        return score_rows(contexts, texts, context_rows, text_rows)

    monkeypatch.setattr(reranker, "_score_rows", count)
    reranker.score([["ok"], ["thanks"], ["ok"]], [["a", "i", "a"], ["a"], ["i", "my"]])
    assert sum(rows) == 4


def test_ranked_best_first_with_their_places(rerankers):
    candidates = ["thanks", "a refund", "it left today", "a refund"]
    ranked = rerankers[False].rank("where is my parcel", candidates)
    expected = [expect(["where is my parcel"], text) for text in candidates]
    assert [each.place for each in ranked] == sorted(range(4), key=lambda i: -expected[i])
    assert [each.text for each in ranked] == [candidates[each.place] for each in ranked]
    np.testing.assert_allclose([each.score for each in ranked], sorted(expected)[::-1], atol=2e-5)
    assert [each.place for each in ranked if each.text == "a refund"] == [1, 3]
    assert rerankers[False].rank(["ok", "thanks"], []) == []


def test_roles_of_one_context_are_ranked_by(rerankers):
    (ranked,) = rerankers[True].rank(["ok", "thanks"], ["a"], ["host", "host"], "host")
    assert abs(ranked.score - expect(["ok", "thanks"], "a", [0, 0])) < 2e-5


def test_bfloat16_is_near(runs, rerankers):
    exact = np.concatenate(rerankers[False].score(CONTEXTS, CANDIDATES))
    near = Reranker.load(runs[False], compute_dtype="bfloat16").score(CONTEXTS, CANDIDATES)
    difference = np.abs(np.concatenate(near) - exact).max()
    assert 1e-5 < difference < 0.2


@pytest.mark.parametrize("known", [False, True])
def test_the_graph_scores_strings_as_python_does(rerankers, known):
    """Whatever is padded; in batches of one pair, of some, of all."""
    reranker = rerankers[known]
    contexts = [
        turns if "" not in turns else ["i want a refund", "ok thanks"] for turns in CONTEXTS
    ]
    candidates = [[text for text in group if text] for group in CANDIDATES]
    expected = reranker.score(contexts, candidates)
    context, padded = (tf.ragged.constant(x, tf.string).to_tensor() for x in (contexts, candidates))
    context = tf.concat([context[:, :1], tf.fill([4, 1], ""), context[:, 1:]], 1)
    for batch_tokens in (1, 40, 10_000):
        run = tf.function(
            lambda c, p, most=batch_tokens: reranker.graph.score_texts(c, p, None, most),
            autograph=False,
        )
        found = run(context, padded).numpy()
        for row, scores in zip(found, expected, strict=True):
            np.testing.assert_allclose(row[: len(scores)], scores, atol=2e-5)
            assert (row[len(scores) :] == NO_CANDIDATE).all()


def test_the_graph_takes_nothing(rerankers):
    for shape in itertools.product((0, 2), (0, 3)):
        context, candidates = tf.fill(shape, ""), tf.fill((shape[0], 2), "")
        found = rerankers[False].graph.score_texts(context, candidates, None, 100)
        assert found.numpy().tolist() == [[NO_CANDIDATE] * 2] * shape[0]


def test_fingerprints_follow_what_is_computed(runs, rerankers, tmp_path):
    prints = {known: reranker.fingerprint() for known, reranker in rerankers.items()}
    assert prints[False] != prints[True]
    again = Reranker.load(save_reranker(tmp_path / "again"), compute_dtype="bfloat16")
    assert again.fingerprint() == prints[False]
    other = Reranker.load(save_reranker(tmp_path / "other", seed=4))
    assert other.fingerprint() != prints[False]
    write_settings(tmp_path / "again/encoder", RerankerSettings("bert", 10, 6, False))
    assert Reranker.load(tmp_path / "again").fingerprint() != prints[False]


def test_settings_come_back(tmp_path):
    settings = RerankerSettings("esim", 30, 20, True)
    write_settings(tmp_path, settings)
    assert read_reranker_settings(tmp_path) == settings


def test_a_sentence_encoder_is_no_reranker_and_the_other_way_round(runs, tmp_path):
    encoder = save_checkpoint(tmp_path / "encoder", build_backbone())
    with pytest.raises(InputError, match=r"`path`=.*is a sentence encoder, not a re-ranker"):
        dcse_tf.Reranker.load(encoder)
    with pytest.raises(InputError, match=r"is a re-ranker.*embeds no sentences"):
        SentenceEncoder.load(runs[False])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "abacus"}, "architecture 'abacus', expected bert"),
        ({"first_tokens": 2}, "first_tokens is 2, expected int of 3 or more"),
        ({"speakers": 1}, "speakers is 1, expected bool"),
        ({"second_tokens": None}, "second_tokens is None"),
        ({"first_tokens": 123}, "are 129 together, but the BERT has 128 positions"),
        ({"speakers": True}, "lacks the tensor embeddings.speaker_embeddings.weight"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, change, message):
    run = save_reranker(tmp_path / "run")
    path = run / "encoder/reranker.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=message):
        Reranker.load(run)


def test_a_folder_that_is_not_whole_is_refused(tmp_path):

    run = save_reranker(tmp_path / "run")
    VOCABULARY.write(run / "encoder")
    with pytest.raises(InputError, match=r"lacks \[EOT\]"):
        Reranker.load(run)
    with pytest.raises(OptionError, match="`compute_dtype`=int8"):
        Reranker.load(run, compute_dtype="int8")
    with pytest.raises(OptionError, match="`batch_tokens`=0"):
        Reranker.load(run, batch_tokens=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([["ok"], []], [["a"], ["a"]]), r"contexts\[1\]: expected at least one turn"),
        (([["ok"]], [["a"], ["a"]]), "candidates: 2 lists for 1 contexts"),
        (([["ok"]], [["a"]], [["x"]]), "roles and responders together"),
        (([["ok"]], [["a"]], [["x", "y"]], ["x"]), "a role for each turn"),
        (([["ok"]], [["\ud800"]]), "not a text"),
    ],
)
def test_lists_that_do_not_fit_are_refused(rerankers, arguments, message):
    with pytest.raises(ValueError, match=message):
        rerankers[False].score(*arguments)


def test_what_is_no_text_is_refused(rerankers):
    with pytest.raises(TypeError, match=r"candidates\[0\]\[1\]: expected a string"):
        rerankers[False].score([["ok"]], [["a", None]])
    with pytest.raises(TypeError, match="contexts"):
        rerankers[False].score(["ok"], [["a"]])


def test_nothing_is_scored_to_nothing(rerankers):
    assert rerankers[False].score([], []) == []
    assert [s.shape for s in rerankers[False].score([["ok"]], [[]])] == [(0,)]
