"""Dialogue semantic textual similarity, by Spearman's correlation (paper, section 5.1.2)."""

import dataclasses
import pathlib

import numpy as np

from dcse_tf.encoder.backend import normalize
from dcse_tf.errors import InputError
from dcse_tf.evaluation import metrics
from dcse_tf.evaluation.metrics import Encode, Evaluation
from dcse_tf.input_files import BadLines, read_lines


@dataclasses.dataclass(frozen=True)
class StsSet:
    """Pairs of sentences, with degrees of similarity by annotators.

    Attributes:
        degrees: float `[pairs]`, from 1 to 5.
        first, second: the sentences of each pair.
    """

    degrees: np.ndarray
    first: list[str]
    second: list[str]


def read_sts_set(path: pathlib.Path) -> StsSet:
    """Reads lines of a degree from 1 to 5 and two sentences, tab-separated.

    Raises:
        InputError: a line does not have this form, or there are fewer than two pairs.
    """
    degrees, first, second = [], [], []
    for number, line in read_lines(path, BadLines(0, option="")):
        fields = line.split("\t")
        try:
            degree = float(fields[0])
        except ValueError:
            degree = float("nan")
        if len(fields) != 3 or not 1.0 <= degree <= 5.0:
            raise InputError(
                f"{path}:{number}: expected a degree from 1 to 5 and two sentences, "
                f"tab-separated; found {len(fields)} field(s), the first {fields[0][:20]!r}"
            )
        degrees.append(degree)
        first.append(fields[1])
        second.append(fields[2])
    if len(degrees) < 2:
        raise InputError(f"{path}: expected at least two pairs")
    return StsSet(np.array(degrees), first, second)


def evaluate_sts(sts_set: StsSet, encode: Encode) -> Evaluation:
    """Spearman's correlation of degrees and cosines, in percent.

    Returns:
        Scores: spearman; chance_spearman, which is 0; tie_share, the percentage of pairs with the
        same cosine as another pair; and pairs. Items: degree and cosine, one per pair.
    """
    first, second = np.split(normalize(encode(sts_set.first + sts_set.second)), 2)
    cosines = np.sum(first * second, axis=-1)
    scores = {
        "spearman": 100.0 * float(metrics.spearman(sts_set.degrees, cosines)),
        "chance_spearman": 0.0,
        "tie_share": 100.0 * metrics.tied_share(cosines),
        "pairs": float(len(cosines)),
    }
    return Evaluation(scores, {"degree": sts_set.degrees, "cosine": cosines})
