"""Tables of a domain experiment: scores on each set, an overview, and which rows pass."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from domain_plan import DomainPlan
from domain_rows import BASES, RECOMMENDED, DomainRow
from domain_settings import DomainSettings
from report import Line, Seeds, compare, correct, get_names, read_results, summarise
from runner import read_record
from selection_report import Table, read_seeds

from dcse_tf.evaluation.names import PROJECTED
from dcse_tf.evaluation.report import read_json

# The conditions that a row must meet: the significance of its gain in MAP, and the most points by
# which guards and response selection may fall.
SIGNIFICANCE = 0.05
GUARD_FALL = 0.3
RESPONSE_FALL = 1.0
_WAYS = ("cosine", "matching", PROJECTED)
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Measured:
    """Something that models are scored on, and the score that is compared.

    Attributes:
        kind: "domain", "guard" or "responses".
        name: the name of the set or of the similarity.
        title: the title in reports.
        score: the name of the compared score.
    """

    kind: str
    name: str
    title: str
    score: str

    @property
    def column(self) -> str:
        """The heading of its column in the overview."""
        score = {"map": "MAP", "r1": "R@1"}[self.score]
        return f"{score} by {self.name}" if self.kind != "guard" else f"{score}, {self.name}"


Lines = dict[Measured, dict[DomainRow, Line]]


def read_scores(
    settings: DomainSettings, found: DomainPlan
) -> dict[Measured, dict[DomainRow, Seeds]]:
    """Reads all results that exist; the plan need not be done.

    Raises:
        InputError: a file has another form, or belongs to another set.
    """
    scores: dict[Measured, dict[DomainRow, Seeds]] = {}
    for each in (*settings.domain, *settings.guards):
        own = each in settings.domain
        title = f"{settings.name}, retrieval by {each.name}" if own else f"guard: {each.name}"
        measured = Measured("domain" if own else "guard", each.name, title, "map")
        for row, paths in found.retrieval.items():
            if there := [path for path in paths if path.is_file()]:
                made_in = settings.work_dir if each.column else None
                seeds = read_results(there, [found.files[each]], made_in)
                scores.setdefault(measured, {})[row] = seeds
    for way in _WAYS:
        title = f"{settings.name}, response selection by {way}"
        measured = Measured("responses", way, title, "r1")
        for row, paths in found.responses.items():
            there = [path for path in paths if path.is_file()]
            # A fitted baseline has only sentence embeddings, so no matching of tokens.
            lacks = row.fit if way == "matching" else way == PROJECTED and not _has_heads(there)
            if there and not lacks:
                scores.setdefault(measured, {})[row] = read_seeds(there, way, "response")
    return scores


def _has_heads(results: Sequence[pathlib.Path]) -> bool:
    """Whether responses were ranked behind projection heads too, which few models have."""
    tasks = {result.task for path in results[:1] for result in read_json(path)[1]}
    return f"response_{PROJECTED}" in tasks


def make_lines(scores: Mapping[Measured, Mapping[DomainRow, Seeds]]) -> Lines:
    """Makes one line per row, compared with the better base; p-values are corrected per table."""
    found = {}
    for measured, scored in scores.items():
        bases = [row for row in BASES if row in scored]
        means = [summarise(scored[row], measured.score).mean for row in bases]
        base = scored[bases[int(np.argmax(means))]] if bases else None
        lines = []
        for row, seeds in scored.items():
            names = get_names(seeds)
            differences = {}
            if base is not None and row not in BASES:
                differences = {measured.score: compare(base, seeds, measured.score)}
            lines.append(
                Line(
                    row.title,
                    row.title,
                    None,
                    {name: summarise(seeds, name) for name in names},
                    differences=differences,
                )
            )
        (corrected,) = correct({measured.title: lines}).values()
        found[measured] = dict(zip(scored, corrected, strict=True))
    return found


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a row meets each of three conditions; None if that is not known yet.

    Attributes:
        rises: whether MAP in the domain rises significantly on a set and falls so on none.
        holds: whether no guard falls by more than `GUARD_FALL`.
        keeps: whether response selection, by the better similarity, is at most `RESPONSE_FALL`
            below the recommended preset's.
    """

    rises: bool | None
    holds: bool | None
    keeps: bool | None

    @property
    def passes(self) -> bool | None:
        """Whether all conditions are met; False as soon as one fails, None if one is unknown."""
        conditions = (self.rises, self.holds, self.keeps)
        if False in conditions:
            return False
        return None if None in conditions else True


def judge(row: DomainRow, lines: Lines) -> Verdict:
    """Judges a row by its lines."""
    own, guards = (
        [of[row] for measured, of in lines.items() if measured.kind == kind and row in of]
        for kind in ("domain", "guard")
    )
    rises = holds = keeps = None
    if own and all(line.differences for line in own):
        sure = [
            line.differences["map"].value for line in own if line.corrected["map"] < SIGNIFICANCE
        ]
        rises = any(gain > 0 for gain in sure) and not any(gain < 0 for gain in sure)
    if (own or guards) and all(line.differences for line in guards):
        falls = (-line.differences["map"].value for line in guards)
        holds = all(fall <= GUARD_FALL + _ROUNDING for fall in falls)
    ours, preset = _find_best(row, lines), _find_best(RECOMMENDED, lines)
    if ours is not None and preset is not None:
        keeps = preset - ours <= RESPONSE_FALL + _ROUNDING
    return Verdict(rises, holds, keeps)


def _find_best(row: DomainRow, lines: Lines) -> float | None:
    """R@1 by the better of a row's similarities; None without results."""
    found = [
        of[row].scores["r1"].mean
        for measured, of in lines.items()
        if measured.kind == "responses" and row in of
    ]
    return max(found, default=None)


def make_verdicts(lines: Lines) -> Table:
    """A table of whether each row except the bases passes, and by which figures."""
    table: Table = [["", "MAP in the domain", "guards", "response selection", "passes"]]
    preset = _find_best(RECOMMENDED, lines)
    for row in _list_rows(lines):
        if row in BASES:
            continue
        verdict = judge(row, lines)
        own, guards = (
            ", ".join(
                f"{measured.name} {_describe(of[row], kind == 'domain')}"
                for measured, of in lines.items()
                if measured.kind == kind and row in of and of[row].differences
            )
            for kind in ("domain", "guard")
        )
        best = _find_best(row, lines)
        responses = "" if best is None or preset is None else f"{best - preset:+.2f}"
        guards = guards or ("none given" if verdict.holds else "")
        cells = ((own, verdict.rises), (guards, verdict.holds), (responses, verdict.keeps))
        texts = [f"{_SAID[value]}: {text}" if text else _SAID[value] for text, value in cells]
        table.append([row.title, *texts, _SAID[verdict.passes]])
    return table


_SAID = {True: "yes", False: "no", None: "not known"}


def _describe(line: Line, certain: bool) -> str:
    gain = f"{line.differences['map'].value:+.2f}"
    return f"{gain} (p {line.corrected['map']:.4f})" if certain else gain


def make_overview(settings: DomainSettings, found: DomainPlan, lines: Lines) -> Table:
    """A table of every row's score on each set, and of the seconds of its training."""
    table: Table = [["", *(measured.column for measured in lines), "seconds of training"]]
    for row in _list_rows(lines):
        cells: list[str | float] = [
            of[row].scores[measured.score].mean if row in of else ""
            for measured, of in lines.items()
        ]
        records = [read_record(settings.work_dir / name) for name in found.trainings[row]]
        seconds = [record["seconds"] for record in records if record and "seconds" in record]
        table.append([row.title, *cells, f"{np.mean(seconds):.0f}" if seconds else ""])
    return table


def _list_rows(lines: Lines) -> list[DomainRow]:
    return list(dict.fromkeys(row for of in lines.values() for row in of))
