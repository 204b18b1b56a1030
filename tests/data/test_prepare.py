"""prepare_data: from files of dialogues to records, splits, and a manifest."""

import collections
import dataclasses
import functools
import hashlib
import json
import random

import numpy as np
import pytest
import tensorflow as tf
from dialogue_files import DIALOGUES, FORMATS, read_ids, read_records, read_tokens, run, tsv
from lettered_corpus import CLS, SEP, UNK, prepare_sessions, turn_ids
from written_dialogues import json_lines

from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.data.corpus import PrepareOptions, SplitOptions, Splitter
from dcse_tf.data.dialogue import GivenCandidates, Session, Utterance
from dcse_tf.data.formats.reading import read_jsonl
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.records import parse_session, serialize_session
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines

FRACTIONS = {"dev_fraction": 0.3, "test_fraction": 0.2}


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_same_records(tmp_path, form):
    manifest = run(tmp_path, FORMATS[form](DIALOGUES), format=form, shards=2)
    expected = [
        [turn_ids(0, 0), turn_ids(0, 1), turn_ids(0, 2)],
        # Two utterances of one speaker are one turn.
        [turn_ids(1, 0, words=2), turn_ids(1, 1)],
        [turn_ids(2, 0), turn_ids(2, 1)],
    ]
    assert read_tokens(tmp_path, manifest) == expected
    # 7 turns of [CLS], two words and [SEP], one of them with two words more.
    train = manifest.splits["train"]
    assert (train.sessions, train.utterances, train.tokens) == (3, 7, 30)
    assert manifest.dropped == {"short_sessions": 0, "empty_utterances": 0, "bad_lines": 0}
    assert train.given is None
    plain = json.loads(json.dumps(manifest.settings))
    assert read_manifest(tmp_path / "data") == dataclasses.replace(manifest, settings=plain)
    known = run(tmp_path, tsv(DIALOGUES), name="other", overwrite=True)
    assert known.corpus_fingerprint == manifest.corpus_fingerprint
    changed = run(tmp_path, tsv(DIALOGUES).replace("t2", "t3"), overwrite=True)
    assert changed.corpus_fingerprint != manifest.corpus_fingerprint


def test_a_record_holds_tokens_fingerprints_and_speakers():
    def fingerprint(content):
        digest = hashlib.blake2b(content, digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)

    rows = [[2, 5, 3], [2, 300, 3], [2, 5, 3], [2, 7, 3]]
    said = ["client", "agent", "client", "Agent"]
    session = Session("对话 1", tuple(Utterance(role, "x") for role in said))
    record = serialize_session(session, [np.array(row, np.int32) for row in rows])
    assert record == serialize_session(session, [np.array(row, np.int64) for row in rows])
    features = parse_session(tf.constant(record))
    assert features["token_ids"].to_list() == rows
    assert int(features["session"]) == fingerprint("对话 1".encode())
    # Little-endian 32-bit integers: 300 = 44 + 256.
    expected = [fingerprint(b"".join(i.to_bytes(4, "little") for i in row)) for row in rows]
    assert features["utterances"].numpy().tolist() == expected
    assert features["speakers"].numpy().tolist() == [0, 1, 0, 2]
    assert features["roles"].numpy().tolist() == [fingerprint(role.encode()) for role in said]
    # protobuf writes the entries of a map in an order of the process's own, if it may.
    names = sorted(tf.train.Example.FromString(record).features.feature)
    places = [record.index(name.encode()) for name in names]
    assert places == sorted(places)


def test_sessions_go_to_the_shards_in_turn(tmp_path):
    manifest = prepare_sessions(tmp_path, [2] * 8, shards=3)
    sizes = []
    for shard in manifest.splits["train"].shards:
        path = tmp_path / "data" / shard["name"]
        records = map(parse_session, tf.data.TFRecordDataset(str(path)))
        sizes.append([int(record["token_ids"][0, 1]) - 5 for record in records])
        assert shard["bytes"] == path.stat().st_size
    assert sizes == [[0, 3, 6], [1, 4, 7], [2, 5]]


# Splits


def test_the_split_of_a_session_depends_on_its_id_and_the_seed_alone(tmp_path):
    ids = [f"id {number}" for number in range(200)]
    found = []
    for name, chosen in (("all", ids), ("half", ids[::-2]), ("seed", ids)):
        (tmp_path / name).mkdir()
        content = tsv(dict.fromkeys(chosen, DIALOGUES["a"]))
        manifest = run(tmp_path / name, content, **FRACTIONS, seed=int(name == "seed"))
        dev, test = (read_ids(tmp_path / name, split) for split in ("dev", "test"))
        assert manifest.splits["train"].sessions == len(chosen) - len(dev) - len(test)
        found.append((dev, test))
    # 200 x 0.3 = 60 and 200 x 0.2 = 40; three standard deviations are 20 and 17.
    assert abs(len(found[0][0]) - 60) < 20
    assert abs(len(found[0][1]) - 40) < 17
    half = set(ids[::-2])
    assert (found[0][0] & half, found[0][1] & half) == found[1]
    assert found[0] != found[2]


# A session in other words for its copies: other ids, speakers, cases, spaces, tags and turns.
COPIES = [
    [("x", "s{0} t0 w0 w1"), ("y", "s{0} t1 w2 w3")],
    [("agent", "<b>S{0}</b>  T0 w0 W1"), ("user", "s{0} t1 w2 w3")],
    [("x", "s{0} t0"), ("y", "w0 w1"), ("x", "s{0} t1 w2"), ("y", " "), ("x", "w3")],
]


def _copied_corpus(sessions=60, copies=4):
    """The sessions, and then their copies under other ids; the id of a session is its number."""
    return {
        str(number + sessions * copy): [(r, t.format(number)) for r, t in COPIES[copy % 3]]
        for copy in range(copies)
        for number in range(sessions)
    }


def test_copies_of_a_session_go_where_the_first_went(tmp_path):
    """A session of fewer than 20 characters, "s7 t0 s7 t1", may have its equal by chance."""
    corpus = _copied_corpus()
    corpus |= {f"short {n}": [("x", "s7 t0"), ("y", "s7 t1")] for n in range(60)}
    run(tmp_path, json_lines(corpus), format="jsonl", strip_html=True, **FRACTIONS)
    config = SplitOptions(input=("some.tsv",), **FRACTIONS)
    for split in ("dev", "test"):
        firsts = [number for number in range(60) if config.split_of(str(number)) == split]
        assert len(firsts) > 5
        expected = {str(number + 60 * copy) for number in firsts for copy in range(4)}
        short = (f"short {n}" for n in range(60))
        expected |= {name for name in short if config.split_of(name) == split}
        assert read_ids(tmp_path, split) == expected


def test_equal_pieces_of_different_dialogues_go_where_their_dialogues_go():
    values = {"input": ("a",), "output_dir": "b", "vocab_size": 99}
    config = PrepareOptions(dev_fraction=0.5, test_fraction=0.4, **values)
    turns = Utterance("a", "where is my blue parcel"), Utterance("b", "ok")
    find_split, names = Splitter(config), [f"d{n}" for n in range(20)]
    found = [find_split(Session(f"{x}:1", turns, GivenCandidates(x, ()))) for x in names]
    assert found == [config.split_of(name) for name in names]
    assert len({*found}) > 1


def test_sessions_of_one_id_are_one_dialogue(tmp_path):
    """Whether the id comes again in the file or in another one, and whatever they say."""
    again = {str(n): [("x", "s1 t2 w0 w1 w2 w3"), ("y", f"s{n} t3 w2 w3")] for n in range(30)}
    (tmp_path / "more").write_text(json_lines(again))
    content = json_lines(_copied_corpus(30, 1)) + json_lines(again)
    paths = (str(tmp_path / "corpus"), str(tmp_path / "more"))
    manifest = run(tmp_path, content, format="jsonl", input=paths, dev_fraction=0.4)
    sessions = list(read_jsonl(tmp_path / "data/dev.jsonl", BadLines(0)))
    counts = collections.Counter(session_id for session_id, _ in sessions)
    assert set(counts.values()) == {3}
    # Sessions of one fingerprint are no negatives of each other.
    records = map(parse_session, read_records(tmp_path, manifest, "dev"))
    assert len({int(record["session"]) for record in records}) == len(counts)


def test_dev_and_test_are_files_of_sessions_again(tmp_path):
    dialogues = {f"对话 {number}": DIALOGUES["b"] for number in range(60)}
    manifest = run(tmp_path, tsv(dialogues), **FRACTIONS)
    for split in ("dev", "test"):
        sessions = list(read_jsonl(tmp_path / f"data/{split}.jsonl", BadLines(0)))
        assert len(sessions) == manifest.splits[split].sessions > 0
        said = [("x", "s1 t0 w0 w1"), ("y", "s1 t1")]
        for session_id, turns in sessions:
            assert session_id in dialogues
            assert [(turn.role, turn.text) for turn in turns] == said
        expected = [[turn_ids(1, 0, words=2), turn_ids(1, 1)]] * len(sessions)
        assert read_tokens(tmp_path, manifest, split) == expected
    assert not (tmp_path / "data/train.jsonl").exists()


# What is left out


@pytest.mark.parametrize("silence", ["", "\u200b", "\ufffd"])
def test_silence_is_dropped_and_counted(tmp_path, silence):
    """Texts in which the tokenizer finds nothing go too, but part two utterances of a speaker."""
    dialogues = {**DIALOGUES, "d": [("x", "s3 t0"), ("y", silence)], "e": [("x", silence)]}
    dialogues["c"] = [("x", "s2 t0"), ("y", silence), ("x", "w0"), ("y", "s2 t1")]
    manifest = run(tmp_path, json_lines(dialogues), format="jsonl")
    parted = [turn_ids(2, 0), [CLS, turn_ids(0, 0, words=1)[3], SEP], turn_ids(2, 1)]
    joined = [turn_ids(2, 0, words=1), turn_ids(2, 1)]
    assert read_tokens(tmp_path, manifest)[2] == (parted if silence == "\ufffd" else joined)
    assert manifest.dropped["empty_utterances"] == 3
    assert manifest.dropped["short_sessions"] == 2


def test_long_utterances_are_cut_and_counted(tmp_path):
    """With [CLS] and [SEP], 5 tokens hold 3 words: the turns of 3 stay, those of 4 are cut."""
    dialogues = {"a": [("x", "s0 t0 w0"), ("y", "s0 t1 w0 w1")], "b": [("x", "s1 t0 w0 w1 w2 w3")]}
    dialogues["b"].append(("y", "nonsense"))
    manifest = run(tmp_path, tsv(dialogues), max_sequence_length=5)
    expected = [[turn_ids(0, 0, words=1), turn_ids(0, 1, words=1)]]
    expected += [[turn_ids(1, 0, words=1), [CLS, UNK, SEP]]]
    assert read_tokens(tmp_path, manifest) == expected
    train = manifest.splits["train"]
    assert (train.truncated_utterances, train.tokens) == (2, 18)


@pytest.mark.parametrize(("known", "warned"), [(95, False), (94, True)])
def test_unknown_tokens_above_five_percent_are_warned_of(tmp_path, caplog, known, warned):
    """5 unknown of 100 tokens are not too many; 5 of 99 are."""
    dialogues = {"a": [("x", "您好您好"), ("y", "好" + " w1" * (known - 4)), ("x", "s0 t0 w0 w1")]}
    manifest = run(tmp_path, tsv(dialogues), max_sequence_length=200)
    assert (manifest.found["unknown_tokens"], manifest.found["tokens"]) == (5, known + 5)
    assert ("are [UNK]" in caplog.text) == warned


def test_settings_change_what_is_kept(tmp_path):
    def prepared(content="", **settings):
        manifest = run(tmp_path, content or tsv(DIALOGUES), overwrite=True, **settings)
        train = manifest.splits["train"]
        return train.sessions, train.utterances, manifest.dropped["bad_lines"]

    assert prepared(join_consecutive=False) == (3, 8, 0)
    assert prepared(min_turns=3) == (1, 3, 0)
    assert prepared(max_sessions=2) == (2, 5, 0)
    assert prepared(tsv(DIALOGUES).encode() + b"broken\n\xff\n", max_bad_lines=2) == (3, 7, 2)
    html = json_lines({"a": [("x", "<b>s0</b> t0"), ("y", "s0&#32;t1")]})
    assert prepared(html, format="jsonl", strip_html=True) == (1, 2, 0)
    # The second speaker's first turn is an image, so that the first one says two.
    one_role = {"a": [("x", "s0 t0"), ("x", "<img>"), ("x", "s0 t1"), ("x", "s0 t2")]}
    assert prepared(tsv(one_role), alternate_roles=True, strip_html=True) == (1, 2, 0)
    latin = tsv({"ä": DIALOGUES["a"]}).encode("latin-1")
    assert prepared(latin, encoding="latin-1") == (1, 3, 0)


def test_a_prefix_must_leave_room_for_a_text(tmp_path):
    with pytest.raises(InputError, match=r"`max_sequence_length`=3: the prefix 'w0 ' leaves no"):
        run(tmp_path, tsv(DIALOGUES), prefix="w0 ", max_sequence_length=3)
    manifest = run(tmp_path, tsv(DIALOGUES), prefix="w0 ", max_sequence_length=4)
    cut = [CLS, turn_ids(0, 0, words=1)[3], turn_ids(0, 0)[1], SEP]
    assert read_tokens(tmp_path, manifest)[0] == [cut] * 3


@pytest.mark.parametrize(
    ("content", "counted"),
    [
        ("", "0 sessions too short"),
        (json_lines({k: [("x", ""), ("y", "\ufffd")] for k in "ab"}), "4 utterances without text"),
        (json_lines({"a": [("x", "s0"), ("x", "t0")]}), r"\(1 by joining turns"),
        (json_lines(dict.fromkeys("abc", DIALOGUES["c"])), "3 sessions held out"),
    ],
)
def test_a_corpus_without_a_session_to_train_on_is_refused(tmp_path, content, counted):
    held_out = {"dev_fraction": 0.5, "test_fraction": 0.4999, "seed": 1}
    settings = held_out if "held out" in counted else {}
    with pytest.raises(InputError, match=f"no session of at least 2 turns for training.*{counted}"):
        run(tmp_path, content, format="jsonl", **settings)
    assert not (tmp_path / "data").exists()


# The folder


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_output_appears_complete_or_not_at_all(tmp_path, overwrite):
    """A bad last line stops the job; what was there before stays."""
    if overwrite:
        run(tmp_path, tsv(DIALOGUES))
        with pytest.raises(FileExistsError, match=r"data already exists.*`overwrite`"):
            run(tmp_path, tsv(DIALOGUES))
    with pytest.raises(InputError, match=r"corpus:9: expected session_id"):
        run(tmp_path, tsv(DIALOGUES) + "broken\n", overwrite=overwrite)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"corpus", "vocab", *(["data"] if overwrite else [])}
    if overwrite:
        assert read_manifest(tmp_path / "data").splits["train"].sessions == 3
        run(tmp_path, tsv({"a": DIALOGUES["a"]}), overwrite=True)
        assert read_manifest(tmp_path / "data").splits["train"].sessions == 1


def test_a_vocabulary_is_trained_on_the_train_split_alone(tmp_path):
    dialogues = {str(n): [("x", f"wort{n} common"), ("y", "common word")] for n in range(40)}
    run(tmp_path, tsv(dialogues), vocab="", vocab_size=2000, dev_fraction=0.5)
    tokens = set(read_vocabulary(tmp_path / "data/vocabulary").tokens)
    assert {"common", "word"} <= tokens


# Chunks


def _mixed_corpus():
    """Sessions of all kinds, with long, silent and bad lines."""
    rng, lines = random.Random(0), []
    for session in range(60):
        for turn in range(rng.randrange(1, 7)):
            words = " ".join(f"w{word}" for word in range(rng.randrange(0, 6)))
            text = rng.choice([f"s{session} t{turn} {words}", "", f"{words} unheard"])
            lines.append(f"session {session}\t{'ab'[turn % 2]}\t{text}")
            if len(lines) % 19 == 0:
                lines.append(f"broken {len(lines)}")
    return "\n".join(lines) + "\n"


SETTINGS = {"max_sequence_length": 6, "shards": 3, "max_bad_lines": 100, **FRACTIONS}


def test_what_is_written_does_not_depend_on_chunks(tmp_path, monkeypatch, caplog):
    def read_folder():
        paths = (path for path in (tmp_path / "data").rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in paths}

    content = _mixed_corpus()
    prepare_it = functools.partial(run, tmp_path, content, overwrite=True)
    manifest = prepare_it(**SETTINGS)
    whole = read_folder()
    # The corpus has something of everything.
    assert all(manifest.dropped.values())
    assert all(s.sessions and s.truncated_utterances for s in manifest.splits.values())
    monkeypatch.setattr("dcse_tf.data.prepare._TURNS", 10)
    prepare_it(**SETTINGS)
    assert read_folder() == whole
    # Bad lines are named in order, and limited.
    caplog.clear()
    lines = content.splitlines()
    broken = [n for n, line in enumerate(lines, start=1) if line.startswith("broken")]
    with pytest.raises(InputError, match=rf"corpus:{broken[5]}: expected .*\(bad line 6; "):
        prepare_it(**{**SETTINGS, "max_bad_lines": 5})
    named = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert [int(message.split(":")[1]) for message in named] == broken[:5]
