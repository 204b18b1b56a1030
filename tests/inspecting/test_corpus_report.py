"""The report on a corpus: its figures by hand, leaks by comparing all pairs, pages, refusals."""

import collections
import csv
import json
import random
from fractions import Fraction

import pytest
from lettered_corpus import write_vocabulary_folder
from shared_files import shared_file

from dcse_tf.data.dialogue import make_session
from dcse_tf.data.formats import published
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines
from dcse_tf.inspecting import leaks
from dcse_tf.inspecting.corpus_report import inspect_data
from dcse_tf.inspecting.inspect_options import InspectOptions
from dcse_tf.inspecting.leaks import LeakFinder
from dcse_tf.options import OptionError

# In the order of the file: session, turns (role, text, intents).
DIALOGUES = [
    ("d1", [("user", "Where is my parcel?", ["track"]), ("agent", "It left\ttoday", [])]),
    ("d2", [("user", "我要退货", ["退货", "track"]), ("user", "好的", []), ("agent", "OK", [])]),
    ("d3", [("user", "hello", []), ("user", "\u200b ", [])]),
    ("d4", [("agent", "ok", ["<b> & $5"]), ("user", "<script>alert(1)</script>", [])]),
]


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def inspect(folder, dialogues=DIALOGUES, **settings):
    """The printed report, report.json, and the rows of leaks.tsv as a spreadsheet reads them."""
    lines = []
    for name, turns in dialogues:
        rows = [{"role": role, "text": text, "intents": intents} for role, text, intents in turns]
        lines.append(json.dumps({"session_id": name, "turns": rows}))
    source = write(folder / "corpus.jsonl", *lines)
    values = {"format": "jsonl", "input": (source,), "overwrite": True, **settings}
    printed = inspect_data(InspectOptions(output_dir=str(folder / "out"), **values))
    report = json.loads((folder / "out/report.json").read_text(encoding="utf-8"))
    with (folder / "out/leaks.tsv").open(encoding="utf-8") as file:
        return printed, report, list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_the_report_says_what_the_corpus_has(tmp_path):
    printed, report, rows = inspect(tmp_path)
    assert report["left_out"] == {"short_sessions": 1, "empty_utterances": 1, "bad_lines": 0}
    # The two utterances of d2's user are one turn. Words: 4; 3; 我要/退货/好/的; ok; ok; 4.
    assert report["figures"] == {
        "sessions": 3,
        "turns": 6,
        "turns_with_an_intent": 3,
        "share_of_repeated_turns": pytest.approx(2 / 6),
        "share_of_repeated_sessions": 0.0,
        "turns_of_each": {"mean": 2.0, "median": 2, "95%": 2, "99%": 2, "longest": 2},
        "words_of_each": {"mean": 2.83, "median": 3, "95%": 4, "99%": 4, "longest": 4},
    }
    assert report["speakers"] == {"user": 3, "agent": 3}
    assert report["intents"] == {"track": 2, "退货": 1, "<b> & $5": 1}
    assert report["frequent_utterances"] == {"ok": 2}
    assert (report["leaks"], len(rows)) == ({}, 1)
    lines = [line.split() for line in printed.splitlines()]
    assert ["turns", "6"] in lines
    assert ["share", "of", "repeated", "turns", "33.33%"] in lines
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt; &amp; $5" in page
    assert "退货" in page


def test_tokens_are_counted_with_a_vocabulary_alone(tmp_path):
    turns = [("x", "s0 T0 w1", []), ("y", "nobody, s0", []), ("x", "s1 [UNK]", [])]
    vocab = str(write_vocabulary_folder(tmp_path / "vocab"))
    _, report, _ = inspect(tmp_path, [("d", turns)], vocab=vocab, max_sequence_length=5)
    # With [CLS] and [SEP]: s0 t0 w1 is 5; nobody , s0 is 5, two of them unknown; s1 [ unk ] is 6,
    # three of them unknown: what is typed is no mark.
    figures = report["figures"]
    assert figures["tokens_of_each"]["mean"] == 5.33
    assert figures["share_of_unknown_tokens"] == 5 / 16
    assert figures["share_cut_at"]["5"] == pytest.approx(1 / 3)
    with pytest.raises(OptionError, match="`max_sequence_length`"):
        inspect(tmp_path, max_sequence_length=5)


def test_leaks_are_one_line_each_whatever_a_sentence_has(tmp_path):
    select = write(
        tmp_path / "select.txt",
        *("0\twhere is MY parcel\ttrack\t1\t2", "1\tit left\u2028today, yes\tx\t0\t2"),
        "2\tok\tnone\t\t",
    )
    sts = write(tmp_path / "sts.txt", "4\tIt\x85left today\tok", "1.5\tnothing\tof all")
    printed, report, rows = inspect(tmp_path, retrieval=(select,), sts=(sts,))
    head = ["set", "similarity", "sentence", "utterance", "session"]
    assert rows == [
        head,
        [select, "1.0", "where is MY parcel", "Where is my parcel?", "d1"],
        [sts, "1.0", "It left today", "It left today", "d1"],
    ]
    assert [count for count, _ in report["leaks"].values()] == [2, 1]  # of 8 characters or more
    assert ["2", "1", "1"] in [line.split()[1:] for line in printed.splitlines()]


# Few letters, so that texts come near each other; marks and case that do not count.
ALPHABETS = {"english": "abABc  ,.", "chinese": "好的吗好的，！ ", "mixed": "好aB的 _?"}


def normalize(text):
    return "".join(char for char in text.casefold() if char.isalnum())


def jaccard(first, second):
    a, b = ({key[i : i + 3] for i in range(len(key) - 2)} or {key} for key in (first, second))
    return Fraction(len(a & b), len(a | b))


@pytest.mark.parametrize("chunk", [1, 3, 2048])
@pytest.mark.parametrize("threshold", ["0.1", "0.5", "0.8", "1"])
@pytest.mark.parametrize("kind", ALPHABETS)
def test_leaks_are_those_of_comparing_all_pairs(monkeypatch, kind, threshold, chunk):
    monkeypatch.setattr(leaks, "_AT_A_TIME", chunk)
    monkeypatch.setattr(leaks, "LONG", 1)
    rng = random.Random(kind)
    texts = ["".join(rng.choices(ALPHABETS[kind], k=rng.randint(1, 12))) for _ in range(300)]
    sentences, said = texts[:100], texts[100:]
    finder = LeakFinder("select.txt", sentences, float(threshold))
    for number, text in enumerate(said):
        finder.add(f"s{number}", text)
    count, found = finder.finish()

    spellings, expected = {}, {}
    for sentence in filter(normalize, sentences):
        spellings.setdefault(normalize(sentence), sentence)
    for key, sentence in spellings.items():
        best = None
        for number, text in enumerate(said):
            other = normalize(text)
            if not other or jaccard(key, other) < Fraction(threshold):
                continue
            # Equal texts come before those that only have equal trigrams.
            value = 1.0 if key == other else min(round(float(jaccard(key, other)), 3), 0.999)
            if best is None or value > best[0]:
                best = (value, sentence, text, f"s{number}")
        if best:
            expected[key] = best
    assert count == len(spellings)
    assert found == [expected[key] for key in sorted(expected, key=lambda k: (-len(k), k))]
    assert len(found) > 2


def test_vowel_signs_count_and_marks_do_not():
    for sentence, utterance, expected in (
        ("Where's my parcel?", "where s MY-parcel", 1.0),
        ("किताब की दुकान!", "किताब, की दुकान", 1.0),
        ("किताब की दुकान", "काताब को दुकान", None),
        ("ABCDEFGHIJ", "abcdefghi", 0.875),  # 7 of 8 trigrams
        ("ababababab", "abababababab", 0.999),  # equal trigrams of another text
    ):
        finder = LeakFinder("a", [sentence])
        finder.add("s", utterance)
        assert [leak[0] for leak in finder.finish()[1]] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sts": ("bad.txt",)}, r"bad\.txt:1: expected a degree"),
        ({"retrieval": ("none.txt",)}, r"`retrieval`=none\.txt: no such file"),
        ({"vocab": "./none"}, r"`vocab`=\./none"),
        ({"min_turns": 9}, "no session of at least 9 turns .4 sessions too short"),
    ],
)
def test_what_cannot_be_used_is_named_and_a_report_stays(tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "bad.txt", "6\tno\tdegree")
    _, before, _ = inspect(tmp_path)
    with pytest.raises(InputError, match=message):
        inspect(tmp_path, **settings)
    with pytest.raises(FileExistsError, match="`overwrite`"):
        inspect(tmp_path, overwrite=False)
    assert json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8")) == before


def test_the_public_sample_of_jddc(tmp_path):
    path = shared_file("jddc_raw/chat_0.1per.txt")
    output = tmp_path / "out"
    files = {"input": (str(path),), "output_dir": str(output)}
    inspect_data(InspectOptions(format="jddc", min_turns=10, **files))
    sessions = [make_session(name, turns) for name, turns in published.read_jddc(path, BadLines(0))]
    kept = [session.turns for session in sessions if len(session.turns) >= 10]
    texts = collections.Counter(turn.text.casefold() for turns in kept for turn in turns)
    report = json.loads((output / "report.json").read_text(encoding="utf-8"))
    assert report["left_out"]["short_sessions"] == 994 - len(kept) > 0
    assert (report["figures"]["sessions"], report["figures"]["turns"]) == (len(kept), texts.total())
    assert report["speakers"] == collections.Counter(t.role for turns in kept for t in turns)
    repeated = sum(count for count in texts.values() if count > 1)
    share = report["figures"]["share_of_repeated_turns"]
    assert share == pytest.approx(repeated / texts.total())
    most = sorted(texts.items(), key=lambda item: (-item[1], item[0]))[:20]
    assert report["frequent_utterances"] == dict(most)
