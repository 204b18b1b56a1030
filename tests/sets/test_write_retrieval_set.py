import numpy as np
import pytest

from dcse_tf.evaluation.retrieval import (
    Query,
    RetrievalSet,
    read_retrieval_set,
    write_retrieval_set,
)


def make_set(sentences=("快递到哪了", "Where is it?", "refund", "ok"), intents=("a", "a", "", "")):
    queries = [
        Query(1, np.array([0]), np.array([3, 2])),
        Query(0, np.array([2, 1]), np.array([3])),
    ]
    return RetrievalSet(list(sentences), queries, list(intents))


def fields(retrieval_set):
    queries = [
        (q.sentence, q.positives.tolist(), q.negatives.tolist()) for q in retrieval_set.queries
    ]
    return retrieval_set.sentences, retrieval_set.intents, queries


def test_the_file_has_a_line_a_sentence_with_ascending_indices(tmp_path):
    path = tmp_path / "new" / "select.txt"
    write_retrieval_set(path, make_set())
    lines = [
        "0\t快递到哪了\ta\t1,2\t3",
        "1\tWhere is it?\ta\t0\t2,3",
        "2\trefund\t\t\t",
        "3\tok\t\t\t",
    ]
    assert path.read_bytes() == "".join(f"{line}\n" for line in lines).encode()
    assert [p.name for p in path.parent.iterdir()] == ["select.txt"]


def test_a_set_survives_its_file(tmp_path):
    rng = np.random.default_rng(0)
    queries = []
    for sentence in (0, 3, 4, 9, 19):
        others = rng.permutation(np.delete(np.arange(20), sentence))
        queries.append(Query(sentence, np.sort(others[:7]), np.sort(others[7:12])))
    before = RetrievalSet(
        [f"{n} 句 \"'," for n in range(20)], queries, [f"{n % 3}" for n in range(20)]
    )
    write_retrieval_set(tmp_path / "select.txt", before)
    after = read_retrieval_set(tmp_path / "select.txt")
    assert fields(after) == fields(before)
    assert all(query.positives.dtype == np.int64 for query in after.queries)


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0b", "\ufeff", "\u3000", '"', " ", "😀"])
def test_marks_that_end_no_line_survive(tmp_path, mark):
    before = make_set((f"{mark}a{mark}", mark, "c", "d"), ("x", f"y{mark}", mark, ""))
    write_retrieval_set(tmp_path / "select.txt", before)
    after = read_retrieval_set(tmp_path / "select.txt")
    assert fields(after)[:2] == fields(before)[:2]


@pytest.mark.parametrize("mark", ["\t", "\n", "\r", "\r\n"])
@pytest.mark.parametrize("changed", ["sentences", "intents"])
def test_a_set_that_would_not_survive_is_refused_and_the_old_file_stays(tmp_path, mark, changed):
    path = tmp_path / "select.txt"
    path.write_text("old")
    with pytest.raises(ValueError, match="sentence 1 "):
        write_retrieval_set(path, make_set(**{changed: ("a", f"b{mark}c", "d", "e")}))
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["select.txt"]


def test_every_sentence_needs_an_intent_or_none(tmp_path):
    with pytest.raises(ValueError, match="shorter"):
        write_retrieval_set(tmp_path / "select.txt", make_set(intents=("a", "b")))
    assert not list(tmp_path.iterdir())


def test_an_old_file_is_replaced(tmp_path):
    path = tmp_path / "select.txt"
    path.write_text("old " * 1000)
    write_retrieval_set(path, make_set())
    assert read_retrieval_set(path).sentences == make_set().sentences
