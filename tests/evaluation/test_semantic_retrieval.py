import dataclasses
import pathlib

import numpy as np
import pytest
from shared_files import shared_file

from dcse_tf.errors import InputError
from dcse_tf.evaluation.retrieval import evaluate_retrieval, read_retrieval_set

# Two intents, parcel and refund; every sentence lists all others, positives first.
SENTENCES = dict.fromkeys(["我的快递到哪了", "where is my parcel", "什么时候发货"], "parcel")
SENTENCES |= dict.fromkeys(["我要退款", "I want a refund", "how long does a refund take"], "refund")
INTENTS = list(SENTENCES.values())


def _lines(reverse: bool = False) -> list[str]:
    lines = []
    for index, (sentence, intent) in enumerate(SENTENCES.items()):
        others = [i for i in range(len(INTENTS)) if i != index]
        groups = [[i for i in others if (INTENTS[i] == intent) == same] for same in (True, False)]
        lists = [",".join(map(str, group[::-1] if reverse else group)) for group in groups]
        lines.append("\t".join([str(index), sentence, intent, *lists]))
    return lines


def _write(folder: pathlib.Path, lines: list[str], name: str = "select.txt") -> pathlib.Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_sentence_without_positives_or_negatives_is_a_candidate_and_no_query(tmp_path):
    lines = ["0\ta\t\t1\t2", "1\tb\t\t\t0,2", "2\tc\t\t0,1\t"]
    retrieval_set = read_retrieval_set(_write(tmp_path, lines))
    assert retrieval_set.sentences == ["a", "b", "c"]
    assert [query.sentence for query in retrieval_set.queries] == [0]


@pytest.mark.parametrize(
    "line",
    [
        "1\tb\t\t0",  # a field less
        "1\tb\tx\t\t0\t2",  # a field more
        "2\tb\t\t0\t2",  # not its own index
        "1\tb\t\t0,x\t2",
        "1\tb\t\t0\t3",  # names no line
        "1\tb\t\t-1\t2",
        "1\tb\t\t0\t10000000000000000000002",  # more than an int64 can hold
        "1\tb\t\t0,1\t2",  # its own positive
        "1\tb\t\t0\t2,2",  # a negative twice
        "1\tb\t\t0,2\t2",  # both
        "1\tb\t\t1\t",  # its own positive, though no query
    ],
)
def test_a_malformed_line_is_named(tmp_path, line):
    path = _write(tmp_path, ["0\ta\t\t1\t2", line, "2\tc\t\t0\t1"])
    with pytest.raises(InputError, match=r"select\.txt:2: ") as caught:
        read_retrieval_set(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("lines", [[], ["0\ta\t\t\t1", "1\tb\t\t\t0"]])
def test_a_file_without_a_query_is_refused(tmp_path, lines):
    with pytest.raises(InputError, match=r"select\.txt: no query"):
        read_retrieval_set(_write(tmp_path, lines))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_constant_encoder_scores_exactly_chance_whatever_the_order(tmp_path, reverse):
    retrieval_set = read_retrieval_set(_write(tmp_path, _lines(reverse)))
    scores = evaluate_retrieval(
        retrieval_set, lambda sentences: np.ones((len(sentences), 3))
    ).scores
    # Two of five are relevant. Reciprocal rank: 4/10 at once, 3/10 second, 2/10 third, 1/10 fourth.
    mrr = 4 / 10 + 3 / 10 / 2 + 2 / 10 / 3 + 1 / 10 / 4
    # Average precision: q = 1/4, and q + (1 - q) (1 + 1/2 + 1/3 + 1/4 + 1/5) / 5
    expected = 1 / 4 + 3 / 4 * (137 / 60) / 5
    assert scores["map"] == pytest.approx(100 * expected)
    assert scores["mrr"] == pytest.approx(100 * mrr)
    assert scores["chance_map"] == pytest.approx(scores["map"])
    assert scores["chance_mrr"] == pytest.approx(scores["mrr"])
    assert scores["tie_share"] == 100


def test_scores_by_hand(tmp_path):
    lines = ["0\tq\t\t1,2\t3", "1\ta\t\t\t", "2\tb\t\t\t", "3\tc\t\t\t"]
    retrieval_set = read_retrieval_set(_write(tmp_path, lines))
    # Angles to q of 10, 60 and 30 degrees: a, then c, then b; that c is longest does not matter.
    angles, lengths = {"q": 0, "a": 10, "b": 60, "c": 30}, {"q": 2, "a": 1, "b": 10, "c": 100}

    def encode(sentences):
        degrees = np.radians([angles[s] for s in sentences])
        unit = np.stack([np.cos(degrees), np.sin(degrees)], axis=1)
        return unit * [[lengths[s]] for s in sentences]

    scores = evaluate_retrieval(retrieval_set, encode).scores
    assert scores["map"] == pytest.approx(100 * (1 + 2 / 3) / 2)
    assert scores["mrr"] == pytest.approx(100)
    assert scores["tie_share"] == 0


def test_on_the_authors_dev_set_a_constant_encoder_scores_as_random_rankings():
    retrieval_set = read_retrieval_set(shared_file("dialoguecse_official/edc/dev/select.txt"))
    retrieval_set = dataclasses.replace(retrieval_set, queries=retrieval_set.queries[::4])
    rng = np.random.default_rng(0)
    constant, random = (
        evaluate_retrieval(retrieval_set, encode).scores
        for encode in (lambda s: np.ones((len(s), 4)), lambda s: rng.normal(size=(len(s), 16)))
    )
    for name in ("map", "mrr"):
        assert constant[name] == pytest.approx(random[name], abs=4)
        assert constant[name] == pytest.approx(constant[f"chance_{name}"], abs=1e-9)
    assert constant["tie_share"] == 100
    assert (constant["map"], constant["mrr"]) == pytest.approx((46, 64), abs=4)
