"""Tokens without TensorFlow are the graph's, for every kind of vocabulary, and rows of tokens."""

import unicodedata

import numpy as np
import pytest
from both_tokenizers import tokenize
from hypothesis import given, settings
from hypothesis import strategies as st
from texts_of_all_scripts import TEXTS
from tiny_checkpoints import train_byte_pairs, train_pieces

from dcse_tf.bert.token_rows import TokenRows
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.wordpiece import MPNetPieces, train_vocabulary

KINDS = ["uncased", "cased", "mpnet", "byte pairs", "pieces"]
# Added to a category of characters after the tables of one side were made.
LATER = "\u166d\u1734"
PARTS = [text[i : i + 4] for text in TEXTS for i in range(0, min(len(text), 60), 3)]
PARTS += [
    "  ",
    " \u00a0",
    "\u3000\u3000",
    "\t \n",
    "\v",
    "\x85",
    "१६",
    "६",
    "ΑΣ",
    "ΑΣ\0Α",
    "'s",
    "Σ",
]
PARTS += ["[CLS]", "[SEP]", "[EOT]", "<s>", "<mask>", "##", "\u2581", "\u0120", "\U0002b825"]


@pytest.fixture(scope="module", params=KINDS)
def vocabulary(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    if request.param == "byte pairs":
        train_byte_pairs(folder, TEXTS * 2, 600)
    elif request.param == "pieces":
        train_pieces(folder, [text for text in TEXTS for _ in range(3)], 600)
    else:
        made = train_vocabulary(TEXTS * 2, 900, request.param != "cased")
        if request.param == "mpnet":
            names = dict(zip(made.special, MPNetPieces.special, strict=True))
            made = MPNetPieces(tuple(names.get(token, token) for token in made.tokens), True)
        made.write(folder)
    return read_vocabulary(folder).with_end_of_turn()


def _is_old(char: str) -> bool:
    return unicodedata.ucd_3_2_0.category(char) not in ("Cn", "Cs") and char not in LATER


CHARACTERS = st.characters(exclude_categories=["Cs", "Cn"]).filter(_is_old)
DRAWN = st.lists(st.sampled_from(PARTS) | CHARACTERS | st.text("aé中 .'६", max_size=4), max_size=9)


@pytest.mark.parametrize("prefix", ["", "query: "])
@settings(max_examples=25, deadline=None)
@given(drawn=st.lists(DRAWN.map("".join), max_size=40), length=st.sampled_from([4, 9, 4000]))
def test_tokens_without_tensorflow_are_the_graph_s(vocabulary, prefix, drawn, length):
    tokenize(vocabulary.with_prefix(prefix), drawn, length)


def test_the_prefix_is_counted_without_the_space_that_a_text_may_take(vocabulary):
    own = len(tokenize(vocabulary, ["query:"])[0]) - 2
    assert vocabulary.with_prefix("query: ").count_prefix() == own > 0
    assert vocabulary.count_prefix() == 0


def test_rows_are_selected_and_padded():
    rows = TokenRows(np.arange(1, 7, dtype=np.int32), np.array([0, 2, 2, 5, 6]))
    assert (len(rows), rows.lengths.tolist()) == (4, [2, 0, 3, 1])
    chosen = rows[np.array([2, 1, 0, 2])]
    expected = [[3, 4, 5, 0], [0, 0, 0, 0], [1, 2, 0, 0], [3, 4, 5, 0]]
    assert chosen.to_table(4).tolist() == expected
    assert chosen.to_table(4, rows=5).tolist() == [*expected, [0, 0, 0, 0]]
    assert rows[np.array([], int)].to_table(2).shape == (0, 2)
