"""Whatever a file holds, its reader takes it or says what is wrong, on one line with the file.

The contents that fuzzers found lie in fixtures/findings as READER-NAME; short ones stand here.
"""

import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from dcse_tf.baselines import word_vectors
from dcse_tf.baselines.registry import read_baseline
from dcse_tf.bert import checkpoints, sentence_modules, weights
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.vocabulary import SPECIAL_TOKENS
from dcse_tf.data.dialogue import Session, Utterance, make_session
from dcse_tf.data.formats import FORMATS, read_groups
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.records import count_records, serialize_session
from dcse_tf.errors import InputError
from dcse_tf.evaluation.report import read_results
from dcse_tf.evaluation.retrieval import read_retrieval_set, read_sts_set
from dcse_tf.input_files import BadLines, read_lines

FINDINGS = sorted((pathlib.Path(__file__).parents[1] / "fixtures/findings").iterdir())


@dataclasses.dataclass(frozen=True)
class Reader:
    """What reads a file.

    Attributes:
        file: the name of the file.
        read: reads that file's path.
        whole: a content that it takes; None if any does for the tests here.
        others: files beside it.
    """

    file: str
    read: Callable[[pathlib.Path], object]
    whole: bytes | None = None
    others: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    def try_content(self, content: bytes) -> str:
        """What InputError said of a content, or "" if it was taken."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for other, beside in {**self.others, self.file: content}.items():
                (folder / other).write_bytes(beside)
            said = ""
            try:
                self.read(folder / self.file)
            except InputError as error:
                said = str(error)
            assert not said or f"{folder}/" in said, f"names no file: {said}"
            assert len(said.splitlines()) < 2, f"several lines: {said}"
        return said


def _read_corpus(name: str) -> Callable[[pathlib.Path], object]:
    def read(path: pathlib.Path) -> None:
        for session_id, turns, *_ in FORMATS[name].read(path, BadLines(3)):
            session = make_session(session_id, turns).to_dict()
            json.dumps(session, ensure_ascii=False).encode()  # as prepare_data writes it

    return read


def _read_record(path: pathlib.Path) -> None:
    """The content as a record of a shard: what is in it lies, its checksum is right."""
    shard = str(path.with_suffix(".tfrecord"))
    with tf.io.TFRecordWriter(shard) as writer:
        writer.write(path.read_bytes())
    assert count_records(shard) == 1


_LINES = b'{"session_id": "1", "turns": [{"role": "u", "text": "hi"}]}\n'
_VOCABULARY = "\n".join([*SPECIAL_TOKENS, "a", "##b", "的", ""]).encode()
_BERT = {
    "model_type": "bert", "vocab_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
    "hidden_size": 4, "intermediate_size": 4, "max_position_embeddings": 16, "type_vocab_size": 2,
    "hidden_act": "gelu", "position_embedding_type": "absolute",
}  # fmt: skip
_RECORD = serialize_session(
    Session("s", (Utterance("a", "x"), Utterance("b", "y"))),
    [np.array([2, 5, 3]), np.array([2, 6, 3])],
)
_WEIGHTS = safetensors.numpy.save({"x": np.ones(2, np.float32)})
READERS = {
    **{name: Reader("corpus", _read_corpus(name)) for name in FORMATS},
    "groups": Reader("a", lambda path: list(read_groups(path, "jsonl", BadLines(3)))),
    "sentences": Reader("a.txt", lambda path: list(read_lines(path, BadLines(), True)), b"a\r\n\n"),
    "retrieval": Reader(
        "select.txt", read_retrieval_set, b"0\ta\tx\t1\t2\n1\tb\tx\t\t\n2\tc\ty\t\t\n"
    ),
    "sts": Reader("sts.txt", read_sts_set, b"1.5\ta\tb\n4\tc\td\n"),
    "results": Reader("results.json", read_results),
    "vectors_json": Reader("a.json", word_vectors.read_word_vectors, b'{"a": [1, 2]}'),
    "vocabulary": Reader("vocab.txt", lambda path: read_vocabulary(path.parent), _VOCABULARY),
    "tokenizer": Reader(
        "tokenizer_config.json",
        lambda path: read_vocabulary(path.parent),
        b'{"do_lower_case": true}',
        {"vocab.txt": _VOCABULARY},
    ),
    "tokenizer_json": Reader("tokenizer.json", lambda path: read_vocabulary(path.parent)),
    "modules": Reader(
        "modules.json",
        lambda path: sentence_modules.read_modules(path.parent, 8),
        others={"config.json": b"{}"},
    ),
    "manifest": Reader("manifest.json", lambda path: read_manifest(path.parent)),
    "record": Reader("record", _read_record, _RECORD),
    "weights": Reader(
        "model.safetensors", lambda path: weights.read_tensors(path.parent), _WEIGHTS
    ),
    "bert_config": Reader(
        "config.json", lambda path: checkpoints.read_config(path.parent), json.dumps(_BERT).encode()
    ),
    "sentence_config": Reader(
        "sentence_bert_config.json",
        lambda path: checkpoints.read_max_sequence_length(path.parent),
        b'{"max_seq_length": 16}',
    ),
    "baseline": Reader("baseline.json", lambda path: read_baseline(path.parent)),
}
_DEEP = b"[" * 100_000
_DEEP_TURN = b'{"dialogue_id": "1", "turns": [%s]}' % (b"[" * 3000 + b"]" * 3000)
# Reader and content, none of which may be taken.
REFUSED = [
    ("vocabulary", b"[PAD]\n\xb3"),
    ("vocabulary", _VOCABULARY + b"c\nd\nc\n"),
    ("vocabulary", _VOCABULARY + b"c" * 257),
    *(("tokenizer", content) for content in (b"1", b"\xff{}")),
    *(("sentence_config", content) for content in (b"", b"1", b"{}", b'{"max_seq_length": 2}')),
    *(("bert_config", json.dumps(_BERT | change).encode()) for change in (
        {"hidden_act": "relu"}, {"layer_norm_eps": "1e-5"}, {"layer_norm_eps": True},
    )),
    *(("weights", _WEIGHTS[:length]) for length in range(0, len(_WEIGHTS), 7)),
    *((name, _DEEP) for name in (
        *("manifest", "results", "vectors_json", "bert_config", "baseline"),
        *("tokenizer_json", "modules"),
    )),
    ("jsonl", b"1\n" * 3 + _DEEP),
    ("sgd", b"[%s]" % b", ".join([_DEEP_TURN] * 4)),
    ("record", b""),
    ("record", _RECORD.replace(b"lengths", b"strengt")),
    ("baseline", b"[]"),
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in READERS if READERS[name].whole is not None])
def test_a_whole_file_is_taken(name):
    """Holds the other tests: a reader that refuses everything would pass them."""
    assert READERS[name].try_content(READERS[name].whole) == ""


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.name)
def test_what_a_fuzzer_found_is_refused(path):
    assert READERS[path.name.partition("-")[0]].try_content(path.read_bytes())


@pytest.mark.parametrize(("name", "content"), REFUSED)
def test_a_broken_file_is_refused(name, content):
    assert READERS[name].try_content(content)


# Pieces that the formats are made of, and what breaks text: marks, ends, nulls, half characters.
_PIECES = [
    *(bytes([byte]) for byte in b'\t\n,015{}[]":a \x00\x85\xff'),
    *(b"\r\n", b"-1", b"nan", b"1e400", b"9" * 30, b"null", b"||", b"<!--"),
    *("包裹".encode(), b"\xef\xbb\xbf", b"\xed\xa0\x80", b'"\\ud800"', "\u2028".encode()),
    *(b"x" * 70_000, b"s1\tq\ta\t1\t2\n", b"3\ta\tb\n", b'"turns"', b'"messages"', _LINES),
]
_CONTENTS = st.one_of(
    st.binary(max_size=300), st.lists(st.sampled_from(_PIECES), max_size=40).map(b"".join)
)


@pytest.mark.parametrize("name", [*FORMATS, "groups", "sts", "retrieval", "results"])
def test_any_bytes_are_taken_or_refused(name):
    @settings(max_examples=40, deadline=None)
    @given(_CONTENTS)
    def check(content):
        READERS[name].try_content(content)

    check()


_LONG = "é" * 500_000  # a megabyte
_TEXTS = {
    "session_tsv": "s1\ta\tqué tal\ns1\tb\tit left\n",
    "jsonl": '{"session_id": "1", "turns": [{"role": "a", "text": "qué"}]}\n',
    "retrieval": "0\tqué\tx\t1\t2\n1\tb\tx\t\t\n2\tc\ty\t\t\n",
    "sts": "1.5\tqué\tb\n4\tc\td\n",
    "sentences": "qué\nsecond\n",
}


@pytest.mark.parametrize("name", _TEXTS)
def test_what_editors_make_of_a_text_is_taken_or_refused_by_its_line(name):
    text, reader = _TEXTS[name], READERS[name]
    taken = [
        text.replace("qué", _LONG).encode(),
        b"\xef\xbb\xbf" + text.encode(),
        text.replace("\n", "\r\n").encode(),
        text.encode("utf-16"),
    ]
    assert [reader.try_content(content) for content in taken] == [""] * len(taken)
    strict = dataclasses.replace(
        reader, read=lambda path: list(FORMATS[name].read(path, BadLines(0)))
    )
    reader = strict if name in FORMATS else reader
    for broken in (text.encode("latin-1"), text.encode().replace("é".encode(), b"\xed\xa0\x80")):
        assert ":1: not UTF-8" in reader.try_content(broken)
