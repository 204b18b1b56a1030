"""Tables of response selection: scores, order of the models, auxiliary tasks, context lengths."""

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from paper import SELECTION
from report import Line, Seeds, compare, get_names, summarise
from rows import Variant
from selection_plan import GroupSet, SelectionPlan
from selection_rows import AUXILIARY, SelectionRow

from dcse_tf.data.candidates import CandidateGroup, read_groups
from dcse_tf.errors import InputError
from dcse_tf.evaluation import bootstrap
from dcse_tf.evaluation.report import Result, read_json
from dcse_tf.input_files import BadLines, read_json_object

# Every compared score counts in the correction, so only the paper's target and the finest are.
COMPARED = ("r1", "mrr")
_BINS = 4

Table = list[list[str | float]]


def read_seeds(paths: Sequence[pathlib.Path], way: str, task: str = "candidates") -> Seeds:
    """Reads the scores by one similarity that `evaluate` wrote for each seed.

    The similarity's name is removed from the names of the scores.

    Args:
        paths: the results file of each seed.
        way: the similarity, such as "cosine".
        task: "candidates" for grouped candidates, "response" for responses of dialogues.

    Raises:
        InputError: a file lacks these scores, or was computed on another set than the others.
    """
    seeds = []
    for path in paths:
        found = {result.task: result for result in read_json(path)[1]}
        if f"{task}_{way}" not in found:
            raise InputError(f"{path}: no scores of {task}_{way}")
        seeds.append({task: _strip(found[f"{task}_{way}"], f"{way}_")})
    if len({seed[task].fingerprint for seed in seeds}) > 1:
        raise InputError(f"{paths[0].parent} and other seeds: different sets")
    return seeds


def _strip(result: Result, prefix: str) -> Result:
    def strip(values: Mapping) -> dict:
        return {name.replace(prefix, "", 1): value for name, value in values.items()}

    return dataclasses.replace(
        result,
        scores=strip(result.scores),
        items=strip(result.items),
        intervals=strip(result.intervals),
    )


def read_scores(found: SelectionPlan, key: str) -> dict[Variant, Seeds]:
    """Reads the results on a set, of every variant that has some; the plan need not be done."""
    scores = {}
    for (variant, place), paths in found.plan.results.items():
        there = [path for path in paths if path.is_file()]
        if place == key and there:
            scores[variant] = read_seeds(there, variant.row.way)
    return scores


def make_lines(
    scores: Mapping[Variant, Seeds], against: Mapping[SelectionRow, SelectionRow], corpus: str
) -> list[Line]:
    """Makes one line per variant.

    Args:
        scores: the results on a set.
        against: row -> the row that it is compared with, if that one has results.
        corpus: the corpus of the paper whose figures are shown beside them; "" for none.
    """
    rows = {variant.row: seeds for variant, seeds in scores.items()}
    lines = []
    for variant, seeds in scores.items():
        base = rows.get(against.get(variant.row))
        lines.append(
            Line(
                variant.label,
                variant.row.title,
                variant.x,
                {name: summarise(seeds, name) for name in get_names(seeds)},
                SELECTION.get(variant.row.name, {}).get(corpus, {}),
                {name: compare(base, seeds, name) for name in COMPARED} if base else {},
            )
        )
    return lines


def compare_order(scores: Mapping[Variant, Seeds], corpus: str) -> Table:
    """A table of the pairs of rows whose order by mean R@1 differs from the paper's.

    Args:
        scores: the results on a set.
        corpus: the corpus of the paper whose order is compared.
    """
    ours = {
        variant.row: summarise(seeds, "r1").mean
        for variant, seeds in scores.items()
        if variant.row.name in SELECTION
    }
    theirs = {row: SELECTION[row.name][corpus]["r1"] for row in ours}
    table: Table = [["better in the paper", "than", "by, paper", "by, here"]]
    pairs = 0
    for first, second in itertools.permutations(ours, 2):
        gain, here = theirs[first] - theirs[second], ours[first] - ours[second]
        pairs += gain > 0
        if gain > 0 and here <= 0:
            table.append([first.title, second.title, gain, here])
    other = len(table) - 1
    table.append([f"in the paper's order: {pairs - other} of {pairs} pairs", "", "", ""])
    return table


def describe_tasks(found: SelectionPlan, corpus: str) -> Table:
    """A table of the auxiliary tasks' held-out accuracy at the kept step, averaged over seeds."""
    head = ["", "seeds", *AUXILIARY]
    table: Table = [list(head)]
    chances: dict[str, list[float]] = {task: [] for task in AUXILIARY}
    for (variant, name), runs in found.models.items():
        if name != corpus or not variant.row.auxiliary:
            continue
        seeds = [scores for run in runs if (scores := read_dev_scores(run))]
        if not seeds:
            continue
        row: list[str | float] = [variant.label, str(len(seeds))]
        for task in AUXILIARY:
            values = [s[f"dev/{task}_accuracy"] for s in seeds if f"dev/{task}_accuracy" in s]
            row.append(float(np.mean(values)) if values else "")
            chances[task] += [s[name] for s in seeds if (name := f"dev/{task}_chance") in s]
        table.append(row)
    # Without reading; for restoration, one of the whole vocabulary, about 0.
    means = [float(np.mean(values)) if values else "" for values in chances.values()]
    table.append(["without reading", "", *means])
    return table if len(table) > 2 else []


def read_dev_scores(run: pathlib.Path) -> dict[str, float]:
    """The dev scores at the step whose model a run has kept; empty if the run is not done."""
    record = run / "encoder" / "training.json"
    if not record.is_file():
        return {}
    from tensorboard.backend.event_processing import event_file_loader
    from tensorboard.util import tensor_util

    step = read_json_object(record)["step"]
    scores = {}
    for path in sorted((run / "tensorboard").glob("events.out.tfevents.*")):
        for event in event_file_loader.EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if event.step == step and value.tag.startswith("eval/dev/"):
                    number = tensor_util.make_ndarray(value.tensor)
                    scores[value.tag.removeprefix("eval/")] = float(number)
    return scores


MEASURES = {"turns": "turns of the context", "characters": "characters of the context"}


def measure(group: CandidateGroup, by: str) -> int:
    """The length of a group's whole context, in turns or characters."""
    return len(group.context) if by == "turns" else sum(len(turn.text) for turn in group.context)


def read_lengths(each: GroupSet, work_dir: pathlib.Path, by: str) -> list[tuple[int, int]]:
    """Reads (length of the context, number of candidates) of each group of a set.

    Raises:
        InputError: the file cannot be used.
    """
    groups = read_groups(each.locate(work_dir), each.format, BadLines(0), lines=each.lines)
    return [(measure(group, by), len(group.candidates)) for group in groups]


def split_by_length(lengths: Sequence[int]) -> list[np.ndarray]:
    """Splits groups into at most four bins by length; returns the indices in each, shortest first.

    The bins are as equal in size as ties allow.
    """
    values = np.array(lengths)
    edges = np.unique(np.quantile(values, np.arange(1, _BINS) / _BINS, method="lower"))
    bins = np.searchsorted(edges, values)  # a value equal to an edge belongs to the bin below
    return [np.flatnonzero(bins == number) for number in np.unique(bins)]


def make_length_lines(
    scores: Mapping[Variant, Seeds], lengths: Sequence[tuple[int, int]]
) -> list[Line]:
    """Makes a line for each variant and bin, with R@1 on contexts of that length.

    Raises:
        InputError: the set's file has other groups than were scored.
    """
    lines = []
    for variant, seeds in scores.items():
        size = seeds[0]["candidates"].scores["candidates"]
        values = np.array([length for length, candidates in lengths if candidates == size])
        if len(values) != len(seeds[0]["candidates"].items["r1"]):
            raise InputError(f"{seeds[0]['candidates'].source}: other groups than were scored")
        for places in split_by_length(values.tolist()):
            low, high = values[places].min(), values[places].max()
            label = f"{variant.label}, {low} to {high} ({len(places)} groups)"
            part = [{"candidates": _take(seed["candidates"], places)} for seed in seeds]
            score = {"r1": summarise(part, "r1")}
            mean = float(values[places].mean())
            lines.append(Line(label, variant.row.title, mean, score))
    return lines


def _take(result: Result, places: np.ndarray) -> Result:
    """Restricts a result to R@1 on some of the groups."""
    items = np.array(result.items["r1"])[places]
    limits = bootstrap.interval({"r1": items}, "r1")
    return dataclasses.replace(
        result,
        scores={"r1": float(items.mean())},
        items={"r1": items.tolist()},
        intervals={"r1": limits} if limits else {},
    )
