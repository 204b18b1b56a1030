"""Sheets for annotators, and their merging into a dialogue STS set (paper, section 5.1.2)."""

import csv
import dataclasses
import io
import pathlib
from collections.abc import Sequence

import krippendorff
import numpy as np

from dcse_tf.atomic import atomic_file
from dcse_tf.errors import InputError
from dcse_tf.evaluation import metrics
from dcse_tf.evaluation.sts import StsSet
from dcse_tf.input_files import UNREADABLE, open_input

COLUMNS = ("pair", "first", "second", "degree")
DEGREES = (
    "5: the same meaning, in this dialogue either could stand for the other",
    "4: nearly the same; a detail that does not matter differs",
    "3: roughly the same; something that matters differs or is missing",
    "2: not the same, but about the same thing or with the same intent",
    "1: nothing in common",
)


@dataclasses.dataclass(frozen=True)
class Merged:
    """The set that several sheets give.

    Attributes:
        sts_set: pairs with the median of their degrees.
        alpha: Krippendorff's alpha of the degrees as ordinal values; NaN where it is not defined
            (one annotator, or all degrees equal).
        sheets: the annotators' files.
        rated: of the pairs kept, those that each annotator gave a degree.
        agreement: each annotator's Spearman correlation with the median of the others, or NaN.
        left_out: pairs with too few degrees.
    """

    sts_set: StsSet
    alpha: float
    sheets: list[str]
    rated: list[int]
    agreement: list[float]
    left_out: int


def write_sheet(path: pathlib.Path, pairs: Sequence[tuple[int, str, str]], order_seed: int) -> None:
    """Writes (number, first, second) rows with an empty degree, in an order of the sheet's own.

    The file begins with a byte-order mark, without which Excel takes UTF-8 for something else.
    """
    order = np.random.default_rng(order_seed).permutation(len(pairs))
    with (
        atomic_file(path) as partial,
        partial.open("w", encoding="utf-8-sig", newline="") as file,
    ):
        sheet = csv.writer(file)
        sheet.writerow(COLUMNS)
        sheet.writerows((*pairs[place], "") for place in order)


def read_sheet(path: pathlib.Path) -> dict[str, tuple[str, str, float]]:
    """An annotator's sheet: pair to (first, second, degree), degree NaN where it is empty.

    Fields may be parted by commas or, as some spreadsheets write them, by semicolons.

    Raises:
        InputError: a column is missing, a degree is not 1 to 5, or a pair is there twice.
    """
    rows: dict[str, tuple[str, str, float]] = {}
    try:
        with open_input(path) as file:
            text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: {error.reason}; save it as CSV UTF-8") from error
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    first_line = text.split("\n", 1)[0]
    delimiter = ";" if first_line.count(";") > first_line.count(",") else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path}:1: expected the columns {', '.join(COLUMNS)}")
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if not any(row.values()):  # as spreadsheets leave them at the end
                continue
            pair = (row["pair"] or "").strip()
            if any(row[name] is None for name in COLUMNS) or not pair:
                raise InputError(f"{where}: expected {', '.join(COLUMNS)}")
            if pair in rows:
                raise InputError(f"{where}: pair {pair} is there twice")
            rows[pair] = (row["first"], row["second"], _parse_degree(where, row["degree"]))
    except csv.Error as error:
        # DictReader counts a line when it has been read; the reader in it knows better.
        raise InputError(f"{path}:{reader.reader.line_num}: not CSV: {error}") from error
    return rows


def _parse_degree(where: str, text: str) -> float:
    text = text.strip()
    if not text:
        return float("nan")
    try:
        degree = float(text)
    except ValueError:
        degree = 0.0
    if degree not in (1.0, 2.0, 3.0, 4.0, 5.0):
        raise InputError(f"{where}: expected a degree of 1, 2, 3, 4 or 5, found {text[:20]!r}")
    return degree


def merge_sheets(paths: Sequence[pathlib.Path], min_annotators: int) -> Merged:
    """Merges annotators' sheets by the median degree of each pair.

    Args:
        paths: the sheets, one an annotator.
        min_annotators: pairs with fewer degrees are left out.

    Raises:
        InputError: a sheet cannot be used, two sheets have other sentences for one pair, or fewer
            than two pairs are left.
    """
    sheets = [read_sheet(path) for path in paths]
    texts: dict[str, tuple[str, str]] = {}
    for path, sheet in zip(paths, sheets, strict=True):
        for pair, (first, second, _) in sheet.items():
            if texts.setdefault(pair, (first, second)) != (first, second):
                raise InputError(f"{path}: pair {pair} has other sentences than in another sheet")
    names = sorted(texts, key=lambda name: (len(name), name))
    nothing = ("", "", float("nan"))
    degrees = np.array([[sheet.get(name, nothing)[2] for name in names] for sheet in sheets])
    kept = np.sum(~np.isnan(degrees), axis=0) >= min_annotators
    if kept.sum() < 2:
        raise InputError(f"fewer than two pairs have {min_annotators} degree(s) or more")
    degrees = degrees[:, kept]
    pairs = [texts[name] for name, keep in zip(names, kept, strict=True) if keep]
    return Merged(
        sts_set=StsSet(np.nanmedian(degrees, axis=0), [p[0] for p in pairs], [p[1] for p in pairs]),
        alpha=_alpha(degrees),
        sheets=[str(path) for path in paths],
        rated=np.sum(~np.isnan(degrees), axis=1).tolist(),
        agreement=[_agreement(degrees, annotator) for annotator in range(len(sheets))],
        left_out=int(np.sum(~kept)),
    )


def _alpha(degrees: np.ndarray) -> float:
    given = degrees[~np.isnan(degrees)]
    if np.ptp(given) == 0 or not np.any(np.sum(~np.isnan(degrees), axis=0) > 1):
        return float("nan")
    return float(krippendorff.alpha(degrees, level_of_measurement="ordinal"))


def _agreement(degrees: np.ndarray, annotator: int) -> float:
    others = np.delete(degrees, annotator, axis=0)
    both = ~np.isnan(degrees[annotator]) & np.any(~np.isnan(others), axis=0)
    if both.sum() < 2:
        return float("nan")
    medians = np.nanmedian(others[:, both], axis=0)
    return float(metrics.spearman(degrees[annotator, both], medians))
