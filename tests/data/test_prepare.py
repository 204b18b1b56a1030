import collections
import dataclasses
import functools
import gzip
import json
import multiprocessing

import pytest
import tensorflow as tf
from dialogue_files import DIALOGUES, FORMATS, json_lines, read_ids, read_tokens, run, tsv
from lettered_corpus import CLS, SEP, UNK, prepare_sessions, turn_ids
from worker_functions import Killed

from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.data.formats import jsonl
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.options import PrepareOptions, SplitOptions
from dcse_tf.data.prepare import prepare
from dcse_tf.data.processes import map_in_order
from dcse_tf.data.records import parse_session, shard_paths
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines


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
    assert read_manifest(tmp_path / "data") == dataclasses.replace(
        manifest, settings=json.loads(json.dumps(manifest.settings))
    )


def test_formats_are_told_apart_by_nothing_but_their_form(tmp_path):
    fingerprints = set()
    for form, write in FORMATS.items():
        (tmp_path / form).mkdir()
        manifest = run(tmp_path / form, write(DIALOGUES), format=form)
        fingerprints.add((manifest.corpus_fingerprint, manifest.tokenizer_fingerprint))
    (tmp_path / "packed").mkdir()
    packed = gzip.compress(tsv(DIALOGUES).encode())
    manifest = run(tmp_path / "packed", packed, name="corpus.gz")
    fingerprints.add((manifest.corpus_fingerprint, manifest.tokenizer_fingerprint))
    assert len(fingerprints) == 1
    (tmp_path / "other").mkdir()
    other = run(tmp_path / "other", tsv(DIALOGUES).replace("t2", "t3"))
    assert other.corpus_fingerprint not in {corpus for corpus, _ in fingerprints}


def test_joining_can_be_left_out(tmp_path):
    manifest = run(tmp_path, tsv(DIALOGUES), join_consecutive=False)
    assert manifest.splits["train"].utterances == 8


def test_the_split_of_a_session_depends_on_its_id_and_the_seed_alone(tmp_path):
    ids = [f"id {number}" for number in range(200)]
    fractions = {"dev_fraction": 0.2, "test_fraction": 0.1}
    found = []
    for name, chosen in (("all", ids), ("half", ids[::-2]), ("seed", ids)):
        (tmp_path / name).mkdir()
        content = tsv(dict.fromkeys(chosen, DIALOGUES["a"]))
        manifest = run(tmp_path / name, content, **fractions, seed=int(name == "seed"))
        dev, test = (read_ids(tmp_path / name, split) for split in ("dev", "test"))
        assert not dev & test
        assert manifest.splits["dev"].sessions == len(dev)
        assert manifest.splits["train"].sessions == len(chosen) - len(dev) - len(test)
        found.append((dev, test))
    # 200 x 0.2 = 40 and 200 x 0.1 = 20; three standard deviations are 17 and 13.
    assert abs(len(found[0][0]) - 40) < 17
    assert abs(len(found[0][1]) - 20) < 13
    half = set(ids[::-2])
    assert (found[0][0] & half, found[0][1] & half) == found[1]
    assert found[0] != found[2]


# A session in other words for its copies: other ids, speakers, cases, spaces and turns.
COPIES = [
    [("x", "s{0} t0 w0 w1"), ("y", "s{0} t1 w2 w3")],
    [("agent", "S{0}  T0 w0 W1"), ("user", "s{0} t1 w2 w3")],
    [("x", "s{0} t0"), ("y", "w0 w1"), ("x", "s{0} t1 w2"), ("y", " "), ("x", "w3")],
]


def _copied_corpus(sessions=60, copies=4):
    """The sessions, and then their copies under other ids; the id of a session is its number."""
    return {
        str(number + sessions * copy): [(r, t.format(number)) for r, t in COPIES[copy % 3]]
        for copy in range(copies)
        for number in range(sessions)
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_copies_of_a_session_go_where_the_first_went(tmp_path, many_chunks, workers):
    many_chunks(50)
    fractions = {"dev_fraction": 0.3, "test_fraction": 0.2}
    content = json_lines(_copied_corpus())
    manifest = run(tmp_path, content, format="jsonl", workers=workers, **fractions)
    config = SplitOptions(input=("some.tsv",), **fractions)
    for split in ("dev", "test"):
        firsts = [number for number in range(60) if config.split_of(str(number)) == split]
        assert len(firsts) > 5
        expected = {str(number + 60 * copy) for number in firsts for copy in range(4)}
        assert read_ids(tmp_path, split) == expected
    assert (manifest.found["copies"], manifest.found["held_out_copies"]) == (180, 0)


def test_sessions_of_one_id_are_one_dialogue(tmp_path):
    """Whether the id comes again in the file or in another one, and whatever they say."""
    again = {str(n): [("x", "s1 t2 w0 w1 w2 w3"), ("y", f"s{n} t3 w2 w3")] for n in range(30)}
    (tmp_path / "more").write_text(json_lines(again))
    content = json_lines(_copied_corpus(30, 1)) + json_lines(again)
    paths = (str(tmp_path / "corpus"), str(tmp_path / "more"))
    manifest = run(tmp_path, content, format="jsonl", input=paths, dev_fraction=0.4)
    sessions = list(jsonl.read_sessions(tmp_path / "data/dev.jsonl", BadLines(0)))
    counts = collections.Counter(session_id for session_id, _ in sessions)
    assert set(counts.values()) == {3}
    assert 3 < len(counts) < 30
    assert manifest.found["copies"] == 30
    # Sessions of one fingerprint are no negatives of each other.
    paths = shard_paths(tmp_path / "data", manifest.splits["dev"])
    records = map(parse_session, tf.data.TFRecordDataset(list(paths)))
    assert len({int(record["session"]) for record in records}) == len(counts)


def test_copies_do_not_move_other_sessions_and_greetings_are_no_copies(tmp_path):
    """A session of fewer than 20 characters, "s7 t0 s7 t1", may have its equal by chance."""
    fractions = {"dev_fraction": 0.3, "test_fraction": 0.2}
    (tmp_path / "short").mkdir()
    short = {str(number): [("x", "s7 t0"), ("y", "s7 t1")] for number in range(60)}
    manifest = run(tmp_path / "short", tsv(short), **fractions)
    assert manifest.found["copies"] == 0
    run(tmp_path, json_lines(_copied_corpus(copies=1)), format="jsonl", **fractions)
    config = SplitOptions(input=("some.tsv",), **fractions)
    for split in ("dev", "test"):
        expected = {str(number) for number in range(60) if config.split_of(str(number)) == split}
        assert read_ids(tmp_path / "short", split) == read_ids(tmp_path, split) == expected


def test_shares_of_the_splits_are_held():
    config = SplitOptions(input=("some.tsv",), dev_fraction=0.3, test_fraction=0.2)
    splits = [config.split_of(str(number)) for number in range(4000)]
    # Three standard deviations: 3 x sqrt(0.25 / 4000) = 0.024.
    for name, share in (("train", 0.5), ("dev", 0.3), ("test", 0.2)):
        assert abs(splits.count(name) / 4000 - share) < 0.024


def test_dev_and_test_are_files_of_sessions_again(tmp_path):
    dialogues = {f"对话 {number}": DIALOGUES["b"] for number in range(60)}
    manifest = run(tmp_path, tsv(dialogues), dev_fraction=0.3, test_fraction=0.3)
    for split in ("dev", "test"):
        path = tmp_path / f"data/{split}.jsonl"
        sessions = list(jsonl.read_sessions(path, BadLines(0)))
        assert len(sessions) == manifest.splits[split].sessions > 0
        for session_id, turns in sessions:
            assert session_id in dialogues
            assert [(turn.role, turn.text) for turn in turns] == [
                ("x", "s1 t0 w0 w1"),
                ("y", "s1 t1"),
            ]
        expected = [[turn_ids(1, 0, words=2), turn_ids(1, 1)]] * len(sessions)
        assert read_tokens(tmp_path, manifest, split) == expected
    assert not (tmp_path / "data/train.jsonl").exists()


def test_short_sessions_are_dropped_and_counted(tmp_path):
    dialogues = {**DIALOGUES, "d": [("x", "s3 t0")], "e": [("x", "s4 t0"), ("x", "s4 t1")]}
    manifest = run(tmp_path, tsv(dialogues), min_turns=3)
    assert read_tokens(tmp_path, manifest) == [[turn_ids(0, 0), turn_ids(0, 1), turn_ids(0, 2)]]
    assert manifest.dropped["short_sessions"] == 4


@pytest.mark.parametrize("silence", ["", "  ", "\u200b", "\ufeff\x07", "\ufffd"])
def test_utterances_without_a_token_are_dropped_and_counted(tmp_path, silence):
    dialogues = {**DIALOGUES, "d": [("x", "s3 t0"), ("y", silence)], "e": [("x", silence)]}
    dialogues["c"] = [("x", "s2 t0"), ("y", "s2 t1"), ("x", silence)]
    manifest = run(tmp_path, json_lines(dialogues), format="jsonl")
    assert read_tokens(tmp_path, manifest)[2] == [turn_ids(2, 0), turn_ids(2, 1)]
    assert manifest.splits["train"].sessions == 3
    assert manifest.dropped == {"short_sessions": 2, "empty_utterances": 3, "bad_lines": 0}


@pytest.mark.parametrize("silence", ["", "\u200b"])
def test_silence_does_not_part_two_utterances_of_one_speaker(tmp_path, silence):
    dialogues = {"a": [("x", "s0 t0"), ("y", silence), ("x", "w0"), ("y", "s0 t1")]}
    manifest = run(tmp_path, json_lines(dialogues), format="jsonl")
    assert read_tokens(tmp_path, manifest) == [[turn_ids(0, 0, words=1), turn_ids(0, 1)]]


@pytest.mark.parametrize(("known", "warned"), [(95, False), (94, True)])
def test_unknown_tokens_are_counted_and_above_five_percent_warned_of(
    tmp_path, caplog, known, warned
):
    """5 unknown of 100 tokens are not too many; 5 of 99 are."""
    dialogues = {"a": [("x", "您好您好"), ("y", "好" + " w1" * (known - 4)), ("x", "s0 t0 w0 w1")]}
    manifest = run(tmp_path, tsv(dialogues), max_sequence_length=200)
    found = manifest.found
    assert (found["unknown_tokens"], found["tokens"]) == (5, known + 5)
    assert read_manifest(tmp_path / "data").found == found
    assert ("are [UNK]" in caplog.text) == warned


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
    assert manifest.max_sequence_length == 5


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_output_appears_complete_or_not_at_all(tmp_path, overwrite):
    """A bad last line stops the job; what was there before stays."""
    if overwrite:
        run(tmp_path, tsv(DIALOGUES))
        before = {path.name for path in (tmp_path / "data").iterdir()}
    with pytest.raises(InputError, match=r"corpus:9: expected session_id"):
        run(tmp_path, tsv(DIALOGUES) + "broken\n", overwrite=overwrite)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"corpus", "vocab", *(["data"] if overwrite else [])}
    if overwrite:
        assert {path.name for path in (tmp_path / "data").iterdir()} == before
        assert read_manifest(tmp_path / "data").splits["train"].sessions == 3


def test_bad_lines_within_the_limit_are_counted(tmp_path):
    manifest = run(tmp_path, tsv(DIALOGUES).encode() + b"broken\n\xff\n", max_bad_lines=2)
    assert manifest.dropped["bad_lines"] == 2
    assert manifest.splits["train"].sessions == 3


def test_an_existing_folder_is_replaced_only_if_asked(tmp_path):
    run(tmp_path, tsv(DIALOGUES))
    (tmp_path / "data/old").touch()
    with pytest.raises(FileExistsError, match=f"{tmp_path}/data already exists.*`overwrite`"):
        run(tmp_path, tsv({"a": DIALOGUES["a"]}))
    assert (tmp_path / "data/old").exists()
    run(tmp_path, tsv({"a": DIALOGUES["a"]}), overwrite=True)
    assert read_manifest(tmp_path / "data").splits["train"].sessions == 1
    assert {path.name for path in tmp_path.iterdir()} == {"corpus", "vocab", "data"}
    assert not (tmp_path / "data/old").exists()


def test_reading_stops_after_so_many_sessions(tmp_path):
    content = tsv(DIALOGUES) + "broken\n"
    manifest = run(tmp_path, content, max_sessions=2)
    assert manifest.splits["train"].sessions == 2
    assert manifest.dropped["bad_lines"] == 0


@pytest.mark.parametrize("content", ["", json_lines({"a": [], "b": [("x", "s0 t0")]})])
def test_a_corpus_without_a_session_to_train_on_is_refused(tmp_path, content):
    with pytest.raises(InputError, match="no session of at least 2 turns for training"):
        run(tmp_path, content, format="jsonl")
    assert not (tmp_path / "data").exists()


def test_sessions_that_are_all_held_out_are_counted(tmp_path):
    """As when a dev.jsonl that was held out is prepared again with the same fractions."""
    run(tmp_path, tsv(dict.fromkeys("abcdefgh", DIALOGUES["a"])), dev_fraction=0.5)
    held_out = (tmp_path / "data/dev.jsonl").read_text()
    with pytest.raises(InputError, match=r"for training \(\d sessions held out, 0 sessions too"):
        run(tmp_path, held_out, format="jsonl", dev_fraction=0.5, overwrite=True)


def test_texts_that_were_all_empty_are_said_to_be(tmp_path):
    dialogues = {key: [("x", ""), ("y", " "), ("x", "\ufffd")] for key in "ab"}
    counted = (
        r"\(0 sessions held out, 2 sessions too short, 6 utterances without text, 0 bad lines\)"
    )
    with pytest.raises(InputError, match=counted):
        run(tmp_path, json_lines(dialogues), format="jsonl")


def test_more_sessions_than_are_tokenised_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("dcse_tf.data.corpus._TURNS", 4)
    manifest = prepare_sessions(tmp_path, [2, 0, 3, 0, 0, 1, 4])
    expected = [[turn_ids(s, t) for t in range(n)] for s, n in ((0, 2), (2, 3), (6, 4))]
    assert read_tokens(tmp_path, manifest) == expected
    assert manifest.dropped["short_sessions"] == 4


def test_a_prefix_must_leave_room_for_a_text(tmp_path):
    content = FORMATS["session_tsv"](DIALOGUES)
    said = r"`max_sequence_length`=3: the prefix 'w0 ' leaves no room for a text; .* at least 4"
    with pytest.raises(InputError, match=said):
        run(tmp_path, content, prefix="w0 ", max_sequence_length=3)
    manifest = run(tmp_path, content, prefix="w0 ", max_sequence_length=4)
    sessions = read_tokens(tmp_path, manifest)
    assert sessions[0] == [[CLS, turn_ids(0, 0, words=1)[3], turn_ids(0, 0)[1], SEP]] * 3


def test_what_was_prepared_is_held_against_the_encoder(tmp_path):
    manifest = prepare_sessions(tmp_path, [2, 3])
    data = tmp_path / "data"
    vocabulary = read_vocabulary(data / "vocabulary")
    assert vocabulary == read_vocabulary(tmp_path / "vocab")
    assert manifest.tokenizer_fingerprint == vocabulary.fingerprint()
    assert read_manifest(data, vocabulary.fingerprint()).splits == manifest.splits
    cased = dataclasses.replace(vocabulary, lowercase=False)
    with pytest.raises(InputError, match="another vocabulary, casing or prefix"):
        read_manifest(data, cased.fingerprint())
    shard = data / "train-00001-of-00003.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(InputError, match=str(shard)):
        read_manifest(data, vocabulary.fingerprint())


def test_a_vocabulary_is_trained_on_the_train_split_alone(tmp_path):
    words = ("alpha", "beta", "gamma", "delta", "omega", "kappa", "sigma", "lambda")
    dialogues = {w: [("x", f"{w} {w} {w}"), ("y", f"{w} {w}")] for w in words}
    copies = {f"copy of {w}": turns for w, turns in dialogues.items()}
    dialogues |= copies
    (tmp_path / "corpus").write_text(tsv(dialogues))
    config = PrepareOptions(
        input=(str(tmp_path / "corpus"),),
        output_dir=str(tmp_path / "data"),
        vocab_size=200,
        dev_fraction=0.3,
        test_fraction=0.3,
    )
    manifest = prepare(config, None)
    tokens = read_vocabulary(tmp_path / "data/vocabulary").tokens
    held_out = read_ids(tmp_path, "dev") | read_ids(tmp_path, "test")
    assert 0 < len(held_out & set(words)) < len(words)
    assert held_out & set(copies) == {f"copy of {word}" for word in held_out & set(words)}
    assert {word for word in words if word in tokens} == set(words) - held_out
    assert manifest.settings["vocab_size"] == 200


def _mixed_corpus():
    """Sessions of 1 to 6 turns, some silent, some without a token, some long, and broken lines."""
    lines = []
    for session in range(60):
        for turn in range(1 + session % 6):
            text = f"s{session} t{turn}" + " w1" * (session % 9)
            text = {11: "\ufffd", 23: "\u200b", 31: "您 w2 👍"}.get(len(lines) % 37, text)
            lines.append(f"对话 {session}\t{'xy'[turn % 2]}\t{text}")
            if len(lines) % 19 == 0:
                lines.append(f"broken {len(lines)}")
    return "\n".join(lines) + "\n"


SETTINGS = {
    "max_sequence_length": 6,
    "dev_fraction": 0.2,
    "test_fraction": 0.1,
    "shards": 3,
    "max_bad_lines": 100,
    "overwrite": True,
}


def _read_folder(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def many_chunks(monkeypatch):
    """Chunks of so few turns, all of which are left to workers if there are any."""

    def split(turns):
        monkeypatch.setattr("dcse_tf.data.corpus._TURNS", turns)
        monkeypatch.setattr("dcse_tf.data.prepare._FEW_CHUNKS", 0)
        left_to_workers = functools.partial(map_in_order, works_too=False)
        monkeypatch.setattr("dcse_tf.data.prepare.map_in_order", left_to_workers)

    return split


def test_what_is_written_depends_neither_on_workers_nor_on_chunks(tmp_path, many_chunks):
    content = _mixed_corpus()
    manifest = run(tmp_path, content, workers=1, **SETTINGS)
    whole = _read_folder(tmp_path / "data")
    for workers, turns in ((1, 10), (3, 10)):
        many_chunks(turns)
        run(tmp_path, content, workers=workers, **SETTINGS)
        assert _read_folder(tmp_path / "data") == whole
    # The corpus has something of everything.
    assert all(manifest.dropped.values())
    assert all(s.sessions and s.truncated_utterances for s in manifest.splits.values())
    assert len(whole) == 3 + 2 + 3 + 2 + 2 + 1  # shards, indices, texts, vocabulary, manifest


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_lines_are_named_in_order_and_limited(tmp_path, many_chunks, caplog, workers):
    """The corpus has 11 broken lines; they are known by their own words."""
    many_chunks(40)
    settings = {**SETTINGS, "max_bad_lines": 10, "overwrite": False}
    lines = _mixed_corpus().splitlines()
    broken = [n for n, line in enumerate(lines, start=1) if line.startswith("broken")]
    assert len(broken) == 11
    with pytest.raises(InputError, match=rf"corpus:{broken[10]}: expected .*\(bad line 11; "):
        run(tmp_path, _mixed_corpus(), workers=workers, **settings)
    named = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert [int(message.split(":")[1]) for message in named] == broken[:10]
    assert {path.name for path in tmp_path.iterdir()} == {"corpus", "vocab"}


def test_a_killed_worker_ends_the_job(tmp_path, monkeypatch, many_chunks):
    many_chunks(10)
    monkeypatch.setattr("dcse_tf.data.prepare.ChunkSerializer", Killed)
    with pytest.raises(ChildProcessError, match="a worker process ended before its work was done"):
        run(tmp_path, _mixed_corpus(), workers=2, **{**SETTINGS, "overwrite": False})
    assert {path.name for path in tmp_path.iterdir()} == {"corpus", "vocab"}
    assert multiprocessing.active_children() == []
