"""Whatever a file holds, its reader takes it or says what is wrong with which file."""

import json
import pathlib

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dcse_tf.data.formats import FORMATS
from dcse_tf.errors import InputError
from dcse_tf.evaluation.report import read_json
from dcse_tf.evaluation.retrieval import read_retrieval_set
from dcse_tf.evaluation.sts import read_sts_set
from dcse_tf.input_files import BadLines

# Pieces that the formats are made of, and what breaks text: marks, ends, nulls, half characters.
_PIECES = [
    *(bytes([byte]) for byte in b'\t\n,015{}[]":a \x00\x85\xff'),
    *(b"\r\n", b"-1", b"4.5", b"nan", b"inf", b"1e400", b"9" * 30, b"null", b"||", b"__eou__"),
    *("包裹".encode(), b"\xef\xbb\xbf", b"\xed\xa0\x80", b'"\\ud800"', "\u2028".encode()),
    *(b"x" * 70_000, b"s1\tq\ta\t1\t2\n", b"3\ta\tb\n", b'"turns"', b'"messages"'),
    b'{"session_id": "1", "turns": [{"role": "a", "text": "b"}]}\n',
]
_CONTENTS = st.one_of(
    st.binary(max_size=300), st.lists(st.sampled_from(_PIECES), max_size=40).map(b"".join)
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["session_id", "turns", "role", "text", "messages", "sender", "results"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
_SETTINGS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _takes_or_names(read, path: pathlib.Path, content: bytes) -> None:
    path.write_bytes(content)
    said = ""
    try:
        read(path)
    except InputError as error:
        said = str(error)
    assert not said or str(path) in said
    assert "\n" not in said


@pytest.mark.parametrize("name", FORMATS)
def test_a_corpus_of_any_bytes(name, tmp_path):
    suffix = ".json" if name in ("chitchat", "sgd", "crosswoz") else ".txt"

    @_SETTINGS
    @given(_CONTENTS | _JSON.map(lambda value: json.dumps(value).encode()))
    @example(b"")
    @example(b'{"a": null, "b": null, "c": null, "\\n": null}')
    def check(content):
        read = lambda path: list(FORMATS[name].read(path, BadLines(3)))  # noqa: E731
        _takes_or_names(read, tmp_path / f"corpus{suffix}", content)

    check()


@pytest.mark.parametrize("read", [read_sts_set, read_retrieval_set, read_json])
def test_a_set_of_any_bytes(read, tmp_path):
    @_SETTINGS
    @given(_CONTENTS | _JSON.map(lambda value: json.dumps(value).encode()))
    @example(b"")
    def check(content):
        _takes_or_names(read, tmp_path / "set.txt", content)

    check()
