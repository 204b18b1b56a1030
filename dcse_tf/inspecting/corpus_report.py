"""The job `inspect_data`: describes a corpus, and finds the sentences of evaluation sets in it."""

import array
import collections
import pathlib
import re
from typing import Any

import numpy as np

from dcse_tf.data.corpus import CorpusOptions, read_long_sessions
from dcse_tf.data.dialogue import Session, list_marks, make_splitter
from dcse_tf.evaluation.report import align, short_path
from dcse_tf.evaluation.retrieval import read_retrieval_set, read_sts_set
from dcse_tf.files import atomic_directory, hash_number, write_record
from dcse_tf.input_files import resolve_inputs
from dcse_tf.inspecting.pages import Table, render_page
from dcse_tf.options import option

_NAMES_SHOWN = 40  # intents
_LONG = 8  # characters of a sentence to look for; shorter ones occur in almost every corpus
_FREQUENT = 20  # how many of the most frequent utterances are reported
_CANDIDATES = 20_000  # texts held in memory while looking for them

Rows = list[tuple[str, ...]]


class InspectOptions(CorpusOptions):
    """Describes a corpus before anything is trained on it."""

    output_dir: str = option(
        "", "Folder for report.html, report.json and leaks.tsv.", required=True, path="writes"
    )
    retrieval: tuple[str, ...] = option(
        (), "Semantic retrieval sets (select.txt) to look for in the corpus.", path="files"
    )
    sts: tuple[str, ...] = option(
        (), "Dialogue STS sets (sts.txt) to look for in the corpus.", path="files"
    )
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")


def inspect_data(config: InspectOptions) -> str:
    """Describes a corpus: writes report.html, report.json and leaks.tsv, and returns its text."""
    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        # Sets are read first, so that their errors appear before the corpus is read.
        paths = resolve_inputs(config.retrieval, "retrieval")
        sets = {path: read_retrieval_set(path).sentences for path in paths}
        for path in resolve_inputs(config.sts, "sts"):
            pairs = read_sts_set(path)
            sets[path] = pairs.first + pairs.second
        wanted = {path: {_normalize(text): text for text in texts} for path, texts in sets.items()}
        # Path of a set -> sentence of it, without case and punctuation -> where it was found.
        leaks: dict[pathlib.Path, dict[str, tuple[str, str]]] = {path: {} for path in sets}
        found = _Statistics()
        left_out = collections.Counter[str]()
        for session in read_long_sessions(config, left_out):
            found.add(session)
            for turn in session.turns:
                key = _normalize(turn.text)
                for path, sentences in wanted.items():
                    if len(key) >= _LONG and key in sentences:
                        leaks[path].setdefault(key, (turn.text, session.session_id))
        figures = found.describe()
        counts = {str(path): len(places) for path, places in leaks.items()}
        content = {"settings": config.to_dict(), "left_out": left_out, **figures, "leaks": counts}
        write_record(folder / "report.json", content, sort_keys=False)
        rows = [("set", "sentence", "utterance", "session")]
        for path, places in leaks.items():
            rows += [(str(path), wanted[path][key], *place) for key, place in places.items()]
        lines = ["\t".join(" ".join(cell.split()) for cell in row) for row in rows]
        (folder / "leaks.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        tables = _make_tables(left_out, figures)
        if leaks:
            table: Rows = [("set", f"sentences of {_LONG}+ characters", "of them in the corpus")]
            for path, places in leaks.items():
                count = sum(len(key) >= _LONG for key in wanted[path])
                table.append((short_path(str(path)), f"{count:,}", f"{len(places):,}"))
            tables.append(table)
        page = render_page("The corpus", list(map(Table, tables)))
        (folder / "report.html").write_text(page, encoding="utf-8")
    return "\n\n".join(align(table, text_columns=1) for table in tables)


def _normalize(text: str) -> str:
    """The text without case, spaces and punctuation."""
    return re.sub(rf"[^\w{list_marks()}]+|_+", "", text.casefold())


class _Statistics:
    """Counts what a stream of sessions has; `turns` are fingerprints of all turns, ignoring case.

    Memory: eight bytes for each turn and for each session, and a bounded number of texts.
    """

    def __init__(self) -> None:
        self._split_words = make_splitter("auto")
        self.turns, self._sessions = array.array("Q"), array.array("Q")
        # Length -> how many sessions or utterances have it.
        self._lengths = {unit: collections.Counter[int]() for unit in ("turns", "words")}
        self._speakers, self._intents = collections.Counter[str](), collections.Counter[str]()
        self._labelled = 0
        self._frequent = collections.Counter[str]()

    def add(self, session: Session) -> None:
        texts = [turn.text.casefold() for turn in session.turns]
        self._sessions.append(hash_number("\n".join(texts)))
        self.turns.extend(map(hash_number, texts))
        self._lengths["turns"][len(texts)] += 1
        self._frequent.update(texts)
        if len(self._frequent) > _CANDIDATES:
            self._frequent = collections.Counter(dict(self._frequent.most_common(_CANDIDATES // 2)))
        for turn in session.turns:
            self._speakers[turn.role] += 1
            self._intents.update(turn.intents)
            self._labelled += bool(turn.intents)
            self._lengths["words"][len(self._split_words(turn.text))] += 1

    def describe(self) -> dict[str, Any]:
        """The statistics of all sessions added, as JSON values; shares are 0 to 1."""
        texts, counts = np.unique(np.array(self.turns, np.uint64), return_counts=True)
        _, copies = np.unique(np.array(self._sessions, np.uint64), return_counts=True)
        # The counts in `_frequent` lack those of texts dropped in between; these are exact.
        exact = {
            text: int(counts[np.searchsorted(texts, np.uint64(hash_number(text)))])
            for text, _ in self._frequent.most_common(10 * _FREQUENT)
        }
        frequent = sorted(exact.items(), key=lambda item: (-item[1], item[0]))[:_FREQUENT]
        figures: dict[str, Any] = {
            "sessions": len(self._sessions),
            "turns": len(self.turns),
            "turns_with_an_intent": self._labelled,
            "share_of_repeated_turns": float(counts[counts > 1].sum() / len(self.turns)),
            "share_of_repeated_sessions": float(copies[copies > 1].sum() / len(self._sessions)),
        }
        for unit, lengths in self._lengths.items():
            ascending = np.repeat(sorted(lengths), [lengths[n] for n in sorted(lengths)])
            quantiles = np.quantile(ascending, [0.5, 0.95, 0.99, 1.0], method="inverted_cdf")
            named = zip(("median", "95%", "99%", "longest"), quantiles.tolist(), strict=True)
            mean = round(float(ascending.mean()), 2)
            figures[unit + "_of_each"] = {"mean": mean, **dict(named)}
        return {
            "figures": figures,
            "speakers": dict(self._speakers.most_common()),
            "intents": dict(self._intents.most_common()),
            "frequent_utterances": {text: count for text, count in frequent if count > 1},
        }


def _make_tables(left_out: dict[str, int], found: dict[str, Any]) -> list[Rows]:
    """The report as tables: of all figures, and of what is most frequent."""
    rows: Rows = [("what", "figure")]
    named = {f"left_out_{what}": count for what, count in left_out.items()}
    for name, value in {**named, **found["figures"]}.items():
        if isinstance(value, dict):
            told = ", ".join(f"{key} {number:g}" for key, number in value.items())
        else:
            told = f"{value:,}" if isinstance(value, int) else f"{value:.2%}"
        rows.append((name.replace("_", " "), told))
    tables = [rows]
    for name in ("speakers", "intents", "frequent_utterances"):
        if most := list(found[name].items())[:_NAMES_SHOWN]:
            cells = [(text[:60], f"{count:,}") for text, count in most]
            tables.append([(name.replace("_", " "), "turns"), *cells])
    return tables
