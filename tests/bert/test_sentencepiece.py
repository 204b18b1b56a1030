"""SentencePiece token for token the same as HuggingFace's tokenizer, and its files."""

import base64
import json

import both_tokenizers
import pytest
import tokenizers
from texts_of_all_scripts import LONG_WORDS, TEXTS
from tiny_checkpoints import train_pieces
from transformers import AutoTokenizer

from dcse_tf.bert.sentencepiece import SPECIAL_TOKENS, SentencePiece
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.vocabulary import END_OF_TURN
from dcse_tf.errors import InputError

# Half-width kana whose voicing mark is a character of its own: HuggingFace normalises them apart.
_APART = "\uff76\uff9e"
CORPUS = [text for text in (*TEXTS, *LONG_WORDS) if _APART not in text]
PARTS = ["  a  b ", "\ta\n", "hello world", "< s> <a>", "x" * 7, "您好您好", "ﬁ①", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint's, with SentencePiece's own file alone."""
    folder = tmp_path_factory.mktemp("pieces")
    train_pieces(folder, [text for text in CORPUS for _ in range(3)], 600)
    return folder


@pytest.fixture(scope="module")
def vocabulary(folder) -> SentencePiece:
    return read_vocabulary(folder)


def tokenize(vocabulary, texts: list[str], length: int = 10_000) -> list[list[str]]:
    ids = both_tokenizers.tokenize(vocabulary, texts, length)
    return [[vocabulary.tokens[i] for i in row] for row in ids]


@pytest.mark.parametrize("texts", [CORPUS, PARTS])
def test_tokens_are_those_of_huggingface(folder, vocabulary, texts):
    theirs = AutoTokenizer.from_pretrained(folder)
    expected = [
        theirs.convert_ids_to_tokens(theirs(text, split_special_tokens=True)["input_ids"])
        for text in texts
    ]
    scores = dict(vocabulary.list_pieces())
    for found, row in zip(tokenize(vocabulary, texts), expected, strict=True):
        if found != row:  # ".." + "." and "." + ".." are equally likely: either may be taken
            assert "".join(found) == "".join(row)
            totals = [sum(scores[token] for token in tokens) for tokens in (found, row)]
            assert totals[0] == pytest.approx(totals[1], abs=1e-3)
    assert any(len(row) > 20 for row in expected) or texts is PARTS


def test_the_name_of_a_special_entry_in_a_text_is_text(folder, vocabulary):
    """HuggingFace takes it for the entry, whatever it is asked for."""
    theirs = AutoTokenizer.from_pretrained(folder)
    text = "a <s> <mask>"
    expected = theirs(text, split_special_tokens=True)["input_ids"]
    assert "<s>" in theirs.convert_ids_to_tokens(expected)[1:]
    (found,) = tokenize(vocabulary, [text])
    assert not set(found[1:-1]) & {"<s>", "<mask>"}


def test_the_special_entries_are_huggingfaces_with_the_padding_first(folder, vocabulary):
    theirs = AutoTokenizer.from_pretrained(folder)
    names = theirs.convert_ids_to_tokens(range(len(theirs)))
    assert names[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert list(vocabulary.tokens) == [names[1], names[0], *names[2:]]
    assert vocabulary.special_ids == (0, 3, 1, 2, len(names) - 1)
    assert tokenize(vocabulary, [""]) == [["<s>", "</s>"]]


def test_a_text_is_cut_behind_the_prefix(vocabulary):
    (whole,) = tokenize(vocabulary, ["query: hello world"])
    with_prefix = vocabulary.with_prefix("query: ")
    assert tokenize(with_prefix, ["hello world"]) == [whole]
    assert tokenize(with_prefix, ["hello world"], 5) == [[*whole[:4], "</s>"]]
    assert with_prefix.fingerprint() != vocabulary.fingerprint()


@pytest.mark.parametrize("change", [{}, {"prefix": "query: "}])
def test_what_is_written_reads_back(vocabulary, tmp_path, change):
    before = vocabulary.with_prefix(change.get("prefix", ""))
    before.write(tmp_path)
    after = read_vocabulary(tmp_path)
    assert after == before
    assert after.fingerprint() == before.fingerprint()


def test_huggingface_reads_what_is_written(vocabulary, tmp_path):
    vocabulary.with_end_of_turn().write_tokenizer(tmp_path, 9)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    texts = ["hello world", "您好", "a [EOT] b", "x y z " * 9]
    found = theirs(texts, truncation=True)["input_ids"]
    tokens = [theirs.convert_ids_to_tokens(row) for row in found]
    expected = tokenize(vocabulary, texts, 9)
    assert [tokens[0], tokens[1], tokens[3]] == [expected[0], expected[1], expected[3]]
    assert END_OF_TURN in tokens[2]
    assert theirs.pad_token_id == 0


def test_a_tokenizer_json_of_huggingfaces_is_the_same_vocabulary(folder, vocabulary, tmp_path):
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    assert not (tmp_path / "sentencepiece.bpe.model").exists()
    assert read_vocabulary(tmp_path).fingerprint() == vocabulary.fingerprint()


def test_end_of_turn_is_no_part_of_the_fingerprint(vocabulary, tmp_path):
    extended = vocabulary.with_end_of_turn()
    assert extended.fingerprint() == vocabulary.fingerprint()
    assert extended.tokens[-1] == END_OF_TURN
    assert tokenize(extended, ["a [EOT] b"]) == tokenize(vocabulary, ["a [EOT] b"])
    extended.write(tmp_path)
    assert read_vocabulary(tmp_path) == extended


def test_words_begin_with_a_space_and_are_spelt_with_one(vocabulary):
    assert vocabulary.begins_word("▁hello")
    assert not vocabulary.begins_word("lo")
    assert not vocabulary.begins_word("▁")
    assert vocabulary.spell(["▁hel", "lo", "▁you"]) == "hello you"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "normalizer 'Lowercase', expected Precompiled"),
        ({"pre_tokenizer": {"type": "ByteLevel"}}, "pre_tokenizer 'ByteLevel', expected Metasp"),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}},
            "precompiled_charsmap: ",
        ),
        ({"model": {"type": "WordLevel"}}, "model 'WordLevel', expected WordPiece or Unigram or B"),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}, "lacks <pad>, <unk>, <s>"),
        ({"model": {"type": "Unigram", "vocab": [3]}}, "expected a tokenizer of unigrams"),
    ],
)
def test_a_tokenizer_that_does_something_else_is_refused(vocabulary, tmp_path, change, message):
    vocabulary.write(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = {**json.loads(path.read_text()), "added_tokens": [], **change}
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        read_vocabulary(tmp_path)


def test_a_model_that_is_no_xlmr_is_refused(tmp_path):
    path = tmp_path / "sentencepiece.bpe.model"
    path.write_bytes(b"\xff\xff nothing")
    with pytest.raises(InputError, match=r"sentencepiece\.bpe\.model: cannot be read"):
        read_vocabulary(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="begins with <unk>, <s> and </s>, found nothing"):
        read_vocabulary(tmp_path)


def test_the_table_of_characters_is_kept(vocabulary):
    normalizer = tokenizers.normalizers.Precompiled(vocabulary.charsmap)
    assert normalizer.normalize_str("ﬁ①") == "fi1"
    assert len(base64.b64encode(vocabulary.charsmap)) > 1000
    assert set(SPECIAL_TOKENS) <= set(vocabulary.tokens)
