"""Search: the nearest rows, the index of a corpus, answers, re-ranked ones, and refusals."""

import io
import json
import shutil
import sys
import types

import numpy as np
import pytest
from load_once import load_once  # noqa: F401
from tiny_bert import DIM, build_backbone, save_checkpoint
from tiny_reranker import save_reranker

from dcse_tf.cli.commands import search
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.files import write_record
from dcse_tf.matching.head_files import list_head_maps, project, write_heads
from dcse_tf.matching.heads import build_heads
from dcse_tf.options import OptionError
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.search import index as layout
from dcse_tf.search import searcher as job
from dcse_tf.search.calibration import Calibration
from dcse_tf.search.index import SLACK, Hit, SearchIndex, build_faiss, find_nearest
from dcse_tf.search.searcher import SearchOptions

# The nearest rows


def draw_directions(rows, dim, seed=0):
    """Float32 `[rows, dim]` of length 1."""
    matrix = np.random.default_rng(seed).normal(size=(rows, dim))
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


def rank_all(matrix, query, top):
    """By sorting every cosine, float64, in steps of a millionth; equal ones by row."""
    cosines = np.round(matrix.astype(np.float64) @ query.astype(np.float64), 6)
    return sorted(range(len(matrix)), key=lambda row: (-cosines[row], row))[:top]


@pytest.mark.parametrize("block_rows", [1, 7, 1000])
@pytest.mark.parametrize("top", [1, 5, 200])
def test_nearest_rows_are_those_of_a_full_sort(block_rows, top):
    """Each row is there twice, so equal cosines come by row, whatever the blocks."""
    matrix, queries = np.tile(draw_directions(50, 16), (2, 1)), draw_directions(9, 16, seed=1)
    found = find_nearest(matrix, queries, top, block_rows)
    for query, (rows, cosines) in zip(queries, found, strict=True):
        assert rows.tolist() == rank_all(matrix, query, top)
        np.testing.assert_allclose(cosines, matrix[rows] @ query, atol=2e-6)


class Coarse(np.ndarray):
    """Queries whose products with rows are wrong by up to the error that float32 may have."""

    def __matmul__(self, other):
        products = np.asarray(self) @ np.asarray(other)
        errors = np.random.default_rng(products.shape[1]).uniform(-1, 1, products.shape)
        return (products + 0.45 * SLACK * errors).astype(np.float32)


@pytest.mark.parametrize("block_rows", [1, 9, 200])
def test_coarse_products_lose_none_of_the_nearest(block_rows):
    """Cosines are some 1e-6 apart: products misplace them within a block and across blocks."""
    cosines = 0.6 + 1e-6 * np.random.default_rng(4).permutation(200)
    matrix = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1).astype(np.float32)
    query = np.array([1.0, 0.0], np.float32)
    ((rows, _),) = find_nearest(matrix, query[None].view(Coarse), 5, block_rows)
    assert rows.tolist() == rank_all(matrix, query, 5)


def test_a_diverged_encoder_is_refused():
    with pytest.raises(InputError, match="not a finite number"):
        find_nearest(draw_directions(10, 4), np.full((1, 4), np.nan, np.float32), 3)


# The index


def write_index(folder, lines, directions, kind="exact"):
    """An index of lines; each distinct text's direction is given in degrees."""
    folder.mkdir()
    (folder.parent / "lines.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    layout.write_corpus_texts(folder.parent / "lines.txt", folder)
    angles = np.radians(directions)
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    np.save(folder / layout.EMBEDDINGS_FILE, rows.astype(np.float32))
    if kind == "ivf":
        build_faiss(rows.astype(np.float32), folder / layout.FAISS_FILE)
    write_record(folder / layout.MADE_FROM_FILE, {**layout.FORMAT, layout.INDEX_TYPE: kind})
    return folder


def test_hits_have_rank_cosine_line_count_and_text(tmp_path):
    lines = ["好的 ok", "a", "  ", "好的 ok", "b\u2028c", "", "a", "a"]
    folder = write_index(tmp_path / "index", lines, [60, 0, 90])
    (hits, none) = SearchIndex(folder).search(np.array([[2.0, 0.0], [0.0, 0.0]]), 9)
    assert hits == [
        Hit(1, pytest.approx(1.0), 2, 3, "a"),
        Hit(2, pytest.approx(0.5), 1, 2, "好的 ok"),
        Hit(3, pytest.approx(0.0, abs=1e-6), 5, 1, "b\u2028c"),
    ]
    assert [hit.line for hit in none] == [1, 2, 5]  # a query of no direction: all are as near


@pytest.mark.parametrize("kind", ["exact", "ivf"])
def test_spellings_that_the_encoder_does_not_tell_apart_are_one_hit(tmp_path, kind):
    same = ["Hi there", "hi there", "HI THERE", "hI there", "hi There", "Hi There"]
    folder = write_index(tmp_path / "a", [*same, "US", "us", "who"], [10] * 6 + [20, 22, 30], kind)
    for top in (1, 2, 4, 50):
        (hits, _) = SearchIndex(folder).search(np.array([[1.0, 0.0], [0.0, 1.0]]), top)
        assert [hit.text for hit in hits] == ["Hi there", "US", "us", "who"][:top]
        assert [hit.rank for hit in hits] == [1, 2, 3, 4][:top]


def test_an_approximate_index_finds_what_exact_search_does(tmp_path):
    matrix, queries = draw_directions(2000, 16), draw_directions(20, 16, seed=1)
    folder = write_index(tmp_path / "a", [f"text {row}" for row in range(2000)], [0.0] * 2000)
    np.save(folder / layout.EMBEDDINGS_FILE, matrix)
    write_record(folder / layout.MADE_FROM_FILE, {**layout.FORMAT, layout.INDEX_TYPE: "ivf"})
    for name in (layout.FAISS_FILE, "again"):
        build_faiss(matrix, folder / name)
    content = (folder / layout.FAISS_FILE).read_bytes()
    assert (folder / "again").read_bytes() == content
    index = SearchIndex(folder, nprobe=1000)
    found, expected = index.find(queries, 5), find_nearest(matrix, queries, 5)
    assert [rows.tolist() for rows, _ in found] == [rows.tolist() for rows, _ in expected]
    # The measure can fall below 1: it is no constant.
    assert SearchIndex(folder, nprobe=1).measure_recall(1) < 0.9
    assert index.measure_recall() == 1.0
    equal = write_index(tmp_path / "b", [f"{n} a" for n in range(400)], [10.0] * 400, "ivf")
    found = SearchIndex(equal, nprobe=1).search(draw_directions(20, 2), 3)
    assert [len(hits) for hits in found] == [3] * 20  # although all lists but one are empty
    assert {len(rows) for rows, _ in SearchIndex(folder, nprobe=1).find(queries, 900)} == {900}
    for damaged in (b"nothing", content[:30], content[:-9]):
        (folder / layout.FAISS_FILE).write_bytes(damaged)
        with pytest.raises(InputError, match="not a FAISS index"):
            SearchIndex(folder)


def test_no_file_of_an_index_may_be_cut_short_missing_or_another_ones(tmp_path):
    folder = write_index(tmp_path / "index", ["a", "b", "c"], [0, 10, 20])
    files = list(folder.iterdir())
    assert len(files) == 4
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(InputError, match=path.name):
            SearchIndex(folder)
        path.unlink()
        with pytest.raises(InputError, match=path.name):
            SearchIndex(folder)
        path.write_bytes(whole)
    SearchIndex(folder)
    write_record(folder / layout.MADE_FROM_FILE, {"format": 1})
    with pytest.raises(InputError, match="format 1"):
        SearchIndex(folder)


# The job

# Of 10 lines: one blank, "ok" three times, "where is my parcel" twice.
LINES = [
    *["where is my parcel", "ok", "", "好的发货", "i want a refund for the blue cup"],
    *["ok", "the cup is blue", "where is my parcel", "it left today", "ok"],
]
DISTINCT = list(dict.fromkeys(line for line in LINES if line))
QUERIES = ["where is my blue parcel", "好的", "the cup is blue"]
DIALOGUE = "hello [EOT] where is my blue parcel [EOT]"


@pytest.fixture(scope="module")
def encoder(model):
    return SentenceEncoder.load(model)


@pytest.fixture(scope="module")
def config(model, tmp_path_factory):
    """Settings with an index that is built when first used, and serves all tests after it."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "corpus.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return SearchOptions(
        model=str(model), corpus=str(folder / "corpus.txt"), index=str(folder / "index"), top=4
    )


def ask(config, queries):
    with job.open_searcher(config) as searcher:
        return [hits for _, hits in searcher.answer_all(queries)]


def scale(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_answers_are_the_texts_of_highest_cosine(config, encoder, monkeypatch):
    cosines = scale(encoder.encode(QUERIES)) @ scale(encoder.encode(DISTINCT)).T
    answers = ask(config, QUERIES)
    for row, hits in zip(cosines, answers, strict=True):
        best = np.argsort(-row)[:4]
        assert [hit.text for hit in hits] == [DISTINCT[place] for place in best]
        np.testing.assert_allclose([hit.cosine for hit in hits], row[best], atol=1e-5)
        assert [hit.line for hit in hits] == [LINES.index(hit.text) + 1 for hit in hits]
        assert [hit.count for hit in hits] == [LINES.count(hit.text) for hit in hits]
    # The index is used again without its corpus, and without one it is built for the time being.
    monkeypatch.setattr(job, "_QUERIES_AT_A_TIME", 1)
    assert ask(config.replace(index=""), QUERIES) == answers
    monkeypatch.setattr(job, "build_index", None)
    monkeypatch.chdir(config.index)
    assert ask(config.replace(corpus="", index="."), QUERIES) == answers


@pytest.mark.slow
def test_an_approximate_index_of_the_job_answers_the_same(config, tmp_path, monkeypatch):
    ivf = config.replace(index=str(tmp_path / "index"), index_type="ivf")
    assert ask(ivf, QUERIES) == ask(config, QUERIES)
    assert layout.SearchIndex(tmp_path / "index", ivf.nprobe).measure_recall() == 1.0
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match=r"`index_type`=ivf.*pip install faiss-cpu"):
        ask(ivf.replace(index=str(tmp_path / "other")), QUERIES)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


@pytest.mark.slow
def test_responses_are_found_behind_the_heads(config, model, encoder, tmp_path):
    with pytest.raises(InputError, match="has no projection heads"):
        ask(config.replace(find="responses"), QUERIES)
    shutil.copytree(model, tmp_path / "headed")
    maps = list_head_maps(build_heads(DIM, 8, 5.0, seed=1))
    write_heads(tmp_path / "headed", maps)
    index = str(tmp_path / "index")
    headed = config.replace(model=str(tmp_path / "headed"), find="responses", index=index)
    (hits,) = ask(headed, ["ok [EOT] the cup is blue"])
    mean = encoder.encode(["ok", "the cup is blue"]).mean(axis=0, keepdims=True)
    context = scale(project(mean, maps["context"]))
    cosines = (scale(project(encoder.encode(DISTINCT), maps["response"])) @ context.T)[:, 0]
    best = np.argsort(-cosines)[:4]
    assert [hit.text for hit in hits] == [DISTINCT[place] for place in best]
    np.testing.assert_allclose([hit.cosine for hit in hits], cosines[best], atol=1e-5)
    # The same index is not one of texts that mean the same.
    with pytest.raises(InputError, match="was built with other settings or inputs"):
        ask(headed.replace(find="similar"), QUERIES)


@pytest.mark.slow
def test_what_embeddings_found_is_ordered_by_a_reranker(config, encoder, tmp_path):
    """The four nearest by the mean of the turns, and of these the three of highest score."""
    reranker = save_reranker(tmp_path / "run")
    turns = ["hello", "where is my blue parcel"]
    mean = encoder.encode(turns).mean(axis=0, keepdims=True)
    cosines = scale(encoder.encode(DISTINCT)) @ scale(mean)[0]
    nearest = [DISTINCT[row] for row in np.argsort(-cosines)[:4]]
    scores = dict(zip(nearest, Reranker.load(reranker).score([turns], [nearest])[0].tolist()))
    by_text = dict(zip(DISTINCT, cosines.tolist()))
    _, hits = ask(config.replace(reranker=str(reranker), rerank_top=4, top=3), ["ok", DIALOGUE])
    assert [hit.text for hit in hits] == sorted(nearest, key=lambda text: -scores[text])[:3]
    assert [hit.rank for hit in hits] == [1, 2, 3]
    for hit in hits:
        assert hit.score == pytest.approx(scores[hit.text], abs=1e-5)
        assert hit.cosine == pytest.approx(by_text[hit.text], abs=1e-5)


def test_turns_are_separated_by_their_mark():
    assert job.split_turns("a b [EOT]c[EOT] d") == ["a b", "c", "d"]
    assert job.split_turns("a [EOT] [EOT]") == ["a"]
    assert job.split_turns("[EOT]") == ["[EOT]"]


@pytest.mark.slow
def test_an_index_of_something_else_is_refused(config, tmp_path):
    ask(config, [])
    (tmp_path / "other.txt").write_text("ok\n")
    other = save_checkpoint(tmp_path / "other", build_backbone(seed=4))
    for name, value, told in (
        ("model", other, "contents of `model`"),
        ("pooling", "cls", r"`pooling`: cls \(was mean\)"),
        ("max_sequence_length", 9, r"`max_sequence_length`: 9 \(was 128\)"),
        ("index_type", "ivf", r"`index_type`: ivf \(was exact\)"),
        ("corpus", tmp_path / "other.txt", "contents of `corpus`"),
        ("nprobe", 9, "`nprobe`=9: has no meaning with an exact index"),
    ):
        with pytest.raises((InputError, OptionError), match=told):
            ask(config.replace(**{name: value}), [])


def test_a_folder_that_is_no_index_is_never_replaced(config, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="exists and is not an index"):
            ask(config.replace(index=str(tmp_path), overwrite=overwrite), [])
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(InputError, match=r"no such index; search builds it"):
        ask(config.replace(index=str(tmp_path / "none"), corpus=""), [])


# The command


def run_command(config, capsys, monkeypatch, content=b"", typed=False):
    stdin = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")
    stdin.isatty = lambda: typed
    monkeypatch.setattr(sys, "stdin", stdin)
    search(config)
    return capsys.readouterr().out


def test_queries_of_a_flag_a_file_a_pipe_and_a_terminal_are_answered_alike(
    config, tmp_path, capsys, monkeypatch
):
    config = config.replace(top=1)
    printed = run_command(config.replace(query="ok"), capsys, monkeypatch)
    assert printed == "ok\n   1  1.0000  line 2 (x3)  ok\n\n"
    to_stdout = config.replace(output="-")
    lines = [run_command(to_stdout.replace(query=q), capsys, monkeypatch) for q in QUERIES]
    expected = "".join(lines)
    assert [json.loads(line)["query"] for line in lines] == QUERIES
    assert set(json.loads(lines[0])["answers"][0]) == {"rank", "cosine", "line", "count", "text"}

    content = "\n\n".join(QUERIES) + "\n"
    (tmp_path / "queries.txt").write_text(content, encoding="utf-8")
    of_file = config.replace(queries=(str(tmp_path / "queries.txt"),))
    assert run_command(of_file.replace(output="-"), capsys, monkeypatch) == expected
    assert run_command(to_stdout, capsys, monkeypatch, content.encode()) == expected
    assert run_command(to_stdout, capsys, monkeypatch, content.encode(), True) == expected

    output = str(tmp_path / "answers.jsonl")
    printed = run_command(of_file.replace(output=output), capsys, monkeypatch)
    assert printed == f"the answers are in {output}\n"
    assert (tmp_path / "answers.jsonl").read_text(encoding="utf-8") == expected
    with pytest.raises(InputError, match="standard input:2: not UTF-8"):
        run_command(config, capsys, monkeypatch, b"ok\n\xd6\xd0\n")
    with pytest.raises(OSError, match=r"corpus\.txt"):  # before a model is loaded
        search(config.replace(model="none", output=f"{config.corpus}/answers"))


def answer(hits, reranker=None, calibration=None):
    """Answers to one query for each list of hits that an index finds."""
    values = {"find": "responses", "false_accepts": 50.0, "top": 40, "rerank_top": 40}
    config = types.SimpleNamespace(**values)
    index = types.SimpleNamespace(search=lambda means, top: hits)
    encoder = types.SimpleNamespace(
        encode=lambda texts, show_progress: np.ones((len(texts), 2)), project=lambda rows, _: rows
    )
    return job.Searcher(config, index, encoder, reranker, calibration).answer(["x"] * len(hits))


def test_responses_are_given_only_above_the_threshold():
    hits = [[Hit(1, cosine, 1, 1, "a")] for cosine in (0.4, 0.5, 0.9)]
    assert answer(hits, calibration=Calibration({}, 1.0, [0.5])) == [[], [], hits[2]]


def test_of_texts_that_a_reranker_scores_alike_the_nearer_comes_first():
    hits = [Hit(n, 1 - n / 100, n, 1, f"t{n}") for n in range(1, 41)]
    reranker = types.SimpleNamespace(score=lambda *_, **__: [np.arange(40) % 2 * 1.0])
    (found,) = answer([hits], reranker)
    assert [hit.line for hit in found] == [*range(2, 41, 2), *range(1, 41, 2)]
    # By score + 60 cosine a place is worth 0.6, less than the score's 1, and three are more.
    (found,) = answer([hits], reranker, Calibration({}, 60.0, [0.0]))
    assert [hit.line for hit in found[:6]] == [2, 1, 4, 3, 6, 5]
