"""The inspection job: describes a corpus as text, JSON and an HTML page."""

import collections
import dataclasses
import json
import pathlib
from collections.abc import Iterable

import numpy as np

from dcse_tf.data.corpus import describe_dropped, read_sessions
from dcse_tf.data.words import make_splitter
from dcse_tf.errors import InputError
from dcse_tf.evaluation.report import align, short_path
from dcse_tf.evaluation.retrieval import read_retrieval_set
from dcse_tf.evaluation.sts import read_sts_set
from dcse_tf.files import atomic_directory
from dcse_tf.input_files import resolve_inputs
from dcse_tf.inspecting.pages import render_page
from dcse_tf.inspecting.statistics import (
    LONG,
    CountTokens,
    LeakFinder,
    LeakReport,
    Lengths,
    Statistics,
    StatisticsCollector,
)
from dcse_tf.sets.options import InspectOptions

_NAMES_SHOWN = 40  # speakers or intents
_LEAKS_SHOWN = 12  # per set, in the page; leaks.tsv has all
_LIMITS = (16, 25, 32, 50, 64, 100, 128, 256)


@dataclasses.dataclass(frozen=True)
class DataReport:
    """What `inspect_data` found.

    Attributes:
        inputs: format and file of each input.
        dropped: reason -> number of sessions, utterances or lines left out.
        max_sequence_length: the length above which utterances count as cut, in tokens; None without
            a tokenizer.
        near_duplicate: the lowest Jaccard index of trigrams of near-duplicates.
        statistics: the statistics of the corpus.
        leaks: one report per evaluation set.
    """

    inputs: list[str]
    dropped: dict[str, int]
    max_sequence_length: int | None
    near_duplicate: float
    statistics: Statistics
    leaks: list[LeakReport]


def format_text(report: DataReport) -> str:
    """Formats the report as tables for the terminal."""
    parts = [align(_overview(report), text_columns=2)]
    parts += [align(rows, text_columns=1) for rows in _tables(report)]
    return "\n\n".join(parts)


def render_html(report: DataReport) -> str:
    """Renders the report as a self-contained HTML page."""
    statistics = report.statistics
    tokens = statistics.tokens_an_utterance
    unit = "tokens" if tokens else "words"
    lengths = tokens or statistics.words_an_utterance
    head = ("similarity", "sentence of the set", "utterance of the corpus")
    return render_page(
        "data_report.html.j2",
        inputs=report.inputs,
        overview=_overview(report),
        histograms=[
            (
                "Turns a session",
                make_histogram(statistics.turns_a_session, "turns", "sessions", None),
            ),
            (
                f"{unit.capitalize()} an utterance",
                make_histogram(lengths, unit, "utterances", report.max_sequence_length),
            ),
        ],
        speakers=list(statistics.speakers.items())[:_NAMES_SHOWN],
        intents=list(statistics.intents.items())[:_NAMES_SHOWN],
        intent_count=len(statistics.intents),
        tables=list(_tables(report)),
        leaks=[
            (
                found.source,
                [head]
                + [
                    (f"{leak.similarity:.2f}", leak.sentence, leak.utterance)
                    for leak in found.leaks[:_LEAKS_SHOWN]
                ],
            )
            for found in report.leaks
            if found.leaks
        ],
    )


@dataclasses.dataclass(frozen=True)
class Histogram:
    """A histogram of lengths, as the page draws it.

    Attributes:
        heights: first length of a bar -> count.
        width: number of lengths per bar.
        last: the first length of the last bar, which includes all greater lengths.
        limit: the length at which to draw a line; None for no line.
        ticks: the lengths to label on the axis.
        unit: the unit of length, such as "tokens".
        things: what is counted, such as "utterances".
    """

    heights: dict[int, int]
    width: int
    last: int
    limit: int | None
    ticks: list[int]
    unit: str
    things: str


def make_histogram(lengths: Lengths, unit: str, things: str, limit: int | None) -> Histogram:
    """Makes a histogram up to the 99.5th percentile, or up to the limit if that is greater."""
    end = max(lengths.quantile(0.995), limit or 0)
    width = max(1, end // 60)
    heights: dict[int, int] = {}
    for length, count in lengths.counts.items():
        start = min(length, end) // width * width
        heights[start] = heights.get(start, 0) + count

    last = end // width * width
    ticks = list(range(0, last + 1, max(1, round(last / 6))))
    return Histogram(heights, width, last, limit, ticks, unit, things)


def _overview(report: DataReport) -> list[tuple[str, str]]:
    s = report.statistics
    rows = [("what", "figure"), ("sessions", f"{s.sessions:,}"), ("turns", f"{s.turns:,}")]
    rows += [(f"left out: {what}", f"{count:,}") for what, count in report.dropped.items()]
    rows += [
        ("turns a session", _describe(s.turns_a_session)),
        ("words", f"{s.words_an_utterance.total:,}"),
        ("words an utterance", _describe(s.words_an_utterance)),
        ("characters an utterance", _describe(s.characters_an_utterance)),
    ]
    if s.tokens_an_utterance:
        tokens = s.tokens_an_utterance.total
        rows += [
            ("tokens", f"{tokens:,}"),
            ("tokens an utterance", _describe(s.tokens_an_utterance)),
            ("unknown tokens", _percent(s.unknown_tokens / max(1, tokens))),
            (
                f"utterances cut at {report.max_sequence_length} tokens",
                _percent(s.tokens_an_utterance.share_above(report.max_sequence_length or 0)),
            ),
        ]
    rows += [(f"speaker {name}", f"{count:,} turns") for name, count in s.speakers.items()][:9]
    rows += [
        ("intents", f"{len(s.intents):,}"),
        ("turns with an intent", f"{s.labelled_turns:,}"),
        ("turns whose text another turn has", _percent(s.repeated_utterances)),
        ("sessions whose texts another session has", _percent(s.repeated_sessions)),
    ]
    return rows


def _tables(report: DataReport) -> Iterable[list[tuple[str, ...]]]:
    s = report.statistics
    if s.tokens_an_utterance:
        rows: list[tuple[str, ...]] = [("maximum length in tokens", "utterances cut")]
        limits = sorted({*_LIMITS, report.max_sequence_length or _LIMITS[0]})
        rows += [(str(n), _percent(s.tokens_an_utterance.share_above(n))) for n in limits]
        yield rows
    if s.frequent_utterances:
        rows = [("most frequent utterances", "turns")]
        yield rows + [(text[:60], f"{count:,}") for text, count in s.frequent_utterances]
    if s.intents:
        rows = [("intents", "turns")]
        yield rows + [(name, f"{n:,}") for name, n in list(s.intents.items())[:_NAMES_SHOWN]]
    if report.leaks:
        rows = [
            (
                f"leaks (near: {report.near_duplicate:g} of the trigrams)",
                "sentences",
                "exact",
                "near",
                f"of {LONG}+ characters",
                "exact",
                "near",
            )
        ]
        yield rows + [
            (short_path(leak.source), *map(_with_share, *zip(*_leak_counts(leak), strict=True)))
            for leak in report.leaks
        ]


def _leak_counts(leak: LeakReport) -> list[tuple[int, int]]:
    """Pairs of a count and the total it is a part of; 0 for counts that are totals."""
    return [
        (leak.sentences, 0),
        (leak.exact, leak.sentences),
        (leak.near, leak.sentences),
        (leak.long_sentences, 0),
        (leak.long_exact, leak.long_sentences),
        (leak.long_near, leak.long_sentences),
    ]


def _with_share(count: int, of: int) -> str:
    return f"{count:,} ({_percent(count / of)})" if of else f"{count:,}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def _describe(lengths: Lengths) -> str:
    quantiles = ", ".join(f"{100 * q:.0f}% <= {lengths.quantile(q)}" for q in (0.5, 0.95, 0.99))
    return f"mean {lengths.mean():.2f}, {quantiles}, longest {max(lengths.counts, default=0)}"


_TOKENS_COUNTED = 100_000  # per utterance, at most


def inspect_data(config: InspectOptions) -> str:
    """Describes a corpus and writes report.html, report.json and leaks.tsv.

    Returns:
        The report as text.

    Raises:
        InputError: an input cannot be used.
        FileExistsError: the output exists and may not be replaced.
    """
    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        report = _collect(config)
        content = {"settings": config.to_dict(), **dataclasses.asdict(report)}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (folder / "report.json").write_text(text, encoding="utf-8")
        _write_leaks(folder / "leaks.tsv", report.leaks)
        (folder / "report.html").write_text(render_html(report), encoding="utf-8")
    return format_text(report)


def _collect(config: InspectOptions) -> DataReport:
    # Sets and vocabulary are read first, so that their errors appear before the corpus is read.
    finders = _make_finders(config)
    count_tokens = _make_token_counter(config.vocab) if config.vocab else None
    collector = StatisticsCollector(make_splitter(config.words), count_tokens)
    bad_lines = config.count_bad_lines()
    dropped: collections.Counter[str] = collections.Counter(short_sessions=0, empty_utterances=0)
    for session in read_sessions(config, bad_lines, dropped):
        if len(session.turns) < config.min_turns:
            dropped["short_sessions"] += 1
            continue
        collector.add(session)
        for finder in finders:
            for turn in session.turns:
                finder.add(session.session_id, turn.text)

    statistics = collector.finish()
    if not statistics.sessions:
        raise InputError(
            f"`input`={','.join(config.input)}: no session of at least {config.min_turns} turns "
            f"({describe_dropped(dropped, bad_lines.count)})"
        )

    return DataReport(
        inputs=[f"{config.format}: {name}" for name in config.input],
        dropped={**dropped, "bad_lines": bad_lines.count},
        max_sequence_length=config.max_sequence_length if config.vocab else None,
        near_duplicate=config.near_duplicate,
        statistics=statistics,
        leaks=[finder.finish() for finder in finders],
    )


def _make_finders(config: InspectOptions) -> list[LeakFinder]:
    sentences = {}
    for path in resolve_inputs(config.retrieval, "retrieval"):
        sentences[str(path)] = read_retrieval_set(path).sentences
    for path in resolve_inputs(config.sts, "sts"):
        pairs = read_sts_set(path)
        sentences[str(path)] = pairs.first + pairs.second
    return [LeakFinder(source, found, config.near_duplicate) for source, found in sentences.items()]


def _make_token_counter(vocab: str) -> CountTokens:
    from dcse_tf.bert.checkpoints import resolve_checkpoint
    from dcse_tf.bert.token_rows import TextTokenizer
    from dcse_tf.bert.tokenizer import read_vocabulary
    from dcse_tf.bert.unknown import UnknownTokens

    vocabulary = read_vocabulary(resolve_checkpoint(vocab, "vocab", weights=False))
    tokenizer, unknown = TextTokenizer(vocabulary, _TOKENS_COUNTED), vocabulary.unk_id
    ends = 2 + vocabulary.count_prefix()
    unknown_tokens = UnknownTokens(unknown, vocabulary.special.unk, ends)

    def count(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        rows, _ = tokenizer.tokenize(texts)
        unknown_tokens.add(rows.values, len(texts))
        return rows.lengths, np.add.reduceat(rows.values == unknown, rows.splits[:-1], dtype=int)

    return count


def _write_leaks(path: pathlib.Path, reports: list[LeakReport]) -> None:
    lines = ["set\tsimilarity\tsentence\tutterance\tsession"]
    for report in reports:
        for leak in report.leaks:
            fields = (report.source, f"{leak.similarity:.3f}", leak.sentence, leak.utterance)
            lines.append("\t".join(" ".join(f.split()) for f in (*fields, leak.session_id)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
