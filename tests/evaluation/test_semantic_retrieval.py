"""The paper's evaluation sets, of retrieval and of similarity: lines refused, scores by hand."""

import dataclasses

import numpy as np
import pytest
from shared_files import shared_file
from written_dialogues import write_lines

from dcse_tf.errors import InputError
from dcse_tf.evaluation.retrieval import (
    evaluate_retrieval,
    evaluate_sts,
    read_retrieval_set,
    read_sts_set,
)

# Two intents, parcel and refund; every sentence lists all others, positives first.
SENTENCES = dict.fromkeys(["我的快递到哪了", "where is my parcel", "什么时候发货"], "parcel")
SENTENCES |= dict.fromkeys(["我要退款", "I want a refund", "how long does a refund take"], "refund")
INTENTS = list(SENTENCES.values())
PAIRS = [
    "5\t什么时候发货\t几时能发货呢",
    "1\twhere is my parcel\tI like coffee",
    "3.5\tI want a refund\tI want it today",
    "2\t好的\tok",
    "2\tthanks\tbye",
]


def _list_lines(order):
    for index, (sentence, intent) in enumerate(SENTENCES.items()):
        others = [i for i in range(len(INTENTS)) if i != index]
        groups = [[i for i in others if (INTENTS[i] == intent) == same] for same in (True, False)]
        lists = [",".join(map(str, group[::order])) for group in groups]
        yield "\t".join([str(index), sentence, intent, *lists])


@pytest.fixture
def write(tmp_path):
    return lambda lines: write_lines(tmp_path / "set.txt", *lines)


def test_a_sentence_without_positives_or_negatives_is_a_candidate_and_no_query(write):
    retrieval_set = read_retrieval_set(write(["0\ta\t\t1\t2", "1\tb\t\t\t0,2", "2\tc\t\t0,1\t"]))
    assert retrieval_set.sentences == ["a", "b", "c"]
    assert [query.sentence for query in retrieval_set.queries] == [0]


BAD_QUERIES = [
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
]
BAD_PAIRS = [
    *("0\ta\tb", "6\ta\tb", "5.01\ta\tb", "nan\ta\tb", "five\ta\tb", "\ta\tb", "3\ta"),
    *("3\ta\tb\tc", "a\tb\t3", "3 a b", f"{10**400}\ta\tb"),
]


@pytest.mark.parametrize(
    ("read", "before", "line", "after"),
    [
        *((read_retrieval_set, "0\ta\t\t1\t2", line, "2\tc\t\t0\t1") for line in BAD_QUERIES),
        *((read_sts_set, PAIRS[0], line, PAIRS[1]) for line in BAD_PAIRS),
    ],
)
def test_a_malformed_line_is_named(write, read, before, line, after):
    path = write([before, line, after])
    with pytest.raises(InputError, match=f"^{path}:2: "):
        read(path)


@pytest.mark.parametrize(
    ("read", "lines", "told"),
    [
        *((read_retrieval_set, x, "no query") for x in ([""], ["0\ta\t\t\t1", "1\tb\t\t\t0"])),
        *((read_sts_set, x, "expected at least two pairs") for x in ([""], PAIRS[:1])),
    ],
)
def test_a_file_of_too_little_is_refused(write, read, lines, told):
    with pytest.raises(InputError, match=rf"set\.txt: {told}"):
        read(write(lines))


@pytest.mark.parametrize("order", [1, -1])
def test_a_constant_encoder_scores_exactly_chance_whatever_the_order(write, order):
    retrieval_set = read_retrieval_set(write(_list_lines(order)))
    scores = evaluate_retrieval(retrieval_set, lambda texts: np.ones((len(texts), 3))).scores
    # Two of five are relevant. Reciprocal rank: 4/10 at once, 3/10 second, 2/10 third, 1/10 fourth.
    mrr = 4 / 10 + 3 / 10 / 2 + 2 / 10 / 3 + 1 / 10 / 4
    # Average precision: q = 1/4, and q + (1 - q) (1 + 1/2 + 1/3 + 1/4 + 1/5) / 5
    expected = 1 / 4 + 3 / 4 * (137 / 60) / 5
    assert scores["map"] == pytest.approx(100 * expected)
    assert scores["mrr"] == pytest.approx(100 * mrr)
    assert scores["chance_map"] == pytest.approx(scores["map"])
    assert scores["chance_mrr"] == pytest.approx(scores["mrr"])
    sts_set = read_sts_set(write(sorted(PAIRS)[::order]))
    of_pairs = evaluate_sts(sts_set, lambda x: np.full((len(x), 3), 0.1, np.float32)).scores
    assert of_pairs["spearman"] == of_pairs["chance_spearman"] == 0
    assert scores["tie_share"] == of_pairs["tie_share"] == 100


def test_scores_by_hand(write):
    lines = ["0\tq\t\t1,2\t3", "1\ta\t\t\t", "2\tb\t\t\t", "3\tc\t\t\t"]
    # Angles to q of 10, 60 and 30 degrees: a, then c, then b; that c is longest does not matter.
    angles, lengths = {"q": 0, "a": 10, "b": 60, "c": 30}, {"q": 2, "a": 1, "b": 10, "c": 100}

    def encode(sentences):
        degrees = np.radians([angles[s] for s in sentences])
        unit = np.stack([np.cos(degrees), np.sin(degrees)], axis=1)
        return unit * [[lengths[s]] for s in sentences]

    scores = evaluate_retrieval(read_retrieval_set(write(lines)), encode).scores
    assert scores["map"] == pytest.approx(100 * (1 + 2 / 3) / 2)
    assert scores["mrr"] == pytest.approx(100)
    assert scores["tie_share"] == 0


@pytest.mark.parametrize(
    ("cosines", "expected"),
    [
        ([0.9, -0.5, 0.4, 0.1, 0.1], 100),  # the order of the degrees, ties included
        ([-0.9, 0.5, -0.4, -0.1, -0.1], -100),
        # Ranks 5, 1, 4, 2.5, 2.5 against 5, 4, 3, 2, 1; deviations from 3:
        # (2, -2, 1, -.5, -.5) . (2, 1, 0, -1, -2) = 3.5, over sqrt(9.5 * 10)
        ([0.9, 0.8, 0.3, 0.2, 0.1], 100 * 3.5 / np.sqrt(95)),
    ],
)
def test_correlations_by_hand(write, cosines, expected):
    """Pair i has the cosine cosines[i]; lengths do not matter."""
    vectors = {}
    for number, (line, cosine) in enumerate(zip(PAIRS, cosines, strict=True)):
        _, first, second = line.split("\t")
        length = 10.0**number
        vectors[first] = [2 * length, 0.0]
        vectors[second] = [length * cosine, length * np.sqrt(1 - cosine**2)]
    sts_set = read_sts_set(write(PAIRS))
    scores = evaluate_sts(sts_set, lambda texts: np.array([vectors[x] for x in texts])).scores
    assert scores["spearman"] == pytest.approx(expected)
    assert scores["pairs"] == 5
    assert scores["tie_share"] == pytest.approx(40 if cosines[3] == cosines[4] else 0)


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
