"""The readers' answers to contents that once broke them; `fuzz.py` looks for more of these.

A content lies in fixtures/findings as TARGET-NAME; short ones stand here.
"""

import json

import numpy as np
import pytest
from reader_targets import FIXTURES, TARGETS, try_content

from dcse_tf.data.records import serialize_session

FINDINGS = sorted((FIXTURES / "findings").iterdir())
_RECORD = serialize_session("s", np.array([2, 5, 3, 2, 6, 3]), [3, 3], "ab")
_VOCABULARY = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
# ijson reads any depth, but Python cannot print it.
_DEEP_ACT = b'"7": {"messages": [{"role": "usr", "content": "a", "dialog_act": [%s]}]}' % (
    b"[" * 3000 + b"]" * 3000
)


def _change_bert(key: str, value: object) -> bytes:
    return json.dumps({**json.loads(TARGETS["bert_config"].seeds[0]), key: value}).encode()


# Target, content, what is said.
SAID = [
    ("vocabulary", b"[PAD]\n\xb3", "not UTF-8"),
    ("vocabulary", _VOCABULARY + b"a\nb\na\n", ":8: 'a' is already on line 6"),
    ("vocabulary", _VOCABULARY + b"a\n\0\n", ":7: expected an entry of 256 bytes at most"),
    ("vocabulary", _VOCABULARY + b"a" * 257, ":6: expected an entry of 256 bytes at most"),
    ("tokenizer", b"1", "not a JSON object: found 1"),
    ("tokenizer", b"\xff{}", "not a JSON object: 'utf-8'"),
    ("sentence_config", b"", "not a JSON object: Expecting value"),
    ("sentence_config", b"\xa1", "not a JSON object: 'utf-8'"),
    ("sentence_config", b"1", "not a JSON object: found 1"),
    ("sentence_config", b"{}", "expected max_seq_length, 3 tokens or more"),
    ("sentence_config", b'{"max_seq_length": 2}', "expected max_seq_length, 3 tokens or more"),
    ("csv", b'tex\x1ct,"in\x0btent"\na,b\n', r"the header has tex\x1ct, in\x0btent"),
    ("tsv", b"text\tint\x1cent\na\tb\n", r"the header has text, int\x1cent"),
    ("manifest", b"[" * 100_000, "not a manifest of prepare_data: nested too deeply"),
    ("results", b"[" * 100_000, "not a file of results of evaluate: nested too deeply"),
    ("vectors_json", b"[" * 100_000, "not JSON"),
    ("bert_config", b"[" * 100_000, "not a JSON object: nested too deeply"),
    ("bert_config", _change_bert("hidden_act", "relu"), "hidden_act 'relu', expected one of gelu"),
    ("bert_config", _change_bert("layer_norm_eps", "1e-5"), "layer_norm_eps '1e-5', expected"),
    ("bert_config", _change_bert("layer_norm_eps", 0), "layer_norm_eps 0, expected a number"),
    ("bert_config", _change_bert("layer_norm_eps", True), "layer_norm_eps True, expected a"),
    ("weights_index", b"[" * 100_000, "not the index of a checkpoint: nested too deeply"),
    ("baseline", b"[" * 100_000, "not a file of fit_baseline: nested too deeply"),
    ("tokenizer_json", b"[" * 100_000, "nested too deeply"),
    ("modules", b"[" * 100_000, "cannot be read: nested too deeply"),
    ("jsonl", b"1\n" * 3 + b"[" * 100_000, ":4: nested too deeply"),
    ("crosswoz", b"{%s}" % b", ".join([_DEEP_ACT] * 4), "expected an act"),
    ("record", b"", "record 1 cannot be read"),
    ("record", _RECORD.replace(b"lengths", b"strengt"), "record 1"),
    ("record", _RECORD.replace(b"utterances", b"utterings "), ": record 1: "),
    ("baseline", b"[]", "not a file of fit_baseline: found []"),
]


@pytest.mark.parametrize("name", TARGETS)
def test_a_whole_file_is_taken(name, tmp_path):
    """Holds the other tests: a reader that refuses everything would pass them."""
    for content in TARGETS[name].seeds:
        assert try_content(TARGETS[name], tmp_path, content) == ""


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.name)
def test_a_finding_is_one_sentence_with_the_file(path, tmp_path):
    target = TARGETS[path.name.partition("-")[0]]
    assert try_content(target, tmp_path, path.read_bytes())


@pytest.mark.parametrize(("name", "content", "message"), SAID)
def test_what_is_said_of_it(name, content, message, tmp_path):
    assert message in try_content(TARGETS[name], tmp_path, content)
