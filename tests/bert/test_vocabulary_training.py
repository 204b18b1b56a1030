"""A WordPiece vocabulary trained on a corpus."""

import random

import pytest

from dcse_tf.bert.tokenizer import train_vocabulary
from dcse_tf.bert.vocabulary import SPECIAL_TOKENS

# Every word twice: a pair of letters must come twice to be an entry.
CORPUS = ["The cat and the dog", "A cat, a dog", "Café au lait", "café Au lait", "的猫 狗的"] * 2
IDEOGRAPHS = [chr(point) for point in range(0x4E00, 0x4E00 + 1500)]


@pytest.mark.parametrize(("texts", "size"), [(CORPUS, 30), (CORPUS, 60), (IDEOGRAPHS, 100)])
def test_a_trained_vocabulary_holds_its_size_and_begins_with_the_special_tokens(texts, size):
    """Also where there are more characters."""
    vocabulary = train_vocabulary(["".join(texts)] * 2 if size == 100 else texts, size, True)
    assert len(vocabulary.tokens) == len(set(vocabulary.tokens)) <= size
    assert vocabulary.tokens[:5] == SPECIAL_TOKENS
    assert vocabulary.lowercase


def test_a_trained_vocabulary_has_every_character_there_is_room_for():
    """A Chinese corpus has some thousands of characters, each of them a word to BERT."""
    vocabulary = train_vocabulary(["".join(IDEOGRAPHS)] * 2, 2000, lowercase=True)
    assert set(IDEOGRAPHS) <= set(vocabulary.tokens)


def test_a_trained_vocabulary_covers_its_corpus_in_its_casing():
    for lowercase, accented in ((True, "cafe"), (False, "Café")):
        vocabulary = train_vocabulary(CORPUS, 100, lowercase)
        assert accented in vocabulary.tokens
        ids = vocabulary.make_split()(CORPUS)
        assert vocabulary.unk_id not in {i for row in ids for i in row}


def test_the_same_corpus_trains_the_same_vocabulary():
    """In any order, and in any process, as the recorded value says: hashes differ between runs."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop", k=5)) for _ in range(200)] * 2
    found = {
        train_vocabulary(order, 150, lowercase=True).fingerprint()
        for order in (words, words[::-1], sorted(words))
    }
    assert {each[:16] for each in found} == {"54294de8ea006f48"}


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
