"""Nearest rows, the texts of a corpus, and the folder of an index."""

import dataclasses
import gzip
import json
import sys

import numpy as np
import pytest

from dcse_tf.errors import InputError
from dcse_tf.evaluation import nearest
from dcse_tf.evaluation.nearest import find_nearest
from dcse_tf.files import MADE_FROM_FILE
from dcse_tf.search.index import (
    EMBEDDINGS_FILE,
    FAISS_FILE,
    TEXTS_FOLDER,
    CorpusTexts,
    Hit,
    SearchIndex,
    describe,
    is_index,
    scale_to_unit_length,
    write_corpus_texts,
)
from dcse_tf.search.nearest import ApproximateIndex
from dcse_tf.search.options import KINDS, ApproximateOptions

APPROXIMATE = [kind for kind in KINDS if kind != "exact"]
# Every list, and every row as a candidate.
ALL = ApproximateOptions(nprobe=1000, binary_candidates=1000)


def draw_directions(rows, dim, seed=0):
    """Float32 `[rows, dim]` of length 1."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(rows, dim))
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


def rank_all(matrix, query, top):
    """By sorting every cosine, float64, in steps of a millionth; equal ones by row."""
    cosines = np.round(matrix.astype(np.float64) @ query.astype(np.float64), 6)
    return sorted(range(len(matrix)), key=lambda row: (-cosines[row], row))[:top]


@pytest.mark.parametrize("block_rows", [1, 7, 1000])
@pytest.mark.parametrize("top", [1, 5, 40, 200])
def test_nearest_rows_are_those_of_a_full_sort(block_rows, top):
    matrix, queries = draw_directions(100, 16), draw_directions(9, 16, seed=1)
    for query, found in zip(queries, find_nearest(matrix, queries, top, block_rows), strict=True):
        assert found.rows.tolist() == rank_all(matrix, query, top)
        np.testing.assert_allclose(found.cosines, matrix[found.rows] @ query, atol=2e-6)


@pytest.mark.parametrize("block_rows", [1, 3, 4, 100])
def test_equal_cosines_come_by_row(block_rows):
    # Rows 0 to 11 point one of three ways in turn; the query is nearest to the second.
    ways = draw_directions(3, 8)
    matrix = ways[np.arange(12) % 3]
    (found,) = find_nearest(matrix, ways[1:2], 6, block_rows)
    assert found.rows[:4].tolist() == [1, 4, 7, 10]
    assert len(set(found.cosines[:4])) == 1
    assert (found.rows[5] - found.rows[4]) == 3  # the next way, by row again


def test_the_answer_is_the_same_whatever_the_blocks_and_the_other_queries():
    """Rows that differ by less than float32 can tell: no order of sums may show."""
    base = draw_directions(5, 64)
    matrix = np.repeat(base, 40, axis=0)
    matrix[::2] *= 1 + 1e-7
    queries = draw_directions(6, 64, seed=2)
    whole = find_nearest(matrix, queries, 60)
    for place, query in enumerate(queries):
        (alone,) = find_nearest(matrix, query[None], 60, block_rows=11)
        assert alone.rows.tolist() == whole[place].rows.tolist()


class _Coarse(np.ndarray):
    """Queries whose products with rows are wrong by up to the error that float32 may have."""

    def __matmul__(self, other):
        products = np.asarray(self) @ np.asarray(other)
        errors = np.random.default_rng(products.shape[1]).uniform(-1, 1, products.shape)
        return (products + 0.45 * nearest.SLACK * errors).astype(np.float32)


@pytest.mark.parametrize("block_rows", [1, 9, 200])
def test_coarse_products_lose_none_of_the_nearest(block_rows):
    """Cosines are some 1e-6 apart: products misplace them within a block and across blocks."""
    rng = np.random.default_rng(4)
    cosines = 0.6 + 1e-6 * rng.permutation(200)
    matrix = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1).astype(np.float32)
    query = np.array([1.0, 0.0], np.float32)
    (found,) = find_nearest(matrix, query[None].view(_Coarse), 5, block_rows)
    assert found.rows.tolist() == rank_all(matrix, query, 5)


def test_a_matrix_on_disk_gives_the_same(tmp_path):
    matrix, queries = draw_directions(50, 8), draw_directions(3, 8, seed=1)
    np.save(tmp_path / "m.npy", matrix)
    on_disk = np.load(tmp_path / "m.npy", mmap_mode="r")
    for a, b in zip(find_nearest(matrix, queries, 4), find_nearest(on_disk, queries, 4)):
        assert a.rows.tolist() == b.rows.tolist()


def test_nothing_is_found_in_an_empty_matrix():
    (found,) = find_nearest(np.zeros((0, 4), np.float32), draw_directions(1, 4), 3)
    assert len(found.rows) == 0


def test_a_diverged_encoder_is_refused():
    matrix = draw_directions(10, 4)
    with pytest.raises(InputError, match="not a finite number"):
        find_nearest(matrix, np.full((1, 4), np.nan, np.float32), 3)


def write_lines(path, lines):
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


@pytest.fixture
def corpus(tmp_path):
    """Lines 1 to 8, of which 3 is blank, 4 repeats 1, and 7 and 8 repeat 2."""
    lines = ["好的 ok", "a", "  ", "好的 ok", "b\u2028c", "", "a", "a"]
    return write_lines(tmp_path / "corpus.txt", [line.encode() for line in lines])


def test_texts_come_once_with_their_first_line_and_count(corpus, tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    write_corpus_texts(corpus, folder)
    texts = CorpusTexts(folder)
    assert [texts[row] for row in range(len(texts))] == ["好的 ok", "a", "b\u2028c"]
    assert texts.lines.tolist() == [1, 2, 5]
    assert texts.counts.tolist() == [2, 3, 1]


def test_a_compressed_corpus(corpus, tmp_path):
    packed = tmp_path / "corpus.txt.gz"
    packed.write_bytes(gzip.compress(corpus.read_bytes().replace(b"\n", b"\r\n")))
    write_corpus_texts(packed, tmp_path)
    assert CorpusTexts(tmp_path).counts.tolist() == [2, 3, 1]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "no text in 0 lines"),
        ([b"", b" "], "no text in 2 lines"),
        ([b"a", b"\xd6\xd0"], "corpus.txt:2: not UTF-8"),
    ],
)
def test_a_corpus_without_text_is_refused(tmp_path, lines, message):
    with pytest.raises(InputError, match=message):
        write_corpus_texts(write_lines(tmp_path / "corpus.txt", lines), tmp_path)


def write_index(folder, corpus, rows):
    """An exact index over the texts of a file and their embeddings."""
    (folder / TEXTS_FOLDER).mkdir(parents=True)
    write_corpus_texts(corpus, folder / TEXTS_FOLDER)
    np.save(folder / EMBEDDINGS_FILE, scale_to_unit_length(rows).astype(np.float32))
    describe("exact", {"model": "m"}).write(folder / MADE_FROM_FILE)


@pytest.fixture
def folder(corpus, tmp_path):
    """An exact index over three texts: two alike and one at a right angle."""
    folder = tmp_path / "index"
    write_index(folder, corpus, np.array([[3.0, 4.0], [0.3, 0.4], [-8.0, 6.0]]))
    return folder


def test_hits_have_rank_cosine_line_count_and_text(folder):
    (hits, none) = SearchIndex([folder]).search(np.array([[4.0, 3.0], [0.0, 0.0]]), 9)
    # (4, 3) with (3, 4): 24 / 25; with (-8, 6): (-32 + 18) / 50. Equal ones by line.
    expected = [
        Hit(1, pytest.approx(0.96), 1, 2, "好的 ok"),
        Hit(2, pytest.approx(0.96), 2, 3, "a"),
        Hit(3, pytest.approx(-0.28), 5, 1, "b\u2028c"),
    ]
    assert hits == expected
    assert [hit.line for hit in none] == [1, 2, 5]  # a query of no direction: all are as near


@pytest.fixture
def spellings(tmp_path):
    """Makes an exact index of texts; their directions are given in degrees."""

    def make(directions):
        write_lines(tmp_path / "spelt.txt", [text.encode() for text in directions])
        angles = np.radians(list(directions.values()))
        rows = np.stack([np.cos(angles), np.sin(angles)], 1)
        folder = tmp_path / "spelt"
        write_index(folder, tmp_path / "spelt.txt", rows)
        return SearchIndex([folder])

    return make


@pytest.fixture
def parts(tmp_path):
    """An index of 60 drawn lines, in which texts repeat, and indexes of 25, 1 and 34 of them."""
    rng = np.random.default_rng(5)
    texts = [*(f"Text {i}" for i in range(20)), *(f"text {i}" for i in range(5))]
    rows = dict(zip(texts, draw_directions(25, 4)))
    # Cosines that are equal, of spellings and of others.
    rows |= {text: rows[text.replace("text", "Text")] for text in texts[20:23]}
    rows |= {"Text 9": rows["Text 8"], "Text 10": rows["Text 8"]}
    lines = rng.choice(texts, 60).tolist()

    def write(name, some):
        corpus = write_lines(tmp_path / f"{name}.txt", [text.encode() for text in some])
        vectors = np.stack([rows[text] for text in dict.fromkeys(some)])
        write_index(tmp_path / name, corpus, vectors)
        return tmp_path / name

    bounds = [(0, 25), (25, 26), (26, 60)]
    folders = [write(f"part-{start}", lines[start:end]) for start, end in bounds]
    return write("whole", lines), folders, [start for start, _ in bounds]


@pytest.mark.parametrize("top", [1, 3, 9, 40])
def test_several_indexes_answer_as_one_over_all_lines(parts, top):
    whole, folders, starts = parts
    # One query is of no direction: all are as near.
    queries = np.concatenate([draw_directions(30, 4, seed=1), np.zeros((1, 4), np.float32)])
    expected = SearchIndex([whole]).search(queries, top)
    for hits, wanted in zip(SearchIndex(folders).search(queries, top), expected, strict=True):
        start = {str(folder): first for folder, first in zip(folders, starts, strict=True)}
        assert [
            dataclasses.replace(hit, line=start[hit.index] + hit.line, index=None) for hit in hits
        ] == wanted


def test_indexes_of_several_kinds_go_together(parts):
    pytest.importorskip("faiss")
    whole, folders, _ = parts
    for kind in APPROXIMATE:
        matrix = np.load(folders[2] / EMBEDDINGS_FILE)
        ApproximateIndex.build(matrix, kind, ALL).write(folders[2] / FAISS_FILE)
        describe(kind, {"model": "m"}).write(folders[2] / MADE_FROM_FILE)
        queries = draw_directions(9, 4, seed=1)
        expected = SearchIndex([whole]).search(queries, 7)
        for hits, wanted in zip(SearchIndex(folders, ALL).search(queries, 7), expected):
            assert [(h.text, h.count, h.cosine) for h in hits] == [
                (h.text, h.count, h.cosine) for h in wanted
            ]


def found_texts(index, top, queries=1):
    answers = index.search(np.array([[1.0, 0.0]] * queries), top)
    assert all([hit.rank for hit in hits] == list(range(1, len(hits) + 1)) for hits in answers)
    return [[hit.text for hit in hits] for hits in answers]


def test_other_spellings_that_the_encoder_does_not_tell_apart_take_no_places(spellings):
    """Six spellings of one text come before all others, however few are asked for."""
    same = ["Hi there", "hi there", "HI THERE", "hI there", "hi There", "Hi There"]
    index = spellings({**dict.fromkeys(same, 10), "Straße": 20, "STRASSE": 20, "who": 30})
    assert found_texts(index, 1) == [["Hi there"]]
    assert found_texts(index, 2, queries=3) == [["Hi there", "Straße"]] * 3
    for top in (3, 4, 50):
        assert found_texts(index, top) == [["Hi there", "Straße", "who"]]


def test_spellings_that_the_encoder_tells_apart_are_different_texts(spellings):
    index = spellings({"US": 10, "us": 12, "other": 10})
    assert found_texts(index, 3) == [["US", "other", "us"]]


def test_embeddings_are_scaled_to_length_one_and_zeros_stay_zeros():
    scaled = scale_to_unit_length(np.array([[3.0, 4.0], [-8.0, 6.0], [0.0, 0.0]]))
    np.testing.assert_allclose(scaled, [[0.6, 0.8], [-0.8, 0.6], [0.0, 0.0]], atol=1e-7)


def test_embeddings_that_are_not_finite_are_refused():
    with pytest.raises(InputError, match="diverged"):
        scale_to_unit_length(np.array([[1.0, np.inf]]))


def test_no_file_of_an_index_may_be_cut_short_or_missing(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 6
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(InputError, match=path.name):
            SearchIndex([folder])
        path.unlink()
        with pytest.raises(InputError, match=path.name):
            SearchIndex([folder])
        path.write_bytes(whole)
    SearchIndex([folder])


def test_an_index_of_another_format_is_refused(folder):
    path = folder / MADE_FROM_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 1}))
    assert is_index(folder)
    with pytest.raises(InputError, match=r"made_from\.json: .* format 1"):
        SearchIndex([folder])


def test_files_of_two_indexes_do_not_go_together(folder):
    np.save(folder / EMBEDDINGS_FILE, np.eye(2, dtype=np.float32))
    with pytest.raises(InputError, match=r"embeddings\.npy"):
        SearchIndex([folder])


def test_approximate_search_without_faiss_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match=r"`index_type`=hnsw.*pip install faiss-cpu"):
        ApproximateIndex.build(draw_directions(50, 4), "hnsw", ApproximateOptions())


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_an_approximate_index_finds_what_exact_search_does(kind, tmp_path):
    pytest.importorskip("faiss")
    matrix, queries = draw_directions(2000, 16), draw_directions(20, 16, seed=1)
    built = ApproximateIndex.build(matrix, kind, ALL)
    built.write(tmp_path / FAISS_FILE)
    assert built.measure_recall(ALL, 10) > 0.99
    again = ApproximateIndex.build(matrix, kind, ALL)
    again.write(tmp_path / "again")
    content = (tmp_path / FAISS_FILE).read_bytes()
    assert (tmp_path / "again").read_bytes() == content
    index = ApproximateIndex.read(tmp_path / FAISS_FILE, kind, matrix)
    expected = find_nearest(matrix, queries, 5)
    for found, wanted in zip(index.find_nearest(queries, 5, ALL), expected, strict=True):
        assert found.rows.tolist() == wanted.rows.tolist()
        assert found.cosines.tolist() == wanted.cosines.tolist()
    with pytest.raises(InputError, match="2000 rows of 16, expected 1999 of 16"):
        ApproximateIndex.read(tmp_path / FAISS_FILE, kind, matrix[1:])
    for number, damaged in enumerate([b"nothing", b"nothing" * 50_000, content[:30], content[:-9]]):
        (tmp_path / f"damaged{number}").write_bytes(damaged)
        with pytest.raises(InputError, match="not a FAISS index"):
            ApproximateIndex.read(tmp_path / f"damaged{number}", kind, matrix)


@pytest.mark.parametrize(
    ("kind", "share"), [("ivf_int8", 1 / 4), ("hnsw_int8", 1 / 4), ("binary", 1 / 32)]
)
def test_codes_take_their_share_of_the_memory(kind, share, tmp_path):
    """Of what the same index of float32 holds, less what is no vector: links, lists, numbers."""
    pytest.importorskip("faiss")
    sizes = []
    for dim in (64, 128):  # the difference is 64 dimensions of 2000 rows and of 10 centres
        matrix = draw_directions(2000, dim)
        ApproximateIndex.build(matrix, kind, ApproximateOptions(nlist=10, hnsw_m=2)).write(
            tmp_path / "a"
        )
        sizes.append((tmp_path / "a").stat().st_size)
    assert sizes[1] - sizes[0] == pytest.approx(2000 * 64 * 4 * share, rel=0.03)


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_equal_cosines_come_by_row_from_an_approximate_index_too(kind):
    """FAISS ranks by float32, by which rows 1 and 2 are nearer; of cosines that are equal to a
    millionth the first rows come first, and row 0 is not among FAISS' two.
    """
    pytest.importorskip("faiss")
    cosines = np.array([0.6, 0.6 + 1e-7, 0.6 + 2e-7, *np.linspace(0.5, -0.9, 60)])
    matrix = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1).astype(np.float32)
    assert matrix[0, 0] < matrix[1, 0] < matrix[2, 0]
    options = ApproximateOptions(nprobe=1000)
    index = ApproximateIndex.build(matrix, kind, options)
    (found,) = index.find_nearest(np.array([[1.0, 0.0]], np.float32), 2, options)
    assert found.rows.tolist() == [0, 1]


def test_fewer_lists_read_is_a_lower_recall():
    """The measure can fall below 1: it is no constant."""
    pytest.importorskip("faiss")
    matrix = draw_directions(2000, 16)
    recalls = []
    for nprobe in (1, 5, 1000):
        options = ApproximateOptions(nlist=40, nprobe=nprobe)
        recalls.append(ApproximateIndex.build(matrix, "ivf", options).measure_recall(options, 10))
    assert recalls[0] < recalls[1] < recalls[2] == 1.0


def test_recall_of_a_single_row_is_whole():
    pytest.importorskip("faiss")
    built = ApproximateIndex.build(draw_directions(1, 4), "hnsw", ApproximateOptions())
    assert built.measure_recall(ApproximateOptions(), 10) == 1.0


def test_slack_is_over_the_error_of_float32():
    """Of the widest encoder in use: products of float32 against float64."""
    matrix, queries = draw_directions(500, 1024), draw_directions(20, 1024, seed=3)
    wide = queries.astype(np.float64) @ matrix.T.astype(np.float64)
    assert np.abs(queries @ matrix.T - wide).max() < nearest.SLACK / 10
