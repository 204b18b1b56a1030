import gzip
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from gensim.models import KeyedVectors
from shared_files import shared_file

from dcse_tf.bert.vectors import WordVectors, fold_case, read_word_vectors, train_word_vectors
from dcse_tf.errors import InputError

ROOT = pathlib.Path(__file__).parents[2]
WORDS = {"where": [1.0, -2.5, 0.125], "包裹": [0.0, 3.0, -1.0], "don't": [4.0, 0.5, 2.0]}
GLOVE = "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in WORDS.items())
WORD2VEC = f"3 3\n{GLOVE}"
SENTENCES = [
    ["where", "is", "my", "parcel"],
    ["my", "parcel", "is", "late"],
    ["我", "的", "包裹", "在", "哪里"],
    [],
    ["where", "is", "it"],
] * 4
# Trains with the seed of its argument; prints the words in order and the vectors' bytes.
TRAIN = """
import json, sys
from dcse_tf.bert.vectors import train_word_vectors
vectors = train_word_vectors(json.loads(sys.argv[1]), 8, seed=int(sys.argv[2]))
print(json.dumps([list(vectors.rows), vectors.matrix.tobytes().hex()]))
"""


def _binary(folder, name):
    vectors = KeyedVectors(3)
    vectors.add_vectors(list(WORDS), np.array(list(WORDS.values()), np.float32))
    vectors.save_word2vec_format(str(folder / name), binary=True)
    return (folder / name).read_bytes()


def _train_in_a_process(hash_seed, seed):
    command = [sys.executable, "-c", TRAIN, json.dumps(SENTENCES), str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _error(path):
    with pytest.raises(InputError) as caught:
        read_word_vectors(path)
    return str(caught.value)


@pytest.mark.parametrize("content", [WORD2VEC, GLOVE, GLOVE.replace("\n", " \n")])
@pytest.mark.parametrize("name", ["vectors.txt", "vectors.vec.gz", "no_suffix"])
def test_a_text_form_is_read(tmp_path, content, name):
    raw = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    vectors = read_word_vectors(tmp_path / name)
    assert list(vectors.rows) == list(WORDS)
    np.testing.assert_array_equal(
        [vectors.matrix[vectors.rows[w]] for w in WORDS], [*WORDS.values()]
    )
    assert vectors.matrix.dtype == np.float32


@pytest.mark.parametrize("name", ["vectors.bin", "vectors.bin.gz"])
def test_the_binary_form_is_read(tmp_path, name):
    content = _binary(tmp_path, "plain")
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    vectors = read_word_vectors(tmp_path / name)
    assert vectors.rows == {word: row for row, word in enumerate(WORDS)}
    np.testing.assert_array_equal(vectors.matrix, [*WORDS.values()])


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.bin"])
def test_a_word_cut_inside_a_character_is_another_word(tmp_path, name):
    """word2vec's own program cuts long words between bytes; "ab" must not be lost by that."""
    rows = {b"ab": [1.0, 2.0], b"ab\xe5\x8c": [3.0, 4.0]}
    content = b"2 2\n"
    for word, row in rows.items():
        binary = np.array(row, np.float32).tobytes()
        content += (
            word + b" " + (binary if name == "vectors.bin" else b"%d %d" % tuple(row)) + b"\n"
        )
    (tmp_path / name).write_bytes(content)
    vectors = read_word_vectors(tmp_path / name)
    assert len(vectors.rows) == 2
    assert vectors.mean(["ab"]).tolist() == [1, 2]


def test_a_long_vector_without_a_head_is_no_head(tmp_path):
    row = np.random.default_rng(0).normal(size=600)
    (tmp_path / "a.txt").write_text(f"word {' '.join(map(repr, row.tolist()))}\n")
    vectors = read_word_vectors(tmp_path / "a.txt")
    np.testing.assert_allclose(vectors.matrix, [row], rtol=1e-6)


@pytest.mark.parametrize(
    "content",
    [
        "hello world\n",
        "hello there world\n",
        "2 3\na 1 2 3\nb 1 2\n",
        "2 3\na 1 2 3\nb 1 x 3\n",
        "2 3\na 1 2 3\nb 1 2 3 4\n",
        "2 3\na 1 2 3\n",
        "a 1 2 3\nb 1 2\n",
        "a 1 2 3\nb 1 2 x\n",
        "-2 3\na 1 2 3\n",
        "99999999999 99999999999\na 1 2 3\n",
        '{"a": [1, 2, 3]}\n',
        "",
        "hello\nworld\n",
        "a\t1\t2\t3\nb\t1\t2\t3\n",
    ],
)
def test_a_text_that_is_no_table_of_vectors_is_named(tmp_path, content):
    path = tmp_path / "vectors.txt"
    path.write_text(content)
    assert str(path) in _error(path)


@pytest.mark.parametrize("cut", [0, 2, 10, 20, -1])
def test_a_binary_that_is_cut_off_is_named(tmp_path, cut):
    path = tmp_path / "vectors.bin"
    path.write_bytes(_binary(tmp_path, "whole")[:cut].rstrip(b"\n"))
    assert str(path) in _error(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.bin", GLOVE.encode()),
        ("a.bin", bytes(range(256)) * 4),
        ("a.txt", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'shape': (2, 3)}\n\xff\xfe\n"),
        ("a.txt.gz", GLOVE.encode()),
        ("a.txt.gz", gzip.compress(GLOVE.encode() * 50, mtime=0)[:-12]),
        ("a.bin.gz", b"3 3\n"),
    ],
)
def test_a_file_of_another_form_than_its_name_says_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert str(tmp_path / name) in _error(tmp_path / name)


def test_a_file_that_is_gone_is_named(tmp_path):
    assert f"{tmp_path}/nowhere.txt: cannot be read" in _error(tmp_path / "nowhere.txt")


def test_the_mean_is_of_the_words_that_are_known():
    vectors = WordVectors({"a": 1, "b": 0}, np.array([[2, 4], [0, 1]], np.float32))
    assert vectors.mean(["a", "b"]).tolist() == [1, 2.5]
    assert vectors.mean(["b", "nothing", "B"]).tolist() == [2, 4]
    assert vectors.mean(["a", "a", "a", "b"]).tolist() == [0.5, 1.75]
    for unknown in ([], ["nothing"], ["A", ""]):
        assert vectors.mean(unknown).tolist() == [0, 0]
        assert vectors.mean(unknown).dtype == np.float32


def test_every_word_has_a_trained_vector():
    vectors = train_word_vectors(SENTENCES, 8, seed=0)
    assert set(vectors.rows) == {word for words in SENTENCES for word in words}
    assert sorted(vectors.rows.values()) == list(range(len(vectors.rows)))
    assert vectors.matrix.shape == (len(vectors.rows), 8)
    assert np.isfinite(vectors.matrix).all()
    assert np.linalg.norm(vectors.matrix, axis=1).min() > 0


def test_words_in_the_same_company_come_near():
    """ "parcel" and "package" are said among the same words, "refund" among others."""
    frames = ["where is my {} now please", "the {} is late again today", "your {} left our store"]
    others = ["i want a {} for this", "how long does a {} take", "we pay the {} next week"]
    rng = np.random.default_rng(0)
    sentences = [frame.format(w).split() for frame in frames for w in ("parcel", "package")]
    sentences += [frame.format("refund").split() for frame in others] * 2
    sentences = [sentences[place] for place in rng.permutation(np.tile(np.arange(12), 80))]
    vectors = train_word_vectors(sentences, 16, seed=0)
    parcel, package, refund = (
        vectors.mean([word]) / np.linalg.norm(vectors.mean([word]))
        for word in ("parcel", "package", "refund")
    )
    assert parcel @ package > parcel @ refund + 0.1


@pytest.mark.parametrize("sentences", [[], [[]], [[], []]])
def test_without_a_word_nothing_is_trained(sentences):
    with pytest.raises(InputError, match="no sentence has a word"):
        train_word_vectors(sentences, 8, seed=0)


def test_training_gives_the_same_in_every_process():
    words, matrix = _train_in_a_process("1", seed=5)
    assert _train_in_a_process("2", seed=5) == [words, matrix]
    here = train_word_vectors(SENTENCES, 8, seed=5)
    assert (list(here.rows), here.matrix.tobytes().hex()) == (words, matrix)
    other = train_word_vectors(SENTENCES, 8, seed=6)
    assert list(other.rows) == words
    assert np.abs(other.matrix - here.matrix).max() > 1e-3


def _write_npz(folder, array, index, **more):
    np.savez(folder / "a.npz", embeddings=array, **more)
    (folder / "index.json").write_text(index if isinstance(index, str) else json.dumps(index))
    return folder / "a.npz", folder / "index.json"


@pytest.mark.parametrize("name", ["vectors.json", "vectors.json.gz"])
def test_the_json_form_is_read(tmp_path, name):
    raw = json.dumps(WORDS, ensure_ascii=False).encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    vectors = read_word_vectors(tmp_path / name)
    assert list(vectors.rows) == list(WORDS)
    np.testing.assert_array_equal(vectors.matrix, [*WORDS.values()])
    assert vectors.matrix.dtype == np.float32


def test_an_array_and_an_index_of_its_rows_are_read(tmp_path):
    array = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    vectors = read_word_vectors(*_write_npz(tmp_path, array, {"好": 2, "a": 0}))
    assert vectors.mean(["好"]).tolist() == [5, 6]
    assert vectors.mean(["a", "nothing"]).tolist() == [1, 2]
    assert vectors.matrix.dtype == np.float32


@pytest.mark.parametrize(
    "content",
    ['{"a": [1, 2], "b": [1]}', '{"a": [1, "x"]}', '{"a": 3}', "{}", "[[1, 2]]", "{", '{"a": []}'],
)
def test_json_that_is_no_table_of_vectors_is_named(tmp_path, content):
    path = tmp_path / "vectors.json"
    path.write_text(content)
    assert _error(path).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"a": 3}, "'a' has row 3, expected 0 to 2"),
        ({"a": -1}, "'a' has row -1"),
        ({"a": "0"}, "'a' has row '0'"),
        ({"a": True}, "'a' has row True"),
        ([0, 1], "expected a JSON object"),
        ("{", "not JSON"),
    ],
)
def test_an_index_that_does_not_fit_is_named(tmp_path, index, message):
    paths = _write_npz(tmp_path, np.zeros([3, 2]), index)
    with pytest.raises(InputError, match=message) as caught:
        read_word_vectors(*paths)
    assert str(caught.value).startswith(f"{paths[1]}: ")


def test_arrays_that_are_no_table_of_vectors_are_named(tmp_path):
    for array, more in [(np.zeros(3), {}), (np.array([["a"]]), {}), (np.zeros([3, 2]), {"b": 1})]:
        paths = _write_npz(tmp_path, array, {"a": 0}, **more)
        with pytest.raises(InputError, match=r"a\.npz: expected one array of numbers"):
            read_word_vectors(*paths)
    paths[0].write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(InputError, match=r"a\.npz: cannot be read"):
        read_word_vectors(*paths)
    with pytest.raises(InputError, match=r"a\.npz: contains no words"):
        read_word_vectors(paths[0])


def test_of_words_that_differ_in_case_alone_the_first_counts():
    matrix = np.array([[1.0], [2.0], [3.0]], np.float32)
    vectors = fold_case(WordVectors({"apple": 2, "Paris": 1, "Apple": 0}, matrix))
    assert vectors.rows == {"apple": 0, "paris": 1}


@pytest.mark.parametrize(
    ("files", "words", "shape"),
    [
        (["glove-50d-5k.json"], ["the", "package"], 50),
        (["tencent_char_200d.npz", "tencent_char_vocab.json"], ["好", "货"], 200),
    ],
)
def test_published_vectors_are_read(files, words, shape):
    vectors = read_word_vectors(*(shared_file(f"vocab_vectors/{name}") for name in files))
    assert vectors.matrix.shape[1] == shape
    assert all(np.abs(vectors.mean([word])).max() > 0 for word in words)
