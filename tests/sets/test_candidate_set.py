"""Grouped candidates built from dialogues: which responses, which negatives, and in what form."""

import collections
import itertools
import json
import re

import pytest
from rank_bm25 import BM25Okapi
from written_dialogues import json_lines

from dcse_tf.data.formats import read_groups
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines
from dcse_tf.sets.candidate_set import BuildCandidatesOptions, build_candidates

TOPICS = ("parcel", "refund", "cup", "size", "colour")
COMMON = ("OK", "ok", "Thanks", "thanks")


def make_sessions(count=40):
    """Id -> turns of a topic, by two speakers; every session says something common."""
    sessions = {}
    for number in range(count):
        topic = TOPICS[number % len(TOPICS)]
        turns = [f"my {topic} {number}", f"the {topic} {number} is here", COMMON[number % 4]]
        sessions[f"s{number}"] = turns + [f"bye {number} {topic}"][: number % 2]
    return sessions


@pytest.fixture
def build(tmp_path):
    """Builds groups of sessions; returns what the job says, and the groups by id."""

    def run(sessions=None, roles="ab", **settings):
        spoken = {
            name: [(roles[place % 2], text) for place, text in enumerate(turns)]
            for name, turns in (sessions or make_sessions()).items()
        }
        (tmp_path / "dialogues.jsonl").write_text(json_lines(spoken))
        output = tmp_path / "groups.jsonl"
        values = {"candidates": 5, "same_role": False, "overwrite": True, **settings}
        config = BuildCandidatesOptions(
            format="jsonl", input=(str(tmp_path / "dialogues.jsonl"),), output=str(output), **values
        )
        built = build_candidates(config)
        return built, {group.id: group for group in read_groups(output, "jsonl", BadLines(0))}

    return run


@pytest.mark.parametrize("kind", ["random", "bm25"])
@pytest.mark.parametrize("responses", ["one", "all"])
def test_negatives_are_others_responses_and_nothing_said_in_the_session(build, kind, responses):
    built, groups = build(responses=responses, negatives_from=kind)
    sessions = make_sessions()
    assert len(groups) == (40 if responses == "one" else 40 * 2 + 20)
    assert built.startswith(f"{len(groups)} groups of 5 candidates from 40 sessions with ")
    for name, group in groups.items():
        session, place = name.split(":")
        turns = sessions[session]
        assert [turn.text for turn in group.context] == turns[: int(place)]
        assert group.candidates[0] == turns[int(place)]
        assert group.responder == "ab"[int(place) % 2]
        assert group.labels == (1, 0, 0, 0, 0)
        keys = [text.casefold() for text in group.candidates]
        assert len(set(keys)) == 5
        assert not set(keys[1:]) & {text.casefold() for text in turns}
    assert len({group.candidates[1:] for group in groups.values()}) > 20


def test_what_is_drawn_depends_on_the_seed_and_the_session_alone(build):
    sessions = make_sessions()
    _, first = build(sessions)
    assert build(dict(reversed(sessions.items())))[1] == first
    assert set(build(seed=1)[1]) != set(first)  # other turns of the sessions
    _, half = build(dict(list(sessions.items())[:20]))
    assert {n: g.candidates[0] for n, g in half.items()}.items() <= {
        n: g.candidates[0] for n, g in first.items()
    }.items()


def test_the_context_is_the_last_turns(build):
    for turns, expected in ((1, 1), (2, 2), (0, 3)):
        _, groups = build(responses="all", context_turns=turns)
        assert max(len(group.context) for group in groups.values()) == expected


@pytest.mark.parametrize("skip_top", [0, 2])
def test_bm25_takes_what_rank_bm25_ranks_first(build, skip_top):
    built, groups = build(negatives_from="bm25", skip_top=skip_top)
    pool = {}
    for text in sorted(group.candidates[0] for group in groups.values()):
        pool.setdefault(text.casefold(), text)
    pool = list(pool.values())
    library = BM25Okapi([re.findall(r"\w+", text.casefold()) for text in pool])
    sessions, near = make_sessions(), 0
    for name, group in groups.items():
        query = " ".join(turn.text for turn in group.context).casefold().split()
        scores = library.get_scores(query)
        said = {text.casefold() for text in sessions[name.split(":")[0]]}
        order = sorted(range(len(pool)), key=lambda place: (-scores[place], place))
        allowed = [pool[p] for p in order if pool[p].casefold() not in said and scores[p] > 0]
        expected = allowed[skip_top : skip_top + 4]
        near += len(expected)
        assert list(group.candidates[1:])[: len(expected)] == expected
        assert not set(allowed[:skip_top]) & set(group.candidates)  # not among those drawn either
    # What shares no word is not near.
    assert f"; {40 * 4 - near} negatives drawn at random\n" in built
    assert near < 40 * 4


def test_what_is_drawn_besides_the_nearest_repeats_none_of_them(build):
    """Each context has a word of one other response; with it, all five others are candidates."""
    sessions = {f"s{n}": [f"w{n % 3} a{n}", f"w{n % 3} b{n}"] for n in range(6)}
    _, groups = build(sessions, negatives_from="bm25", candidates=6)
    responses = {turns[1] for turns in sessions.values()}
    assert all(set(group.candidates) == responses for group in groups.values())


def test_negatives_are_of_the_responders_role_if_there_are_enough(build):
    _, groups = build(same_role=True)
    said = collections.defaultdict(set)
    for group in groups.values():
        said[group.responder].add(group.candidates[0].casefold())
    assert len(said["a"]) < 5 < len(said["b"])  # a only says OK and thanks
    for group in groups.values():
        negatives = {text.casefold() for text in group.candidates[1:]}
        assert (negatives <= said[group.responder]) == (group.responder == "b")
    sessions = make_sessions(12)
    assert len(build(sessions, same_role=True, candidates=9)[1]) == 12  # too few of a role


def test_negatives_come_from_the_split_of_their_response_and_copies_share_one(build):
    sessions = make_sessions(80)
    sessions |= {f"copy of {name}": turns for name, turns in make_sessions(10).items()}
    shares = {"dev_fraction": 0.3, "test_fraction": 0.2, "seed": 3}
    _, groups = build(sessions, negatives_from="bm25", **shares)
    assert len(groups) == 90
    options = BuildCandidatesOptions(input=("a",), output="b", **shares)
    said = collections.defaultdict(set)
    for group in groups.values():
        said[options.split_of(group.dialogue)].add(group.candidates[0].casefold())
    assert set(said) == {"train", "dev", "test"}
    for group in groups.values():
        negatives = {text.casefold() for text in group.candidates[1:]}
        assert negatives <= said[options.split_of(group.dialogue)]
    # So `prepare_data` puts their groups into the split that it puts the sessions into.
    copies = {group.dialogue for name, group in groups.items() if name.startswith("copy")}
    assert copies == {f"s{number}" for number in range(10)}


@pytest.mark.parametrize("format", ["candidates", "jsonl"])
def test_negatives_are_not_of_another_piece_of_the_dialogue(build, tmp_path, format):
    """Groups of candidates are pieces of dialogues, and so are sessions that name theirs."""
    lines = []
    for number, end in itertools.product(range(12), range(1, 6)):
        turns = [{"role": "a", "text": f"{number} says {place}"} for place in range(end + 1)]
        names = {"dialogue": f"d{number}", "id": f"{number}:{end}", "session_id": f"{number}:{end}"}
        texts = {"candidates": [turns[-1]["text"], "never"], "labels": [1, 0], "responder": "b"}
        lines.append(json.dumps(names | texts | {"turns": turns, "context": turns[:-1]}) + "\n")
    (tmp_path / "in.jsonl").write_text("".join(lines))
    output = tmp_path / "out.jsonl"
    files = {"input": (str(tmp_path / "in.jsonl"),), "output": str(output)}
    build_candidates(BuildCandidatesOptions(format=format, join_consecutive=False, **files))
    groups = list(read_groups(output, "jsonl", BadLines(0)))
    assert len(groups) == 60
    for group in groups:
        own = group.candidates[0].split()[0]
        assert group.dialogue == f"d{own}"
        assert own not in {text.split()[0] for text in group.candidates[1:]}


def test_what_cannot_be_built_is_refused_and_leaves_nothing(build, tmp_path):
    for settings, message in (
        ({"sessions": {"s": ["alone"]}}, "no session of at least 2 turns .1 sessions too short"),
        ({"candidates": 90}, "`candidates`=90"),
        ({"candidates": 15, "dev_fraction": 0.2}, "of its split"),
        ({"sessions": {"s": ["?", "!"]}, "negatives_from": "bm25"}, "no response has a word"),
    ):
        with pytest.raises(InputError, match=message):
            build(**settings)
        assert [path.name for path in tmp_path.iterdir()] == ["dialogues.jsonl"]
