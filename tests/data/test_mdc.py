import gzip
import pathlib
import time
import zipfile

import pytest

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import mdc
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures" / "movie_all.tsv"
HEADER = "session.ID\tMessage.ID\tMessage.Timestamp\tMessage.From\tMessage.Text\tMessage.Acts"


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def row(session="1", sender="user", text="hi", *acts):
    return "\t".join([session, "1", "2016-05-02 10:00:00", sender, text, *acts])


def read(path, limit=0):
    bad_lines = BadLines(limit)
    return list(mdc.read_sessions(path, bad_lines)), bad_lines.count


def read_one(tmp_path, line):
    """The utterance of a file with one row."""
    [(_, [utterance])], bad = read(write(tmp_path / "taxi_all.tsv", HEADER, line))
    assert bad == 0
    return utterance


def test_a_file_as_it_is_published():
    """Byte-order mark, header, quotes, empty texts, other case, stray spaces, several acts."""
    first = [
        Utterance("user", 'Two seats for "The Lighthouse", please, tonight', ("request", "inform")),
        Utterance("agent", "Which town are you in?", ("request",)),
        Utterance("user", "near  Oslo", ("inform",)),
        Utterance("agent", "", ("multiple_choice", "not_sure")),
        Utterance("user", ""),
    ]
    second = [
        Utterance("agent", "Good morning", ("greeting",)),
        Utterance("user", '12" or 14"?', ("thanks",)),
        Utterance("agent", "it's at 5 (pm)"),
    ]
    assert read(FIXTURE) == ([("movie-1", first), ("movie-2", second)], 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"a, b"', "a, b"),
        ('"say ""a"""', 'say "a"'),
        ('"""a"" she says"', '"a" she says'),
        ('say "a"', 'say "a"'),
        ('"a" she says', '"a" she says'),
        ('""', ""),
        ('"', '"'),
        (' " a " ', "a"),
        ("it's", "it's"),
        ("a  b", "a  b"),
    ],
)
def test_the_quotes_around_a_text_are_removed(tmp_path, text, expected):
    assert read_one(tmp_path, row("1", "user", text)).text == expected


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ([], ()),
        (["", " ", '""'], ()),
        (["request(date)"], ("request",)),
        (["inform(city=Houma;state=LA)", "request(date)"], ("inform", "request")),
        (["request(a)", "inform(b)", "request(c)", "REQUEST(d)"], ("request", "inform")),
        (["thanks", "Confirm_Answer ( x )"], ("thanks", "confirm_answer")),
        ([" multiple_choice() "], ("multiple_choice",)),
        (["", "deny(x=(y))"], ("deny",)),
        (['"inform(note=""late"", or not)"'], ("inform",)),
        (["(x)", "12", "=", "{}"], ()),
        (["not  sure\u3000(x)", "a-b(c)", "é(x)"], ("not  sure",)),
    ],
)
def test_the_names_of_acts_are_intents(tmp_path, acts, expected):
    assert read_one(tmp_path, row("1", "agent", "hi", *acts)).intents == expected


def test_an_act_of_any_length_is_read_once(tmp_path):
    """Where blanks are tried one by one, 200,000 of them take minutes."""
    blanks = " " * 200_000
    start = time.process_time()
    utterance = read_one(tmp_path, row("1", "agent", "hi", f"a{blanks}!", f"a{blanks}(x)"))
    assert utterance.intents == ("a",)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("movie_all.tsv", "movie"),
        ("Restaurant_all.tsv.gz", "restaurant"),
        ("taxi_all.tsv.zip", "taxi"),
        ("hotel.tsv", "hotel"),
    ],
)
def test_the_domain_stands_before_the_number(tmp_path, name, domain):
    """Else session 1 of the films and session 1 of the taxis would be one."""
    content = f"{HEADER}\n{row('1')}\n{row('2')}\n".encode()
    path = tmp_path / name
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("inside_all.tsv", content)
    else:
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    assert [session_id for session_id, _ in read(path)[0]] == [f"{domain}-1", f"{domain}-2"]


@pytest.mark.parametrize("header", [HEADER, HEADER.upper(), f"\ufeff{HEADER}"])
def test_a_header_is_no_message(tmp_path, header):
    path = write(tmp_path / "a.tsv", header, row("1"))
    assert read(path) == ([("a-1", [Utterance("user", "hi")])], 0)
    # There alone: further on it is a line without a speaker.
    with pytest.raises(InputError, match=f"{path}:2: .*the fourth 'Message.From'"):
        read(write(path, row("1"), HEADER))


def test_a_file_may_lack_the_header(tmp_path):
    path = write(tmp_path / "a.tsv", row("1"), row("1", "agent"))
    assert read(path) == ([("a-1", [Utterance("user", "hi"), Utterance("agent", "hi")])], 0)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("nonsense", "found 1 field"),
        ("1\t1\tt\tuser", "found 4 field.*the fourth 'user'"),
        (row("", "user", "hi", "inform(x)"), "found 6 field"),
        (row(" "), "found 5 field"),
        (row("1", "system"), "the fourth 'system'"),
        (row("1", ""), "the fourth ''"),
        (row("1", "users"), "the fourth 'users'"),
    ],
)
def test_a_line_of_another_form_is_bad(tmp_path, line, found):
    path = write(tmp_path / "a.tsv", HEADER, row("1"), line, row("1", "agent"))
    expected = [("a-1", [Utterance("user", "hi"), Utterance("agent", "hi")])]
    assert read(path, limit=1) == (expected, 1)
    with pytest.raises(InputError, match=f"{path}:3: expected session.ID, .*{found}"):
        read(path)


def test_a_session_that_comes_back_is_bad(tmp_path):
    path = write(tmp_path / "a.tsv", row("1"), row("2"), row(" 1 "), row("2", "agent"))
    sessions, bad = read(path, limit=1)
    assert [(name, len(turns)) for name, turns in sessions] == [("a-1", 1), ("a-2", 2)]
    assert bad == 1
    with pytest.raises(InputError, match=f"{path}:3: session 'a-1' ended before"):
        read(path)


def test_the_first_session_does_not_wait_for_the_rest(tmp_path):
    path = write(tmp_path / "a.tsv", HEADER, row("1"), row("2"), row("3"), "nonsense")
    sessions = mdc.read_sessions(path, BadLines(0))
    assert next(sessions) == ("a-1", [Utterance("user", "hi")])
    assert next(sessions) == ("a-2", [Utterance("user", "hi")])
    with pytest.raises(InputError, match=f"{path}:5"):
        next(sessions)
