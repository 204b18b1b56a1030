"""Writes the results of an evaluation as a table and as JSON, and compares results."""

import dataclasses
import itertools
import pathlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dcse_tf.bert.encoder_options import EncoderOptions
from dcse_tf.errors import InputError, name_input
from dcse_tf.evaluation.bootstrap import Difference, difference, interval, score_names
from dcse_tf.evaluation.metrics import RERANKER, Evaluation
from dcse_tf.files import write_record
from dcse_tf.input_files import read_json_object

TIE_WARNING = 1.0  # percent of tied scores above which a result has a warning


@dataclasses.dataclass(frozen=True)
class Result:
    """The scores of one evaluation on one file; `scores` and `items` as in `Evaluation`."""

    task: str  # what was evaluated
    source: str  # the file of the set
    fingerprint: str  # identifies the set; results with equal fingerprints can be compared
    scores: dict[str, float]
    items: dict[str, list[float]]
    intervals: dict[str, tuple[float, float]]  # 95%, of each score from at least two items
    # Of response selection, which turns around the response the contexts hold, at most: "3 before",
    # or "3 before, 3 after" as in the paper.
    context: str = ""

    def warning(self) -> str | None:
        share = self.scores["tie_share"]
        if share <= TIE_WARNING:
            return None
        return (
            f"{self.task} on {self.source}: {share:.1f}% of the scores are tied; a tie counts as "
            "the mean over all orders. Many ties mean repeated sentences or a collapsed encoder."
        )


def make_result(
    task: str, source: str, fingerprint: str, evaluation: Evaluation, context: str = ""
) -> Result:
    """Makes a result; its intervals are computed from the items."""
    items = {name: values.round(9).tolist() for name, values in evaluation.items.items()}
    drawn = {name: interval(evaluation.items, name) for name in score_names(evaluation.items)}
    intervals = {name: limits for name, limits in drawn.items() if limits}
    return Result(task, source, fingerprint, evaluation.scores, items, intervals, context)


def format_table(results: list[Result]) -> str:
    """A table with, set by set, a line for each score, and which turns its context holds.

    Below it are the sizes of groups of candidates, and a warning for each set with many ties.
    """
    rows, notes = [("set", "score", "context", "value", "95% interval", "chance")], []
    for result in results:
        file, scores = short_path(result.source), result.scores
        for name in score_names(result.items):
            limits = result.intervals.get(name)
            label = name.replace("_of_", " of ")
            if "candidates" in scores and re.search(r"_r\d+$", name):
                label = f"{name} of {scores['candidates']:.0f}"
            value, chance = (f"{scores[each]:.2f}" for each in (name, f"chance_{name}"))
            ends = f"{limits[0]:.2f} to {limits[1]:.2f}" if limits else ""
            rows.append((file, label, result.context, value, ends, chance))
        if "groups" in scores:
            size, of = f"{scores['candidates']:.0f}", "groups_of_"
            counts = [f"{scores[k]:.0f} of {k.removeprefix(of)}" for k in scores if of in k]
            told = f"{scores['groups']:.0f} groups"
            if len(counts) == 1:
                told += f" of {size} candidates"
            else:
                told += f" ({', '.join(counts)} candidates); R@k is over the groups of {size}, "
                told += "all other scores are over all groups"
            notes.append(f"{file}: {told}")
    warnings = [warning for result in results if (warning := result.warning())]
    return "\n".join([align(rows, text_columns=3), *dict.fromkeys(notes), *warnings])


def align(rows: Sequence[Sequence[str]], text_columns: int) -> str:
    """A table as text. The first row is the header; the first `text_columns` are left-aligned."""
    widths = [max(_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - _width(cell))
            cells.append(cell + space if column < text_columns else space + cell)
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "-" * _width(lines[0]), *lines[1:]])


def _width(text: str) -> int:
    """The width of a text in a terminal, in columns; a Chinese character takes two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def short_path(source: str) -> str:
    """A file's name with its last two folders, which tell one select.txt from another."""
    return "/".join(pathlib.Path(source).parts[-3:])


def write_results(
    path: pathlib.Path, model: str, settings: dict[str, Any], results: list[Result]
) -> None:
    """Writes the results, the model as the user named it and all settings, atomically."""
    told = [{**dataclasses.asdict(result), "warning": result.warning()} for result in results]
    write_record(path, {"model": model, "settings": settings, "results": told}, sort_keys=False)


def read_results(path: str | pathlib.Path) -> tuple[str, list[Result], dict[str, Any]]:
    """Reads a file of `write_results`: the model, its results and the settings; InputError if it
    does not have this form.
    """
    fields = [field.name for field in dataclasses.fields(Result)]
    content = read_json_object(pathlib.Path(path), "a file of results of evaluate")
    wrong = KeyError, TypeError, ValueError, AttributeError
    with name_input(f"{path}: not a file of results of evaluate", *wrong):
        results = []
        for entry in content["results"]:
            limits = {name: (low, high) for name, (low, high) in entry["intervals"].items()}
            values = {name: entry[name] for name in fields if name in entry}
            results.append(Result(**{**values, "intervals": limits}))
        return str(content["model"]), results, dict(content["settings"])


# Settings of `evaluate` that affect scores on the same set. Those that determine which samples are
# drawn are not among them: other samples are another set, which is not compared.
_OF_SCORES = (*EncoderOptions.fields(), "compute_dtype", "truncate_dim", "candidates_turns")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One score of two models on the same set; `context` as in `Result`."""

    source: str
    score: str
    context: str
    first: float
    second: float
    difference: Difference


def describe_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Lists the settings that affect scores, are known of both results, and differ."""
    lines = []
    for name in _OF_SCORES:
        values = first.get(name), second.get(name)
        if None not in values and values[0] != values[1]:
            # An empty text, or one that ends in a space, cannot be seen without quotes.
            one, other = (v if str(v).strip() == str(v) != "" else repr(v) for v in values)
            lines.append(f"`{name}` is not the same: first {one}, second {other}")
    return lines


def compare_results(first: list[Result], second: list[Result]) -> list[Comparison]:
    """Compares every score that both models have on the same set, and a re-ranker's with those by
    each similarity of embeddings; InputError if they have no set with two items or more in common.

    Scores of a single item are left out, as R@k is where each group has a size of its own.
    """
    known = {(result.task, result.fingerprint): result for result in second}
    comparisons = []
    for one, other in itertools.product(first, known.values()):
        own, way = (result.task.partition("_")[2] for result in (one, other))
        ranked = RERANKER in (own, way) and one.context == other.context
        if one.fingerprint != other.fingerprint or not (ranked or one.task == other.task):
            continue
        ours = {name: np.array(values) for name, values in one.items.items()}
        theirs = {name.replace(way, own): np.array(v) for name, v in other.items.items()}
        for name in one.intervals:
            label = name if own == way else f"{name}, {name.replace(own, way)}"
            scores = one.scores[name], other.scores[name.replace(own, way)]
            found = difference(ours, theirs, name)
            comparisons.append(Comparison(one.source, label, one.context, *scores, found))
    if not comparisons:
        raise InputError(
            "the results have no evaluation set in common, with two items or more: the same "
            "content of a file, the same `half` of it, and the same settings by which responses "
            "are drawn (`candidates`, `context_turns`, `max_samples`, `seed` and so on)"
        )
    return comparisons


def format_comparisons(comparisons: list[Comparison], corrected: list[float]) -> str:
    """A table with a line per comparison, with its p-value `corrected` by `holm` over the job's."""
    head = ("set", "score", "context", "first", "second", "difference", "95% interval")
    rows = [(*head, "p", "p (Holm)")]
    for each, p_value in zip(comparisons, corrected, strict=True):
        found = each.difference
        scores = f"{each.first:.2f}", f"{each.second:.2f}", f"{found.value:+.2f}"
        ends = f"{found.low:+.2f} to {found.high:+.2f}"
        likely = f"{found.p_value:.4f}", f"{p_value:.4f}"
        rows.append((short_path(each.source), each.score, each.context, *scores, ends, *likely))
    return align(rows, text_columns=3)
