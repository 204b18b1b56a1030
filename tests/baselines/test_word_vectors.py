"""Word vectors: read from files."""

import gzip
import json

import numpy as np
import pytest
from gensim.models import KeyedVectors
from shared_files import shared_file

from dcse_tf.baselines.word_vectors import WordVectorsOptions, fit_word_vectors, read_word_vectors
from dcse_tf.errors import InputError

WORDS = {"where": [1.0, -2.5, 0.125], "包裹": [0.0, 3.0, -1.0], "don't": [4.0, 0.5, 2.0]}
GLOVE = "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in WORDS.items())
WORD2VEC = f"3 3\n{GLOVE}"


def as_binary(folder) -> bytes:
    vectors = KeyedVectors(3)
    vectors.add_vectors(list(WORDS), np.array(list(WORDS.values()), np.float32))
    vectors.save_word2vec_format(str(folder / "written"), binary=True)
    return (folder / "written").read_bytes()


@pytest.mark.parametrize("name", ["a.txt", "a.vec.gz", "b.txt", "a.bin", "a.bin.gz", "a.json.gz"])
def test_every_form_is_read(tmp_path, name):
    raw = {"a.json.gz": json.dumps(WORDS), "b.txt": GLOVE}.get(name, WORD2VEC).encode()
    raw = as_binary(tmp_path) if ".bin" in name else raw
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    rows, matrix = read_word_vectors(tmp_path / name)
    assert rows == {word: row for row, word in enumerate(WORDS)}
    np.testing.assert_array_equal(matrix, [*WORDS.values()])
    assert matrix.dtype == np.float32


def test_an_array_and_an_index_of_its_rows_are_read(tmp_path):
    np.savez(tmp_path / "a.npz", embeddings=np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    (tmp_path / "index.json").write_text('{"好": 2, "a": 0}')
    rows, matrix = read_word_vectors(tmp_path / "a.npz", tmp_path / "index.json")
    assert rows == {"好": 2, "a": 0}
    assert matrix.tolist() == [[1, 2], [3, 4], [5, 6]]
    (tmp_path / "index.json").write_text('{"好": 3}')
    with pytest.raises(InputError, match=r"index\.json: '好' has row 3, expected 0 to 2"):
        read_word_vectors(tmp_path / "a.npz", tmp_path / "index.json")


def test_a_word_cut_inside_a_character_is_another_word(tmp_path):
    """word2vec's own program cuts long words between bytes; "ab" must not be lost by that."""
    (tmp_path / "a.txt").write_bytes(b"2 2\nab 1 2\nab\xe5\x8c 3 4\n")
    rows, matrix = read_word_vectors(tmp_path / "a.txt")
    assert (len(rows), matrix[rows["ab"]].tolist()) == (2, [1, 2])


@pytest.mark.parametrize(("name", "content"), [
    ("gone.txt", None), ("a.txt", b""), ("a.txt", b"hello world\n"),
    ("a.txt", b"2 3\na 1 2 3\nb 1 x 3\n"), ("a.txt", b"2 3\na 1 2 3\n"),
    ("a.txt", b"a 1 2 3\nb 1 2\n"), ("a.txt", b"99999999999 99999999999\na 1 2 3\n"),
    ("a.txt", b"a\t1\t2\t3\nb\t1\t2\t3\n"), ("a.txt.gz", GLOVE.encode()),
    ("a.bin", GLOVE.encode()), ("a.bin.gz", b"3 3\n"), ("a.json", b'{"a": [1, 2], "b": [1]}'),
    ("a.json", b'{"a": 3}'), ("a.json", b"[[1, 2]]"), ("a.json", b"{"),
    ("a.npz", b"PK\x03\x04 no archive"),
])  # fmt: skip
def test_a_file_of_another_form_than_its_name_says_is_named(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    index = tmp_path / "index.json" if name == "a.npz" else None
    with pytest.raises(InputError) as caught:
        read_word_vectors(tmp_path / name, index)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")


@pytest.mark.parametrize(
    ("files", "words", "width"),
    [
        (["glove-50d-5k.json"], ["the", "package"], 50),
        (["tencent_char_200d.npz", "tencent_char_vocab.json"], ["好", "货"], 200),
    ],
)
def test_published_vectors_are_read(files, words, width):
    rows, matrix = read_word_vectors(*(shared_file(f"vocab_vectors/{name}") for name in files))
    assert matrix.shape[1] == width
    assert all(np.abs(matrix[rows[word]]).max() > 0 for word in words)


def test_of_words_that_differ_in_case_alone_the_first_counts(tmp_path):
    (tmp_path / "a.txt").write_text("Apple 1 2\nParis 3 4\napple 5 6\n")
    options = WordVectorsOptions(str(tmp_path / "out"), word_vectors=str(tmp_path / "a.txt"))
    fitted = fit_word_vectors(options)
    assert fitted.facts["words"] == ["apple", "paris"]
    assert fitted.tensors["matrix"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("array", [np.ones([2, 2, 2]), np.array([[1, np.nan]])], ids=str)
def test_vectors_without_a_mean_are_refused_before_anything_is_written(tmp_path, array):
    np.savez(tmp_path / "a.npz", array)
    (tmp_path / "words.json").write_text('{"apple": 0}')
    names = {"word_vectors": str(tmp_path / "a.npz"), "word_index": str(tmp_path / "words.json")}
    with pytest.raises(InputError, match=r"a\.npz: expected \[words, dim\], all of finite numbers"):
        fit_word_vectors(WordVectorsOptions(str(tmp_path / "out"), **names))
