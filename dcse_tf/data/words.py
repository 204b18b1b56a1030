"""Splits texts into words, for BM25, word vectors and counts. BERT uses WordPiece instead."""

import functools
import logging
import re
import unicodedata
from collections.abc import Callable

from dcse_tf.errors import require

_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_OF_EMOJI = re.compile("[\u20e3\ufe00-\ufe0f]")  # the frame of a keycap, variation selectors
_CHARACTER = re.compile(r"[0-9a-z\u00df-\u024f]+|\S")


def make_splitter(kind: str) -> Callable[[str], list[str]]:
    """Makes a function that splits a text into its words, in lower case.

    Args:
        kind: "words": runs of letters and digits. "jieba": Chinese words, and any other symbol by
            itself (jieba's default mode, which agrees best with the paper's retrieval sets).
            "characters": every character by itself, but Latin words and numbers as a whole. "auto":
            "jieba" for a text with a Chinese character, "words" for any other.
    """

    def split_words(text: str) -> list[str]:
        return _word().findall(text.casefold())

    def split_chinese(text: str) -> list[str]:
        return [word for word in _cut()(text.casefold()) if not word.isspace()]

    splitters: dict[str, Callable[[str], list[str]]] = {
        "auto": lambda text: (split_chinese if _HAN.search(text) else split_words)(text),
        "words": split_words,
        "jieba": split_chinese,
        "characters": lambda text: _CHARACTER.findall(text.casefold()),
    }
    return splitters[kind]


@functools.cache  # takes a twentieth of a second
def list_marks() -> str:
    """Marks that belong to the letter before them, such as the vowel signs of Hindi and Thai."""
    return "".join(
        char
        for char in map(chr, range(0x300, 0x11000))
        if unicodedata.category(char)[0] == "M" and not _OF_EMOJI.match(char)
    )


@functools.cache
def _word() -> re.Pattern[str]:
    marks = list_marks()
    return re.compile(rf"\w[\w{marks}]*(?:['’]\w[\w{marks}]*)*")


@functools.cache
def _cut() -> Callable[[str], list[str]]:
    # Imported only for Chinese text, because jieba takes a second to read its dictionary.
    jieba = require("jieba", extra="chinese", why="splitting Chinese text into words")
    jieba.setLogLevel(logging.WARNING)
    return jieba.lcut
