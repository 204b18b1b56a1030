import pathlib

import numpy as np
import pytest

from dcse_tf.errors import InputError
from dcse_tf.evaluation.retrieval import evaluate_sts, read_sts_set

LINES = [
    "5\t什么时候发货\t几时能发货呢",
    "1\twhere is my parcel\tI like coffee",
    "3.5\tI want a refund\tI want it today",
    "2\t好的\tok",
    "2\tthanks\tbye",
]


def _write(folder: pathlib.Path, lines: list[str]) -> pathlib.Path:
    path = folder / "sts.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def sts_set(tmp_path):
    return read_sts_set(_write(tmp_path, LINES))


def _encoder(cosines: list[float]):
    """An encoder under which pair i has the cosine cosines[i]; lengths do not matter."""
    vectors = {}
    for number, (line, cosine) in enumerate(zip(LINES, cosines, strict=True)):
        _, first, second = line.split("\t")
        length = 10.0**number
        vectors[first] = [2 * length, 0.0]
        vectors[second] = [length * cosine, length * np.sqrt(1 - cosine**2)]
    return lambda sentences: np.array([vectors[sentence] for sentence in sentences])


@pytest.mark.parametrize("line", [
    "0\ta\tb", "6\ta\tb", "5.01\ta\tb", "nan\ta\tb", "five\ta\tb", "\ta\tb", "3\ta",
    "3\ta\tb\tc", "a\tb\t3", "3 a b", f"{10**400}\ta\tb",
])  # fmt: skip
def test_a_malformed_line_is_named(tmp_path, line):
    path = _write(tmp_path, [LINES[0], line, LINES[1]])
    with pytest.raises(InputError, match=r"sts\.txt:2: ") as caught:
        read_sts_set(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("lines", [[], LINES[:1]])
def test_fewer_than_two_pairs_are_refused(tmp_path, lines):
    with pytest.raises(InputError, match=r"sts\.txt: expected at least two pairs"):
        read_sts_set(_write(tmp_path, lines))


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
def test_scores_by_hand(sts_set, cosines, expected):
    scores = evaluate_sts(sts_set, _encoder(cosines)).scores
    assert scores["spearman"] == pytest.approx(expected)
    assert scores["pairs"] == 5
    assert scores["tie_share"] == pytest.approx(40 if cosines[3] == cosines[4] else 0)


@pytest.mark.parametrize("order", [1, -1])
def test_a_constant_encoder_scores_exactly_chance_whatever_the_order(tmp_path, order):
    sts_set = read_sts_set(_write(tmp_path, sorted(LINES)[::order]))
    scores = evaluate_sts(
        sts_set, lambda sentences: np.full((len(sentences), 3), 0.1, np.float32)
    ).scores
    assert scores["spearman"] == scores["chance_spearman"] == 0
    assert scores["tie_share"] == 100
