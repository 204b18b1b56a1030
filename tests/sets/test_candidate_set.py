"""Grouped candidates built from dialogues: which responses, which negatives, and in what form."""

import collections
import json
import re
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from rank_bm25 import BM25Okapi

from dcse_tf.data.candidates import read_groups
from dcse_tf.data.dialogue import GivenCandidates, Session, Utterance
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines
from dcse_tf.sets.candidate_set import (
    Bm25Ranker,
    CosineRanker,
    Negatives,
    Pool,
    build_candidates,
    choose_responses,
    draw_places,
    pick_nearest,
)
from dcse_tf.sets.options import BuildCandidatesOptions

TOPICS = ("parcel", "refund", "cup", "size", "colour")
COMMON = ("OK", "ok", "Thanks", "thanks")


def make_sessions(count=40):
    """Turns of a topic; every session says something common, in some case."""
    sessions = []
    for number in range(count):
        topic = TOPICS[number % len(TOPICS)]
        turns = [f"my {topic} {number}", f"the {topic} {number} is here", COMMON[number % 4]]
        turns += [f"bye {number} {topic}"][: number % 2]
        said = (Utterance("ab"[place % 2], text) for place, text in enumerate(turns))
        sessions.append(Session(f"s{number}", tuple(said)))
    return sessions


def build(
    sessions, *, ranker=None, responses="one", roles=(), count=4, seed=0, skip_top=0, turns=0,
    same_role=False,
):  # fmt: skip
    chosen = choose_responses(sessions, responses, roles, seed)
    pool = Pool(chosen)
    ranks = ranker and ranker(pool.texts)
    negatives = Negatives(pool, count, seed, ranks, skip_top, same_role=same_role)
    return list(negatives.choose(chosen, turns))


def groups_of(*args, **settings):
    return [group for group, _ in build(*args, **settings)]


def by_words(pool):
    return Bm25Ranker(pool, "words")


def embed(texts):
    rows = [[text.lower().count(c) for c in "abcdehiklmnorstuxyz0123456789"] for text in texts]
    return np.array(rows, np.float32)


def by_letters(pool):
    return CosineRanker(pool, embed)


@pytest.mark.parametrize("ranker", [None, by_words, by_letters])
@pytest.mark.parametrize("responses", ["one", "all"])
def test_negatives_are_others_responses_and_nothing_said_in_the_session(ranker, responses):
    sessions = make_sessions()
    groups = groups_of(sessions, ranker=ranker, responses=responses)
    by_id = {session.session_id: session for session in sessions}
    spoken = {(turn.role, turn.text) for session in sessions for turn in session.turns[1:]}
    assert len(groups) == (40 if responses == "one" else 40 * 2 + 20)
    for group in groups:
        name, place = group.id.split(":")
        turns = by_id[name].turns
        assert group.context == turns[: int(place)]
        assert group.candidates[0] == turns[int(place)].text
        assert group.responder == turns[int(place)].role
        assert group.labels == (1, 0, 0, 0, 0)
        keys = [text.casefold() for text in group.candidates]
        assert len(set(keys)) == 5
        assert not set(keys[1:]) & {turn.text.casefold() for turn in turns}
        assert set(group.candidates[1:]) <= {text for _, text in spoken}
    # The common texts were candidates, so the rule was needed.
    if not ranker:
        assert {*COMMON} & {text for group in groups for text in group.candidates[1:]}
    assert len({group.candidates[1:] for group in groups}) > 20


def test_negatives_are_not_of_another_piece_of_the_dialogue():
    """Files of groups have a session for each response of a dialogue."""
    sessions = []
    for number in range(12):
        turns = [Utterance("ab"[place % 2], f"{number} says {place}") for place in range(6)]
        given = GivenCandidates(f"d{number}", ("never",))
        sessions += [
            Session(f"{number}:{end}", tuple(turns[:end]), given if number else None)
            for end in range(2, 7)
        ]
    groups = groups_of(sessions, count=9)
    assert len(groups) == 60
    for group in groups:
        own = group.candidates[0].split()[0]
        negatives = {text.split()[0] for text in group.candidates[1:]}
        assert own == "0" or own not in negatives


def test_what_is_drawn_depends_on_the_seed_and_the_session_alone():
    sessions = make_sessions()
    first = {group.id: group for group in groups_of(sessions)}
    again = {group.id: group for group in groups_of(sessions[::-1])}
    assert first == again
    other = {group.id: group for group in groups_of(sessions, seed=1)}
    assert set(other) != set(first)  # other turns of the sessions
    assert {place for name in (*first, *other) for place in name.split(":")[1]} == {"1", "2", "3"}
    half = {group.id: group.candidates[0] for group in groups_of(sessions[:20])}
    assert half.items() <= {name: group.candidates[0] for name, group in first.items()}.items()


def test_only_named_speakers_respond_and_are_negatives():
    groups = groups_of(make_sessions(), roles=("b",), responses="all")
    assert len(groups) == 60
    assert {group.responder for group in groups} == {"b"}
    assert not any(text in COMMON for group in groups for text in group.candidates)
    assert groups_of(make_sessions(), roles=("c",)) == []


def test_the_context_is_the_last_turns():
    for turns, expected in ((1, 1), (2, 2), (9, 3), (0, 3)):
        groups = groups_of(make_sessions(), responses="all", turns=turns)
        assert max(len(group.context) for group in groups) == expected
        for group in groups:
            last = int(group.id.split(":")[1])
            assert len(group.context) == min(last, turns or last)


def test_an_id_in_two_files_is_two_sessions():
    sessions = make_sessions(12)
    groups = groups_of([*sessions, *make_sessions(3)], count=2)
    assert len({group.id for group in groups}) == 15
    assert [group.id.split(":")[0] for group in groups[12:]] == ["s0#2", "s1#2", "s2#2"]


# The nearest


@pytest.mark.parametrize("skip_top", [0, 2])
def test_bm25_takes_what_rank_bm25_ranks_first(skip_top):
    sessions = make_sessions()
    chosen = choose_responses(sessions, "one", (), 0)
    pool = Pool(chosen).texts
    words = [re.findall(r"\w+", text.casefold()) for text in pool]
    library = BM25Okapi(words)
    found = build(sessions, ranker=by_words, skip_top=skip_top)
    assert any(drawn == 0 for _, drawn in found)
    for response, (group, drawn) in zip(chosen, found, strict=True):
        query = " ".join(turn.text for turn in group.context).casefold().split()
        scores = library.get_scores(query)
        said = {turn.text.casefold() for turn in response.session.turns}
        order = sorted(range(len(pool)), key=lambda place: (-scores[place], place))
        allowed = [p for p in order if pool[p].casefold() not in said and scores[p] > 0]
        expected = [pool[place] for place in allowed][skip_top : skip_top + 4]
        assert list(group.candidates[1 : 5 - drawn]) == expected
        skipped = {pool[place] for place in allowed[:skip_top]}
        assert not skipped & set(group.candidates)  # not among those drawn either


@pytest.mark.parametrize("skip_top", [0, 3])
def test_a_model_takes_the_nearest_to_the_mean_of_the_context(skip_top, monkeypatch):
    monkeypatch.setattr("dcse_tf.sets.candidate_set._CHUNK", 7)
    monkeypatch.setattr("dcse_tf.sets.candidate_set._CELLS", 100)
    sessions = make_sessions()
    chosen = choose_responses(sessions, "one", (), 0)
    pool = Pool(chosen).texts
    vectors = {text: embed([text])[0].astype(np.float64) for text in pool}
    found = build(sessions, ranker=by_letters, skip_top=skip_top, turns=2)
    for response, (group, drawn) in zip(chosen, found, strict=True):
        mean = embed([turn.text for turn in group.context]).astype(np.float64).mean(axis=0)

        def cosine(text, mean=mean):
            vector = vectors[text]
            return float(vector @ mean / np.linalg.norm(vector) / np.linalg.norm(mean))

        said = {turn.text.casefold() for turn in response.session.turns}
        allowed = [text for text in pool if text.casefold() not in said]
        order = sorted(map(cosine, allowed), reverse=True)
        nearest = [cosine(text) for text in group.candidates[1:]]
        assert drawn == 0
        np.testing.assert_allclose(nearest, order[skip_top : skip_top + 4], atol=2e-6)


def test_what_shares_no_word_is_not_near_and_the_rest_is_drawn():
    sessions = make_sessions(30)
    sessions.append(Session("odd", (Utterance("a", "xyzzy"), Utterance("b", "plugh"))))
    groups = {group.id: drawn for group, drawn in build(sessions, ranker=by_words)}
    assert groups["odd:1"] == 4
    assert min(groups.values()) == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_nearest_are_those_of_a_full_sort(seed):
    rng = np.random.default_rng(seed)
    scores = rng.integers(-2, 6, 50) / 2.0
    banned = set(rng.integers(0, 50, 5).tolist())
    skip, count = int(rng.integers(0, 8)), int(rng.integers(1, 12))
    floor = 0.0 if seed % 2 else -np.inf
    order = [p for p in np.argsort(-scores, kind="stable").tolist() if p not in banned]
    order = [place for place in order if scores[place] > floor]
    expected = order[:skip], order[skip : skip + count]
    assert pick_nearest(scores, banned, skip, count, floor) == expected


def test_places_are_drawn_evenly_and_never_banned():
    rng = np.random.default_rng(0)
    counts = collections.Counter()
    for _ in range(4000):
        drawn = draw_places(rng, np.arange(12), {3, 7}, 4)
        assert len(set(drawn)) == 4
        counts.update(drawn)
    assert set(counts) == set(range(12)) - {3, 7}
    assert all(abs(count - 1600) < 5 * 40 for count in counts.values())
    assert sorted(draw_places(rng, np.array([0, 2, 5]), {0}, 9)) == [2, 5]


@pytest.mark.parametrize("ranker", [None, by_words, by_letters])
def test_negatives_are_of_the_responders_role_if_there_are_enough(ranker):
    """Every third session has a party whose name no other has; the others are agents."""
    sessions = []
    for number, session in enumerate(make_sessions(60)):
        other = "agent" if number % 3 else f"user {number}"
        turns = [Utterance({"a": "user", "b": other}[t.role], f"{t.role} {t.text} {number}")
                 for t in session.turns]  # fmt: skip
        sessions.append(Session(session.session_id, tuple(turns)))
    by_role = {True: set(), False: set()}
    for group in groups_of(sessions, ranker=ranker, same_role=True, skip_top=2 if ranker else 0):
        letters = {text[0] for text in group.candidates[1:]}
        by_role[group.responder.startswith("user ")] |= letters
        if group.responder in ("user", "agent"):
            assert letters == {group.candidates[0][0]}
    assert by_role[True] == {"a", "b"}
    everyone = groups_of(sessions, ranker=ranker)
    assert any({text[0] for text in group.candidates} == {"a", "b"} for group in everyone)


@pytest.mark.parametrize("settings", [{}, {"ranker": by_letters, "skip_top": 2}])
def test_too_few_responses_are_refused(settings):
    sessions = make_sessions(3 + settings.get("skip_top", 0))
    with pytest.raises(InputError, match=r"session 's.': only . different responses of other sess"):
        build(sessions, count=6, **settings)


# The job


def write(path, sessions):
    lines = [
        {
            "session_id": session.session_id,
            "turns": [{"role": turn.role, "text": turn.text} for turn in session.turns],
        }
        for session in sessions
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def options(tmp_path, sessions, **settings):
    path = write(tmp_path / "dialogues.jsonl", sessions)
    values = {"format": "jsonl", "input": (str(path),), "output": str(tmp_path / "groups.jsonl")}
    return BuildCandidatesOptions(**{**values, **settings})


@pytest.mark.parametrize("kind", ["random", "bm25"])
def test_the_file_is_read_as_groups(tmp_path, kind):
    sessions = [*make_sessions(), Session("short", (Utterance("a", "hi"),))]
    built = build_candidates(options(tmp_path, sessions, negatives_from=kind, candidates=5))
    read = list(read_groups(tmp_path / "groups.jsonl", "jsonl", BadLines(0)))
    ranker = by_words if kind == "bm25" else None
    expected = build(make_sessions(), ranker=ranker, turns=10, same_role=True)
    assert read == [group for group, _ in expected]
    assert (built.sessions, built.groups) == (40, 40)
    assert built.drawn == sum(drawn for _, drawn in expected)
    assert built.left_out["short_sessions"] == 1


def test_an_encoder_finds_the_nearest(tmp_path, monkeypatch):
    class Encoder:
        encode = staticmethod(embed)

    loaded = []
    monkeypatch.setattr(
        "dcse_tf.encoder.sentence_encoder.SentenceEncoder.load",
        lambda model: loaded.append(model) or Encoder,
    )
    settings = {"negatives_from": "model", "model": "run", "skip_top": 1, "candidates": 5}
    build_candidates(options(tmp_path, make_sessions(), **settings))
    read = list(read_groups(tmp_path / "groups.jsonl", "jsonl", BadLines(0)))
    assert loaded == ["run"]
    assert read == groups_of(
        make_sessions(), ranker=by_letters, skip_top=1, turns=10, same_role=True
    )


def test_negatives_come_from_the_split_of_their_response(tmp_path):
    sessions = make_sessions(120)
    shares = {"dev_fraction": 0.3, "test_fraction": 0.2, "seed": 3}
    config = options(tmp_path, sessions, negatives_from="bm25", candidates=5, **shares)
    built = build_candidates(config)
    groups = list(read_groups(tmp_path / "groups.jsonl", "jsonl", BadLines(0)))
    assert built.groups == len(groups) == 120
    split_of = {s.session_id: config.split_of(s.session_id) for s in sessions}
    said = collections.defaultdict(set)
    for session in sessions:
        said[split_of[session.session_id]] |= {turn.text.casefold() for turn in session.turns}
    for group in groups:
        negatives = {text.casefold() for text in group.candidates[1:]}
        assert negatives <= said[split_of[group.dialogue]]
    # As if each split were built alone.
    for split in ("train", "dev", "test"):
        own = [session for session in sessions if split_of[session.session_id] == split]
        expected = groups_of(own, ranker=by_words, seed=3, turns=10, same_role=True)
        assert [group for group in groups if split_of[group.dialogue] == split] == expected


def test_copies_of_a_session_belong_to_the_dialogue_of_the_first(tmp_path):
    """So `prepare_data` puts their groups into the split that it puts the sessions into."""
    sessions = make_sessions(40)
    copies = [Session(f"copy of {s.session_id}", s.turns) for s in sessions]
    shares = {"dev_fraction": 0.3, "test_fraction": 0.2}
    build_candidates(options(tmp_path, [*sessions, *copies], candidates=3, **shares))
    groups = list(read_groups(tmp_path / "groups.jsonl", "jsonl", BadLines(0)))
    found = collections.Counter(group.dialogue for group in groups)
    assert found == {session.session_id: 2 for session in sessions}


def test_what_cannot_be_built_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match=r"no response with a turn before it .41 sessions read"):
        build_candidates(options(tmp_path, make_sessions(41), roles=("c",)))
    with pytest.raises(InputError, match="too few for `candidates`=90"):
        build_candidates(options(tmp_path, make_sessions(), candidates=90))
    with pytest.raises(InputError, match="of other sessions of the dev split, too few"):
        build_candidates(options(tmp_path, make_sessions(), candidates=15, dev_fraction=0.2))
    silent = [Session("s", (Utterance("a", "?"), Utterance("b", "!")))]
    with pytest.raises(InputError, match="no response has a word"):
        build_candidates(options(tmp_path, silent, negatives_from="bm25"))
    assert [path.name for path in tmp_path.iterdir()] == ["dialogues.jsonl"]


def test_the_command_builds_once_and_starts_no_tensorflow(tmp_path, no_tensorflow):
    path = write(tmp_path / "dialogues.jsonl", make_sessions())
    flags = ["--format=jsonl", f"--input={path}", f"--output={tmp_path}/groups.jsonl"]
    command = [
        sys.executable,
        "-m",
        "dcse_tf.cli",
        "build_candidates",
        *flags,
        "--negatives_from=bm25",
    ]

    def run(*more):
        return subprocess.run([*command, *more], env=no_tensorflow, capture_output=True, text=True)

    done = run()
    assert done.returncode == 0, done.stderr
    first, left_out, last = done.stdout.splitlines()
    assert first.startswith("40 groups of 10 candidates from 40 sessions with ")
    assert left_out == (
        "left out: 0 bad_lines, 0 short_sessions, 0 sessions_without_response, 0 empty_utterances"
    )
    assert last.endswith(f"--candidates_file={tmp_path}/groups.jsonl")
    again = run()
    assert again.returncode == 1
    assert "groups.jsonl already exists; give another file, or --overwrite" in again.stderr
    assert run("--overwrite").returncode == 0


@pytest.mark.slow
def test_memory_does_not_grow_with_the_square_of_the_sessions():
    """20,000 sessions: their scores all at once would take 1.6 GB."""
    sessions = make_sessions(20_000)
    chosen = choose_responses(sessions, "one", (), 0)
    pool = Pool(chosen)
    negatives = Negatives(pool, 9, 0, CosineRanker(pool.texts, lambda texts: embed(texts)[:, :4]))
    tracemalloc.start()
    groups = negatives.choose(chosen, 10)
    for _ in range(1500):
        next(groups)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500e6
