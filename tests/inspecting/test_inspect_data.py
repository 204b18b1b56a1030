"""The job and its command line, on small corpora and the public sample of JDDC."""

import collections
import csv
import json
import pathlib
import subprocess
import sys

import pytest
from lettered_corpus import write_vocabulary_folder
from shared_files import shared_file

from dcse_tf.data.corpus import read_sessions
from dcse_tf.data.dialogue import Utterance, make_session
from dcse_tf.data.formats import jddc
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines
from dcse_tf.inspecting.inspect import inspect_data
from dcse_tf.sets.options import InspectOptions

ROOT = pathlib.Path(__file__).parents[2]
# In the order of the file: session, turns (role, text, intents).
DIALOGUES = [
    ("d1", [("user", "Where is my parcel?", ["track"]), ("agent", "It left\ttoday", [])]),
    ("d2", [("user", "我要退货", ["退货", "track"]), ("user", "好的", []), ("agent", "OK", [])]),
    ("d3", [("user", "hello", []), ("user", "\u200b ", [])]),
    ("d4", [("agent", "ok", ["<b> & $5"]), ("user", "<script>alert(1)</script>", [])]),
]
SELECT = [
    "0\twhere is MY parcel\ttrack\t1\t2",
    "1\t我要退货吗亲\t退货\t0\t2",
    "2\tnobody said this\tnone\t\t",
]
STS = ["4\tOk!\tit left, today", "1.5\tnothing\tof all"]


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def to_line(session_id, turns):
    turns = [{"role": r, "text": t, "intents": i} for r, t, i in turns]
    return json.dumps({"session_id": session_id, "turns": turns})


def make_config(folder, *lines, **settings):
    values = {
        "format": "jsonl",
        "input": (write(folder / "corpus.jsonl", *lines or [to_line(*d) for d in DIALOGUES]),),
        "output_dir": str(folder / "out"),
        **settings,
    }
    return InspectOptions(**values)


def read_report(folder):
    return json.loads((folder / "out/report.json").read_text(encoding="utf-8"))


def read_leaks(folder):
    """Rows of cells, as a spreadsheet reads them: "\\r" ends a line too."""
    with (folder / "out/leaks.tsv").open(encoding="utf-8") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_report_says_what_the_corpus_has(tmp_path):
    config = make_config(tmp_path)
    printed = inspect_data(config)
    report = read_report(tmp_path)
    assert files(tmp_path / "out") == ["leaks.tsv", "report.html", "report.json"]
    assert report["settings"] == json.loads(json.dumps(config.to_dict()))
    assert report["inputs"] == [f"jsonl: {tmp_path}/corpus.jsonl"]
    assert report["dropped"] == {"short_sessions": 1, "empty_utterances": 1, "bad_lines": 0}
    assert (report["near_duplicate"], report["max_sequence_length"]) == (0.8, None)
    # The two utterances of d2's user are one turn.
    statistics = report["statistics"]
    assert (statistics["sessions"], statistics["turns"]) == (3, 6)
    assert statistics["speakers"] == {"user": 3, "agent": 3}
    assert statistics["intents"] == {"track": 2, "退货": 1, "<b> & $5": 1}
    assert statistics["labelled_turns"] == 3
    assert statistics["turns_a_session"] == {"counts": {"2": 3}, "total": 6}
    # "where is my parcel": 4; it left today: 3; 我/要/退货/好/的 as jieba parts it; ok; ok;
    # script alert 1 script: 4.
    assert statistics["words_an_utterance"]["total"] == 4 + 3 + 4 + 1 + 1 + 4
    # Characters: 19, 13, "我要退货 好的" 7, 2, 2, 25.
    counts = {"2": 2, "7": 1, "13": 1, "19": 1, "25": 1}
    assert statistics["characters_an_utterance"] == {"counts": counts, "total": 68}
    assert statistics["tokens_an_utterance"] is None
    assert statistics["repeated_utterances"] == pytest.approx(2 / 6)
    assert statistics["frequent_utterances"] == [["ok", 2]]
    assert report["leaks"] == []
    assert (tmp_path / "out/leaks.tsv").read_text().count("\n") == 1
    assert "退货" in (tmp_path / "out/report.json").read_text(encoding="utf-8")  # to be read
    assert any(line.split() == ["turns", "6"] for line in printed.splitlines())


def test_texts_and_names_are_escaped_in_the_page_and_chinese_is_text(tmp_path):
    select = write(tmp_path / "select.txt", "0\t<script>alert(1)</script>\t\t1\t2", *SELECT[1:])
    inspect_data(make_config(tmp_path, retrieval=(select,)))
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<b>" not in page
    assert page.count("退货") >= 2  # in the table, and as the name of a bar
    assert page.count("<svg") == 2


def test_leaks_are_one_line_each(tmp_path):
    select, sts = write(tmp_path / "select.txt", *SELECT), write(tmp_path / "sts.txt", *STS)
    # 我要退货吗亲: 4 trigrams, of which 我要退, 要退货; 我要退货好的 has 4 too: 2 of 6.
    config = make_config(tmp_path, retrieval=(select,), sts=(sts,), near_duplicate=0.3)
    printed = inspect_data(config)
    lines = (tmp_path / "out/leaks.tsv").read_text(encoding="utf-8").split("\n")
    assert lines == [
        "set\tsimilarity\tsentence\tutterance\tsession",
        f"{select}\t1.000\twhere is MY parcel\tWhere is my parcel?\td1",
        f"{select}\t0.333\t我要退货吗亲\t我要退货 好的\td2",
        f"{sts}\t1.000\tit left, today\tIt left today\td1",
        f"{sts}\t1.000\tOk!\tOK\td2",
        "",
    ]
    report = read_report(tmp_path)
    figures = ("source", "sentences", "exact", "near", "long_sentences", "long_exact", "long_near")
    assert [[leak[name] for name in figures] for leak in report["leaks"]] == [
        [select, 3, 1, 1, 2, 1, 0],
        [sts, 4, 2, 0, 1, 1, 0],
    ]
    assert report["leaks"][1]["leaks"][0] == {
        "sentence": "it left, today",
        "utterance": "It left today",
        "session_id": "d1",
        "similarity": 1.0,
    }
    row = [line.split() for line in printed.splitlines() if "sts.txt" in line]
    assert [cells[1:4] for cells in row] == [["4", "2", "(50.00%)"]]


@pytest.mark.parametrize("mark", ["\r", "\u2028", "\x85", "\x0b"])
def test_a_sentence_cannot_break_the_lines_of_leaks(tmp_path, mark):
    sts = write(tmp_path / "sts.txt", f"4\tit{mark}left today\tof all", *STS)
    inspect_data(make_config(tmp_path, sts=(sts,)))
    assert [len(row) for row in read_leaks(tmp_path)] == [5] * 3


@pytest.mark.parametrize("session_id", ["a\tb", "a\nb", "a\rb"])
def test_the_name_of_a_session_cannot_break_the_lines_of_leaks(tmp_path, session_id):
    line = to_line(session_id, DIALOGUES[0][1])
    inspect_data(make_config(tmp_path, line, sts=(write(tmp_path / "sts.txt", *STS),)))
    assert [len(row) for row in read_leaks(tmp_path)] == [5] * 2


def test_a_label_that_a_turn_has_twice_is_one(tmp_path):
    turns = [("user", "I want it back", ["refund", "refund"]), ("agent", "so be it", [])]
    inspect_data(make_config(tmp_path, to_line("d", turns)))
    statistics = read_report(tmp_path)["statistics"]
    assert (statistics["intents"], statistics["labelled_turns"]) == ({"refund": 1}, 1)


def test_the_same_input_makes_the_same_files(tmp_path):
    select = write(tmp_path / "select.txt", *SELECT)
    config = make_config(tmp_path, retrieval=(select,), overwrite=True)
    contents = []
    for _ in range(2):
        inspect_data(config)
        contents.append({p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()})
    assert [name for name in contents[0] if contents[0][name] != contents[1][name]] == []


def test_tokens_are_counted_with_the_vocabulary_alone(tmp_path):
    vocab = write_vocabulary_folder(tmp_path / "vocab")
    turns = [("x", "s0 T0 w1", []), ("y", "nobody, s0", []), ("x", "s1 [UNK]", [])]
    config = make_config(tmp_path, to_line("d", turns), vocab=str(vocab), max_sequence_length=5)
    printed = inspect_data(config)
    # With [CLS] and [SEP]: s0 t0 w1 is 5; nobody , s0 is 5, two of them unknown; s1 [ unk ] is 6,
    # three of them unknown: what is typed is no mark.
    statistics = read_report(tmp_path)["statistics"]
    assert statistics["tokens_an_utterance"] == {"counts": {"5": 2, "6": 1}, "total": 16}
    assert statistics["unknown_tokens"] == 5
    assert read_report(tmp_path)["max_sequence_length"] == 5
    rows = [line.split() for line in printed.splitlines()]
    assert ["utterances", "cut", "at", "5", "tokens", "33.33%"] in rows
    assert ["unknown", "tokens", "31.25%"] in rows  # 5 of 16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sts": ("bad.txt",)}, r"bad\.txt:1: expected a degree"),
        ({"retrieval": ("bad.txt",)}, r"bad\.txt:1: expected index 0"),
        ({"retrieval": ("none.txt",)}, r"`retrieval`=none\.txt: no such file"),
        ({"sts": ("none.txt",)}, r"`sts`=none\.txt: no such file"),
        ({"vocab": "./none"}, r"`vocab`=\./none"),
        ({}, r"`input`=missing\.jsonl: no such file"),
    ],
)
def test_sets_and_vocabulary_are_read_before_the_corpus(tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "bad.txt", "6\tno\tdegree")
    config = InspectOptions(format="jsonl", input=("missing.jsonl",), output_dir="out", **settings)
    with pytest.raises(InputError, match=message):
        inspect_data(config)
    assert files(tmp_path) == ["bad.txt"]


def test_a_report_is_replaced_only_if_told_to(tmp_path):
    config = make_config(tmp_path)
    inspect_data(config)
    before = read_report(tmp_path)
    with pytest.raises(FileExistsError, match="`overwrite`"):
        inspect_data(config.replace(max_sessions=1, input=("missing.jsonl",)))
    with pytest.raises(InputError):
        inspect_data(config.replace(overwrite=True, input=("missing.jsonl",)))
    assert read_report(tmp_path) == before
    inspect_data(config.replace(max_sessions=1, overwrite=True))
    assert read_report(tmp_path)["statistics"]["sessions"] == 1
    assert files(tmp_path) == ["corpus.jsonl", "out"]


def test_a_corpus_without_a_session_long_enough_says_why(tmp_path):
    silent = to_line("silent", [("a", " ", []), ("b", "\u200b", []), ("a", "", [])])
    config = make_config(tmp_path, to_line(*DIALOGUES[2]), silent, "nonsense", max_bad_lines=1)
    counted = (
        r"of at least 2 turns \(2 sessions too short, 4 utterances without text, 1 bad lines\)"
    )
    with pytest.raises(InputError, match=counted):
        inspect_data(config)
    assert files(tmp_path) == ["corpus.jsonl"]


def test_sessions_are_read_as_the_settings_say(tmp_path):
    config = make_config(tmp_path, *[to_line(*d) for d in DIALOGUES], "nonsense")
    dropped = collections.Counter()
    first = list(read_sessions(config.replace(max_sessions=3), BadLines(0), dropped))
    assert [session.session_id for session in first] == ["d1", "d2", "d3"]
    assert first[1].turns[0] == Utterance("user", "我要退货 好的", ("退货", "track"))
    assert first[2].turns == (Utterance("user", "hello"),)  # not filtered by length
    assert dropped == {"empty_utterances": 1}
    apart = read_sessions(config.replace(join_consecutive=False), BadLines(1), dropped)
    assert [len(session.turns) for session in apart] == [2, 3, 1, 2]
    assert dropped == {"empty_utterances": 2}
    with pytest.raises(InputError, match=r"corpus\.jsonl:5: not JSON"):
        list(read_sessions(config, BadLines(0), dropped))


def test_the_command_says_in_one_line_what_is_wrong_and_leaves_nothing(no_tensorflow, tmp_path):
    path = tmp_path / "corpus.tsv"
    write(path, "s1\tuser\thello there", "s1\tagent\thow are you", "s2 user hello")
    flags = [f"--input={path}", f"--output_dir={tmp_path / 'out'}"]
    done = run_command(no_tensorflow, tmp_path, *flags)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {path}:3: expected session_id<TAB>role<TAB>text")
    assert line.endswith("(bad line 1; --max_bad_lines=0)")
    assert files(tmp_path) == ["corpus.tsv"]


def test_the_command_prints_the_report_without_tensorflow(no_tensorflow, tmp_path):
    path = tmp_path / "corpus.tsv"
    write(path, "s1\tuser\thello there", "s1\tagent\thow are you", "s2 user hello")
    flags = [f"--input={path}", f"--output_dir={tmp_path / 'out'}", "--max_bad_lines=1"]
    done = run_command(no_tensorflow, tmp_path, *flags)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["words", "5"] in rows
    assert ["left", "out:", "bad_lines", "1"] in rows
    assert rows[-1][-1] == str(tmp_path / "out")
    assert files(tmp_path / "out") == ["leaks.tsv", "report.html", "report.json"]


def run_command(environment, folder, *flags):
    command = [sys.executable, "-m", "dcse_tf.cli", "inspect_data", *flags]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)


def test_the_public_sample_of_jddc(tmp_path):
    path = shared_file("jddc_raw/chat_0.1per.txt")
    inspect_data(
        InspectOptions(
            format="jddc",
            input=(str(path),),
            output_dir=str(tmp_path / "out"),
            min_turns=10,
            words="characters",
        )
    )
    sessions = [make_session(name, turns) for name, turns in jddc.read_sessions(path, BadLines(0))]
    assert len(sessions) == 994
    kept = [session.turns for session in sessions if len(session.turns) >= 10]
    texts = collections.Counter(turn.text.casefold() for turns in kept for turn in turns)
    report = read_report(tmp_path)
    statistics = report["statistics"]
    assert report["dropped"]["short_sessions"] == 994 - len(kept) > 0
    assert (statistics["sessions"], statistics["turns"]) == (len(kept), texts.total())
    assert statistics["speakers"] == collections.Counter(t.role for turns in kept for t in turns)
    assert statistics["characters_an_utterance"]["total"] == sum(
        len(turn.text) for turns in kept for turn in turns
    )
    repeated = sum(count for count in texts.values() if count > 1)
    assert statistics["repeated_utterances"] == pytest.approx(repeated / texts.total())
    most = [[text, count] for text, count in texts.items()]
    most.sort(key=lambda item: (-item[1], item[0]))
    assert statistics["frequent_utterances"] == most[:20]
