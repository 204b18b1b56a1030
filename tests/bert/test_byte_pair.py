"""Byte pairs token for token the same as HuggingFace's tokenizer, and their files."""

import json

import both_tokenizers
import pytest
import tokenizers
from texts_of_all_scripts import LONG_WORDS, TEXTS
from tiny_checkpoints import train_byte_pairs

from dcse_tf.bert.byte_pair import BytePair
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.errors import InputError

# Of a text of nothing but spaces the last is apart here; a null character is removed.
BLANK, NULL = "   ", "\x00"
CORPUS = [text for text in (*TEXTS, *LONG_WORDS) if text != BLANK and NULL not in text]
SPACES = ["a  b", "a   b ", " x", "  \n x\n\ny", "don't we'll I'M 12,345.67\t\tz", "hi!!! ...ok"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    train_byte_pairs(folder, [*CORPUS, *SPACES] * 2, 600)
    return folder


@pytest.fixture(scope="module")
def vocabulary(folder) -> BytePair:
    return read_vocabulary(folder)


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    def tokenize(texts, length=10_000):
        ids = both_tokenizers.tokenize(vocabulary, texts, length)
        return [[vocabulary.tokens[i] for i in row] for row in ids]

    return tokenize


@pytest.mark.parametrize("texts", [CORPUS, SPACES])
def test_tokens_are_those_of_huggingface(folder, tokenizer, texts):
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = [theirs.encode(text).tokens for text in texts]
    assert tokenizer(texts) == expected
    assert tokenizer(texts) == expected  # from the words that it has kept


def test_known_differences(folder, tokenizer):
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer([f"a{NULL}b"]) == [theirs.encode("ab").tokens]
    (found,) = tokenizer([BLANK])
    assert set("".join(found[1:-1])) == {"Ġ"}
    assert "<s>" not in tokenizer(["a <s>"])[0][1:]


def test_a_text_is_cut(tokenizer):
    (whole,) = tokenizer(["don't we'll"])
    assert tokenizer(["don't we'll"], 4) == [[*whole[:3], "</s>"]]


def test_the_padding_is_first(vocabulary):
    assert vocabulary.tokens[:4] == ("<pad>", "<s>", "</s>", "<unk>")
    assert vocabulary.special_ids == (0, 3, 1, 2, 4)


def test_what_is_written_reads_back(vocabulary, tmp_path):
    extended = vocabulary.with_end_of_turn()
    extended.write(tmp_path)
    assert read_vocabulary(tmp_path) == extended
    assert extended.fingerprint() == vocabulary.fingerprint()


def test_robertas_first_files_are_the_same_vocabulary(folder, vocabulary, tmp_path):
    content = json.loads((folder / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(content["vocab"]))
    rules = [" ".join(pair) for pair in content["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *rules]) + "\n")
    assert read_vocabulary(tmp_path) == vocabulary
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(InputError, match=r"expected vocab\.json and merges\.txt"):
        read_vocabulary(tmp_path)


def test_tokens_are_spelt_as_text(vocabulary, tokenizer):
    (tokens,) = tokenizer(["中文 is fine"])
    assert vocabulary.spell(tokens[1:-1]) == "中文 is fine"
    assert vocabulary.begins_word("Ġfine")
    assert not vocabulary.begins_word("Ġ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": {"type": "NFC"}}, "normalizer is {'type': 'NFC'}, expected None"),
        (
            {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
            "add_prefix_space is True, expected False",
        ),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "type is 'Whitespace', expected 'ByteLevel'"),
        ({"model": {"type": "BPE"}}, "expected a tokenizer of byte pairs"),
        ({"model": {"type": "BPE", "vocab": {"a": 1}, "merges": []}}, "entries numbered from 0"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}, "lacks <pad>"),
    ],
)
def test_a_tokenizer_that_does_something_else_is_refused(folder, tmp_path, change, message):
    content = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, "added_tokens": [], **change}))
    with pytest.raises(InputError, match=message):
        read_vocabulary(tmp_path)
