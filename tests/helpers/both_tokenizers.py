"""Tokenises by the graph and without TensorFlow, which must be the same."""

import functools

import tensorflow as tf

from dcse_tf.bert.token_rows import TextTokenizer
from dcse_tf.bert.vocabulary import SentencePiece, Vocabulary


@functools.lru_cache(maxsize=8)
def _make_both(vocabulary: Vocabulary, length: int):
    return vocabulary.make_tokenizer().as_graph(length), TextTokenizer(vocabulary, length)


def tokenize(vocabulary: Vocabulary, texts: list[str], length: int = 512) -> list[list[int]]:
    """The token ids of texts by the graph, after a comparison with `TextTokenizer`'s.

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
