import collections
import gzip
import json

import pytest

from dcse_tf.arguments import define_flags
from dcse_tf.data.corpus import read_sessions
from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import FORMATS, chitchat, jsonl, register_format, session_tsv
from dcse_tf.data.options import CorpusOptions
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines, find_package, read_lines
from dcse_tf.inspecting.corpus_report import inspect_data
from dcse_tf.inspecting.inspect_options import InspectOptions
from dcse_tf.options import OptionError
from dcse_tf.sets.set_options import BuildRetrievalOptions

TURNS = [{"role": "a", "text": "您好"}, {"role": "b", "text": "hi\tthere"}]


def read(reader, path, limit=0):
    bad_lines = BadLines(limit)
    sessions = [
        (session_id, [(turn.role, turn.text) for turn in turns])
        for session_id, turns in reader.read_sessions(path, bad_lines)
    ]
    return sessions, bad_lines.count


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_every_format_has_its_reader_and_its_line_of_help():
    assert len({entry.read for entry in FORMATS.values()}) == len(FORMATS)
    helps = [entry.help for entry in FORMATS.values()]
    assert all(helps)
    assert len(set(helps)) == len(helps)


@pytest.fixture
def pairs():
    """A format from outside: a question and its answer a line."""

    def read_pairs(path, bad_lines):
        for number, line in read_lines(path, bad_lines):
            question, tab, answer = line.partition("\t")
            if tab:
                yield str(number), [Utterance("a", question), Utterance("b", answer, ("answer",))]
            else:
                bad_lines.report(path, number, "expected question<TAB>answer")

    register_format("pairs", read_pairs, help="a question and its answer a line", has_intents=True)
    yield
    del FORMATS["pairs"]


def test_a_format_from_outside_is_read_and_in_the_help(pairs, tmp_path):
    path = write(tmp_path / "a.txt", "hi\tho", "alone", "在吗\t在的")
    options = CorpusOptions(format="pairs", input=(str(path),), max_bad_lines=1)
    bad_lines = BadLines(options.max_bad_lines)
    sessions = list(read_sessions(options, bad_lines, collections.Counter()))
    assert [[turn.text for turn in s.turns] for s in sessions] == [["hi", "ho"], ["在吗", "在的"]]
    assert bad_lines.count == 1

    for options, others in ((CorpusOptions, ()), (BuildRetrievalOptions, ("csv", "tsv"))):
        holder = define_flags(options)
        holder["format"].parse("pairs")
        choices = options.fields()["format"].metadata["choices"]
        assert {*FORMATS, *others} <= {*choices}
    BuildRetrievalOptions(format="pairs", input=(str(path),), output="select.txt")


def test_a_format_that_is_registered_nowhere_is_refused():
    with pytest.raises(OptionError, match=r"`format`=pairs: expected one of .*'session_tsv'"):
        CorpusOptions(format="pairs", input=("a",))


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="'mdc'"):
        register_format("mdc", session_tsv.read_sessions, help="another")


def test_lines_of_one_id_are_a_session(tmp_path):
    path = write(
        tmp_path / "a.tsv", "1\tuser\t在吗", "1\tagent\t在的", "", "2\tuser\t", "2\tb\tok ok"
    )
    sessions, bad = read(session_tsv, path)
    assert sessions == [
        ("1", [("user", "在吗"), ("agent", "在的")]),
        ("2", [("user", ""), ("b", "ok ok")]),
    ]
    assert bad == 0


def test_spaces_around_fields_do_not_matter(tmp_path):
    path = write(tmp_path / "a.tsv", " 1 \t user\thi ", "1\tuser \t there")
    assert read(session_tsv, path)[0] == [("1", [("user", "hi"), ("user", "there")])]


@pytest.mark.parametrize("line", ["1", "1\tuser", "1\tuser\thi\tmore", "\tuser\thi", " \tuser\thi"])
def test_a_line_with_another_number_of_fields_is_bad(tmp_path, line):
    path = write(tmp_path / "a.tsv", "1\tuser\thi", line, "1\tagent\tho")
    assert read(session_tsv, path, limit=1) == ([("1", [("user", "hi"), ("agent", "ho")])], 1)
    with pytest.raises(InputError, match=f"{path}:2: expected session_id<TAB>role<TAB>text"):
        read(session_tsv, path)


def test_a_session_that_comes_back_is_bad(tmp_path):
    """Its pieces could otherwise be negatives of each other."""
    lines = ["1\tu\ta", "2\tu\tb", "1\tu\tc", "2\tu\td", "3\tu\te"]
    path = write(tmp_path / "a.tsv", *lines)
    sessions, bad = read(session_tsv, path, limit=1)
    assert sessions == [("1", [("u", "a")]), ("2", [("u", "b"), ("u", "d")]), ("3", [("u", "e")])]
    assert bad == 1
    with pytest.raises(InputError, match=f"{path}:3: session '1' ended before this line"):
        read(session_tsv, path)


def test_an_empty_file_has_no_sessions(tmp_path):
    for reader in (session_tsv, jsonl):
        assert read(reader, write(tmp_path / "a")) == ([], 0)


@pytest.mark.parametrize(
    ("reader", "first", "second"),
    [
        (session_tsv, "1\tu\ta\n2\tu\tb", "1"),
        (jsonl, json.dumps({"session_id": "1", "turns": [{"role": "u", "text": "a"}]}), "{"),
    ],
)
def test_a_session_is_yielded_before_the_rest_is_read(tmp_path, reader, first, second):
    """A fault further on does not keep the first session back: memory holds one, not the file."""
    sessions = reader.read_sessions(write(tmp_path / "a", first, second), BadLines(0))
    assert next(sessions) == ("1", [Utterance("u", "a")])
    with pytest.raises(InputError):
        list(sessions)


def test_a_session_a_line(tmp_path):
    lines = [
        json.dumps({"session_id": "1", "turns": TURNS, "source": "web"}, ensure_ascii=False),
        json.dumps({"session_id": 2, "turns": []}),
    ]
    path = write(tmp_path / "a.jsonl", *lines)
    assert read(jsonl, path) == ([("1", [("a", "您好"), ("b", "hi\tthere")]), ("2", [])], 0)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON: .* at column 2"),
        ("你好", "not JSON"),
        ('{"session_id": "1", "turns": []} x', "not JSON"),
        ("[]", 'expected {"session_id": text, "turns": '),
        ("null", 'expected {"session_id"'),
        ('{"session_id": "1"}', 'expected {"session_id"'),
        ('{"session_id": "1", "turns": {}}', 'expected {"session_id"'),
        ('{"turns": []}', 'expected "session_id" to be a text'),
        ('{"session_id": "", "turns": []}', 'expected "session_id"'),
        ('{"session_id": null, "turns": []}', 'expected "session_id"'),
        ('{"session_id": 1.5, "turns": []}', 'expected "session_id"'),
        ('{"session_id": ["1"], "turns": []}', 'expected "session_id"'),
        ('{"session_id": "1", "turns": ["hi"]}', "turn 0: expected"),
        ('{"session_id": "1", "turns": [{"role": "a"}]}', 'turn 0: expected "role" and "text"'),
        ('{"session_id": "1", "turns": [{"text": "a"}]}', "turn 0: expected"),
        (
            '{"session_id": "1", "turns": [{"role": "a", "text": "x"}, {"role": 1, "text": "x"}]}',
            "turn 1: expected",
        ),
        ('{"session_id": "1", "turns": [{"role": "a", "text": null}]}', "turn 0: expected"),
    ],
)
def test_a_line_without_a_session_is_bad(tmp_path, line, problem):
    good = json.dumps({"session_id": "2", "turns": TURNS})
    path = write(tmp_path / "a.jsonl", good, line, good.replace('"2"', '"3"'))
    sessions, bad = read(jsonl, path, limit=1)
    assert [session_id for session_id, _ in sessions] == ["2", "3"]
    assert bad == 1
    with pytest.raises(InputError, match=f"{path}:2: {problem}"):
        read(jsonl, path)


@pytest.mark.parametrize(
    "line",
    [
        '{"session_id": "1", "turns": [{"role": "a", "text": "half an emoji \\ud83d"}]}',
        '{"session_id": "\\udc00", "turns": [{"role": "a", "text": "x"}]}',
        '{"session_id": true, "turns": []}',
        "[" * 100_000,
    ],
    ids=["lone surrogate in a text", "in an id", "id is true", "nested without end"],
)
def test_a_line_that_json_allows_but_no_record_can_hold_is_bad(tmp_path, line):
    with pytest.raises(InputError, match=r"a\.jsonl:1: "):
        read(jsonl, write(tmp_path / "a.jsonl", line))


def conversation(*turns):
    return {"messages": [[{"sender": who, "text": text} for who, text in turn] for turn in turns]}


def test_a_conversation_is_a_session(tmp_path):
    content = {
        "c1": conversation([("x", "hi"), ("x", "there")], [("y", "你好")]),
        "c2": conversation(),
    }
    path = write(tmp_path / "dataset.json", json.dumps(content))
    expected = [("c1", [("x", "hi"), ("x", "there"), ("y", "你好")]), ("c2", [])]
    assert read(chitchat, path) == (expected, 0)


@pytest.mark.parametrize(
    "malformed",
    [
        {},
        [],
        "text",
        None,
        {"messages": None},
        {"messages": [1]},
        {"messages": [["hi"]]},
        {"messages": [[{"sender": "x"}]]},
        {"messages": [[{"sender": "x", "text": None}]]},
    ],
)
def test_a_malformed_conversation_is_bad_and_the_others_are_read(tmp_path, malformed):
    content = {"c1": conversation([("x", "a")]), "c2": malformed, "c3": conversation([("y", "b")])}
    path = write(tmp_path / "dataset.json", json.dumps(content))
    assert read(chitchat, path, limit=1) == ([("c1", [("x", "a")]), ("c3", [("y", "b")])], 1)
    with pytest.raises(InputError, match=f"{path}:2: conversation c2"):
        read(chitchat, path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"a": "\xff"}'])
def test_a_file_that_is_not_one_object_is_refused(tmp_path, content):
    path = tmp_path / "dataset.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{path}:.*(expected one JSON object|not UTF-8)"):
        read(chitchat, path, limit=100)


def test_conversations_may_be_compressed_like_any_input(tmp_path):
    path = tmp_path / "dataset.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"c1": conversation([("x", "a")])}).encode()))
    assert read(chitchat, path) == ([("c1", [("x", "a")])], 0)


def test_the_installed_conversations_are_all_read():
    sessions, bad = read(chitchat, find_package("chitchat_dataset") / "dataset.json")
    assert (len(sessions), bad) == (7168, 0)
    assert len({session_id for session_id, _ in sessions}) == 7168
    assert all(role and isinstance(text, str) for _, turns in sessions for role, text in turns)
    # Every turn has one or more messages, and there are 138,737 turns.
    assert sum(len(turns) for _, turns in sessions) >= 138_737


def refuse(path, format, **settings):
    """What is said of a file in another format."""
    options = CorpusOptions(format=format, input=(str(path),), **settings)
    with pytest.raises(InputError) as caught:
        list(read_sessions(options, options.count_bad_lines(), collections.Counter()))
    assert "\n" not in str(caught.value)
    return str(caught.value)


MESSAGES = '{"messages": [{"role": "user", "content": "hi"}]}'
SESSION = '{"session_id": "1", "turns": [{"role": "a", "text": "hi"}]}'
TABLE = "`format`=table `columns`=session_id:COLUMN,role:COLUMN,text:COLUMN reads a table; the "


@pytest.mark.parametrize(
    ("format", "lines", "advice"),
    [
        ("jsonl", [MESSAGES], "; `format`=messages reads it"),
        ("session_tsv", ['{"conversations": []}'], "; `format`=messages reads it"),
        ("chitchat", [f"[{MESSAGES}]"], "; `format`=messages reads JSON arrays of dialogues"),
        ("jsonl", ["[", MESSAGES, "]"], "; `format`=messages reads JSON arrays of dialogues"),
        ("session_tsv", [SESSION], "; `format`=jsonl reads it"),
        ("sgd", [SESSION], "; `format`=jsonl reads it"),
        (
            "jsonl",
            ["{", '"session_id": "1"'],
            "; each line must be a whole JSON object, as jq -c . ",
        ),
        ("messages", ["{", '"messages": []', "}"], "; each line must be a whole JSON object, as "),
        ("session_tsv", ["id;who;text", "1;a;hi"], f"; {TABLE}columns here are id, who, text"),
        ("jsonl", ["id,who,text", "1,a,hi"], f"; {TABLE}columns here are id, who, text"),
        ("session_tsv", ["a\tb\tc\td", "1\t2\t3\t4"], f"; {TABLE}columns here are a, b, c, d"),
        ("session_tsv", ["hi __eou__ ho __eou__"], "; `format`=messages with `alternate_roles` "),
        ("jsonl", ["PAR1\x00"], "; `format`=table reads Parquet with a turn a row, `format`=mess"),
        ("session_tsv", ["s1\ta\thi", "2"], ""),
        ("session_tsv", ["Where is it, please?"], ""),
        ("jsonl", [SESSION, "{"], ""),
        ("messages", [MESSAGES, "3"], ""),
    ],
)
def test_a_file_in_a_known_form_is_refused_with_the_format_that_reads_it(
    tmp_path, format, lines, advice
):
    said = refuse(write(tmp_path / "a", *lines), format)
    known = ("`format`=messages", "`format`=table", "`format`=jsonl", "jq -c")
    if advice:
        assert advice in said
    else:
        assert not any(name in said.partition("; ")[2] for name in known)


def test_quotes_around_a_field_are_removed(tmp_path):
    """As pandas writes them where a text has quotes."""
    lines = ['1\tu\t"say ""hi"""', '"1"\t"v"\t"ho"', '1\tu\t"a" or "b"', '1\tv\t"']
    assert read(session_tsv, write(tmp_path / "a.tsv", *lines))[0] == [
        ("1", [("u", 'say "hi"'), ("v", "ho"), ("u", '"a" or "b"'), ("v", '"')])
    ]


def read_options(path, **settings):
    options = CorpusOptions(input=(str(path),), **settings)
    dropped = collections.Counter()
    sessions = read_sessions(options, options.count_bad_lines(), dropped)
    return [[(turn.role, turn.text) for turn in session.turns] for session in sessions], dropped


def test_html_is_removed_where_it_should_be(tmp_path):
    texts = [
        "<p>Fish &amp; <b>c</b>hips</p><p>now</p>",
        "one<br/>two<script>x = 1 < 2</script><!-- not this -->three",
        "<div> </div>",
        "5 < 6 and a <3 &lt;b&gt;",
    ]
    path = write(tmp_path / "a.tsv", *(f"1\t{place}\t{text}" for place, text in enumerate(texts)))
    turns, dropped = read_options(path, strip_html=True)
    assert turns == [
        [("0", "Fish & chips now"), ("1", "one two three"), ("3", "5 < 6 and a <3 <b>")]
    ]
    assert dropped == {"empty_utterances": 1}
    assert [text for _, text in read_options(path)[0][0]] == texts


def test_html_is_removed_from_candidates(tmp_path):
    group = {
        "id": "1",
        "context": [{"role": "a", "text": "<i>hi</i>"}],
        "responder": "b",
        "candidates": ["<p>yes</p>", "<p>no</p>"],
        "labels": [1, 0],
    }
    path = write(tmp_path / "a.jsonl", json.dumps(group))
    options = CorpusOptions(format="candidates", input=(str(path),), strip_html=True)
    [session] = read_sessions(options, BadLines(0), collections.Counter())
    assert [turn.text for turn in session.turns] == ["hi", "yes"]
    assert session.given.negatives == ("no",)


def test_turns_are_given_to_two_speakers(tmp_path):
    """Turns without text do not count, and roles that are there give way."""
    path = write(tmp_path / "a.tsv", "1\t\thi", "1\t\t", "1\tx\tho", "1\tx\tbye", "2\t\tone")
    turns, _ = read_options(path, alternate_roles=True)
    assert turns == [[("a", "hi"), ("b", "ho"), ("a", "bye")], [("a", "one")]]


def test_sessions_that_joining_makes_too_short_are_named(tmp_path):
    lines = [
        json.dumps({"session_id": str(n), "turns": [{"role": "", "text": t} for t in texts]})
        for n, texts in enumerate((["a", "b"], ["c", "d", "e"], ["f"]))
    ]
    path = write(tmp_path / "a.jsonl", *lines)
    options = InspectOptions(format="jsonl", input=(str(path),), output_dir=str(tmp_path / "out"))
    with pytest.raises(InputError) as caught:
        inspect_data(options)
    assert str(caught.value).endswith(
        "no session of at least 2 turns (3 sessions too short (2 by joining turns that have one "
        "role: `join_consecutive`=false keeps them, `alternate_roles` gives them two speakers), "
        "0 utterances without text, 0 bad lines)"
    )
    assert len(read_options(path, format="jsonl", join_consecutive=False)[0][1]) == 3
