"""The report on a corpus: its figures by hand, leaks by comparing all pairs, pages, refusals."""

import collections
import csv
import json

import pytest
from shared_files import shared_file
from written_dialogues import write_lines

from dcse_tf.data.dialogue import make_session
from dcse_tf.data.formats import published
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines
from dcse_tf.inspecting.corpus_report import InspectOptions, inspect_data

# In the order of the file: session, turns (role, text, intents).
DIALOGUES = [
    ("d1", [("user", "Where is my parcel?", ["track"]), ("agent", "It left\ttoday", [])]),
    ("d2", [("user", "我要退货", ["退货", "track"]), ("user", "好的", []), ("agent", "OK", [])]),
    ("d3", [("user", "hello", []), ("user", "\u200b ", [])]),
    ("d4", [("agent", "ok", ["<b> & $5"]), ("user", "<script>alert(1)</script>", [])]),
]


def inspect(folder, dialogues=DIALOGUES, **settings):
    """The printed report, report.json, and the rows of leaks.tsv as a spreadsheet reads them."""
    lines = []
    for name, turns in dialogues:
        rows = [{"role": role, "text": text, "intents": intents} for role, text, intents in turns]
        lines.append(json.dumps({"session_id": name, "turns": rows}))
    source = write_lines(folder / "corpus.jsonl", *lines)
    values = {"format": "jsonl", "input": (str(source),), "overwrite": True, **settings}
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


def test_sentences_of_evaluation_sets_are_found_whatever_their_marks(tmp_path):
    select, sts = f"{tmp_path}/select.txt", f"{tmp_path}/sts.txt"
    lines = ["0\twhere is MY parcel\ttrack\t1\t2", "1\tit left\u2028today, yes\tx\t0\t2"]
    write_lines(tmp_path / "select.txt", *lines, "2\tok\tnone\t\t")
    write_lines(tmp_path / "sts.txt", "4\tIt\x85left today\tok", "1.5\tकाताब को दुकान\tof all")
    dialogues = [*DIALOGUES, ("d5", [("a", "किताब, की दुकान", []), ("b", "it left today!", [])])]
    printed, report, rows = inspect(tmp_path, dialogues, retrieval=(select,), sts=(sts,))
    assert rows == [  # a line each, whatever a sentence has; of equal utterances the first
        ["set", "sentence", "utterance", "session"],
        [select, "where is MY parcel", "Where is my parcel?", "d1"],
        [sts, "It left today", "It left today", "d1"],
    ]
    assert report["leaks"] == {select: 1, sts: 1}
    # Of 8 characters or more are two sentences of each; vowel signs count.
    assert [line.split()[1:] for line in printed.splitlines()[-2:]] == [["2", "1"]] * 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sts": ("bad.txt",)}, r"bad\.txt:1: expected a degree"),
        ({"retrieval": ("none.txt",)}, r"`retrieval`=none\.txt: no such file"),
        ({"min_turns": 9}, "no session of at least 9 turns .4 sessions too short"),
    ],
)
def test_what_cannot_be_used_is_named_and_a_report_stays(tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "bad.txt", "6\tno\tdegree")
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
