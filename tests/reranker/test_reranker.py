"""Re-rankers: scores against arithmetic by hand, orders, speakers, and what is refused."""

import json

import numpy as np
import pytest
from tiny_bert import VOCABULARY
from tiny_reranker import expect_score, save_lstm_reranker, save_reranker

import dcse_tf
from dcse_tf.bert.vocabulary import NO_CANDIDATE
from dcse_tf.errors import InputError
from dcse_tf.reading.reranker_files import RerankerSettings, write_reranker_settings

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
def loaded(rerankers):
    return {known: dcse_tf.Reranker.load(run) for known, run in rerankers.items()}


def expect(turns, response, speakers=None):
    """By the reference, without blank turns; speakers of a model that knows them, of all turns."""
    if not response.strip():
        return NO_CANDIDATE

    if speakers:
        speakers = [who for turn, who in zip(turns, speakers, strict=True) if turn.strip()]
    return expect_score([turn for turn in turns if turn.strip()], response, speakers)


def expect_all(speakers=(None,) * 4):
    cases = zip(CONTEXTS, speakers, CANDIDATES, strict=True)
    return [[expect(turns, text, who) for text in group] for turns, who, group in cases]


def assert_scores(found, expected):
    assert [scores.shape for scores in found] == [(len(scores),) for scores in expected]
    assert all(scores.dtype == np.float32 for scores in found)
    for scores, row in zip(found, expected, strict=True):
        np.testing.assert_allclose(scores, row, atol=2e-5)


@pytest.mark.parametrize("batch_tokens", [1, 60, 4096])
def test_scores_are_those_of_the_reference(rerankers, batch_tokens):
    """In batches of one pair, of several with padding, and in one batch."""
    reranker = dcse_tf.Reranker.load(rerankers[False], batch_tokens=batch_tokens)
    expected = expect_all()
    assert np.ptp([score for row in expected for score in row if score != NO_CANDIDATE]) > 0.5
    assert_scores(reranker.score(CONTEXTS, CANDIDATES), expected)
    # It does not know who speaks, so roles do not matter.
    assert_scores(reranker.score(CONTEXTS, CANDIDATES, ROLES, RESPONDERS), expected)
    assert reranker.score([], []) == []


def test_speakers_alternate_unless_roles_say_who_speaks(loaded):
    """Without roles, the last turn is another's than the response; an empty turn is nobody's."""
    alternating = expect_all([[1], [0, None, 1], [1, 0, 1], [0, 1]])
    assert_scores(loaded[True].score(CONTEXTS, CANDIDATES), alternating)
    told = expect_all([[0], [0, 0, 1], [0, 1, 1], [1, 1]])
    assert_scores(loaded[True].score(CONTEXTS, CANDIDATES, iter(ROLES), RESPONDERS), told)
    assert abs(told[0][0] - alternating[0][0]) > 1e-3


def test_each_distinct_pair_of_texts_and_speakers_is_computed_once(loaded, monkeypatch):
    reranker, rows = loaded[True], []
    score = reranker.scorer.score

    def count(sequences):
        rows.append(len(sequences["token_ids"]))
        return score(sequences)

    monkeypatch.setattr(reranker.scorer, "score", count)
    reranker.score([["ok"], ["thanks"], ["ok"]], [["a", "i", "a"], ["a"], ["i", "my", ""]])
    assert sum(rows) == 4
    rows.clear()
    turns, roles = CONTEXTS[2], ROLES[2]
    scores = reranker.score([turns] * 2, [["ok"]] * 2, [roles] * 2, ["guest", "host"])
    assert_scores(scores, [[expect(turns, "ok", who)] for who in ([0, 1, 1], [1, 0, 0])])
    assert sum(rows) == 2


def test_ranked_best_first_with_their_places(loaded):
    candidates = ["thanks", "a refund", "it left today", "a refund"]
    ranked = loaded[False].rank("where is my parcel", candidates)
    expected = [expect(["where is my parcel"], text) for text in candidates]
    assert [each.place for each in ranked] == sorted(range(4), key=lambda i: -expected[i])
    assert [each.text for each in ranked] == [candidates[each.place] for each in ranked]
    np.testing.assert_allclose([each.score for each in ranked], sorted(expected)[::-1], atol=2e-5)
    assert loaded[False].rank(["ok", "thanks"], []) == []
    (of_role,) = loaded[True].rank(["ok", "thanks"], ["a"], ["host", "host"], "host")
    assert abs(of_role.score - expect(["ok", "thanks"], "a", [0, 0])) < 2e-5


@pytest.mark.slow
def test_bfloat16_is_near_and_lstms_have_none(rerankers, loaded, tmp_path):
    near = dcse_tf.Reranker.load(rerankers[False], compute_dtype="bfloat16")
    both = [np.concatenate(each.score(CONTEXTS, CANDIDATES)) for each in (near, loaded[False])]
    assert 1e-5 < np.abs(both[0] - both[1]).max() < 0.2
    for architecture in ("dual_lstm", "esim"):
        run = save_lstm_reranker(tmp_path / architecture, architecture)
        reranker = dcse_tf.Reranker.load(run)
        together = np.concatenate(reranker.score(CONTEXTS, CANDIDATES))
        reranker.batch_tokens = 1
        alone = np.concatenate(reranker.score(CONTEXTS, CANDIDATES))
        np.testing.assert_allclose(together, alone, atol=1e-5)
        assert np.ptp(alone[alone > NO_CANDIDATE]) > 1e-3
        with pytest.raises(InputError, match=r"^`compute_dtype`=bfloat16"):
            dcse_tf.Reranker.load(run, compute_dtype="bfloat16")


def test_fingerprints_follow_what_is_computed(rerankers, loaded, tmp_path):
    prints = {known: reranker.fingerprint() for known, reranker in loaded.items()}
    assert prints[False] != prints[True]
    again = dcse_tf.Reranker.load(save_reranker(tmp_path / "again"), compute_dtype="bfloat16")
    assert again.fingerprint() == prints[False]
    other = dcse_tf.Reranker.load(save_reranker(tmp_path / "other", seed=4))
    assert (own := other.fingerprint()) != prints[False]
    path = tmp_path / "other/encoder/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_act": "gelu"}))
    assert dcse_tf.Reranker.load(tmp_path / "other").fingerprint() != own
    write_reranker_settings(tmp_path / "again/encoder", RerankerSettings("bert", 10, 6, False))
    again = dcse_tf.Reranker.load(tmp_path / "again")
    assert again.fingerprint() != prints[False]
    assert again.settings["first_tokens"] == 10


def test_a_sentence_encoder_is_no_reranker_and_the_other_way_round(rerankers, model):
    with pytest.raises(InputError, match=r"^`path`=.*is a sentence encoder, not a re-ranker"):
        dcse_tf.Reranker.load(model)
    with pytest.raises(InputError, match=r"^`model`=.*is a re-ranker.*embeds no sentences"):
        dcse_tf.SentenceEncoder.load(rerankers[False])


@pytest.mark.parametrize(("change", "named"), [
    ({"architecture": "abacus"}, "architecture"), ({"first_tokens": 2}, "first_tokens"),
    ({"speakers": 1}, "speakers"), ({"second_tokens": None}, "second_tokens"),
    ({"first_tokens": 123}, "128 positions"), ("vocabulary", r"\[EOT\]"),
    ({"speakers": True}, "embeddings.speaker_embeddings.weight"),
])  # fmt: skip
def test_a_folder_that_cannot_be_is_refused(tmp_path, change, named):
    run = save_reranker(tmp_path / "run")
    path = run / "encoder/reranker.json"
    if change == "vocabulary":
        VOCABULARY.write(run / "encoder")
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=named):
        dcse_tf.Reranker.load(run)


@pytest.mark.parametrize(
    ("settings", "option"),
    [({"compute_dtype": "int8"}, "compute_dtype"), ({"batch_tokens": 0}, "batch_tokens")],
)
def test_settings_that_cannot_be_are_refused(rerankers, settings, option):
    with pytest.raises(ValueError, match=f"^`{option}`="):
        dcse_tf.Reranker.load(rerankers[False], **settings)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (([["ok"], []], [["a"], ["a"]]), r"contexts\[1\]"),
        (([["ok"]], [["a"], ["a"]]), "candidates"),
        (([["ok"]], [["a"]], [["x"]]), "roles and responders together"),
        (([["ok"]], [["a"]], [["x", "y"]], ["x"]), "roles, responders"),
        (([["ok"]], [["a"]], ["x"], ["x"]), r"roles\[0\]: "),  # each letter would be a role
        (([["ok"]], [["\ud800"]]), r"candidates\[0\]\[0\]"),
        (([["ok"]], [["a", None]]), r"candidates\[0\]\[1\]"),
        ((["ok"], [["a"]]), r"contexts\[0\]"),
    ],
)
def test_lists_that_do_not_fit_are_refused(loaded, arguments, named):
    with pytest.raises((TypeError, ValueError), match=named):
        loaded[False].score(*arguments)
