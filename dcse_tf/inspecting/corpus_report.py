"""The job `inspect_data`: describes a corpus, and finds the sentences of evaluation sets in it."""

import array
import collections
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from dcse_tf.data.corpus import describe_dropped, read_sessions
from dcse_tf.data.dialogue import Session
from dcse_tf.data.words import list_marks, make_splitter
from dcse_tf.errors import InputError
from dcse_tf.evaluation.report import align, short_path
from dcse_tf.evaluation.retrieval import read_retrieval_set
from dcse_tf.evaluation.sts import read_sts_set
from dcse_tf.files import atomic_directory, hash_number
from dcse_tf.input_files import resolve_inputs
from dcse_tf.inspecting.inspect_options import InspectOptions
from dcse_tf.inspecting.pages import render_page, render_table

_NAMES_SHOWN = 40  # intents
_LIMITS = (16, 25, 32, 50, 64, 100, 128, 256)
_TOKENS_COUNTED = 100_000  # per utterance, at most
_AT_A_TIME = 4096  # utterances whose tokens are counted
_LONG = 8  # characters of a sentence to look for; shorter ones occur in almost every corpus
_FREQUENT = 20  # how many of the most frequent utterances are reported
_CANDIDATES = 20_000  # texts held in memory while looking for them

# Texts -> for each, the number of tokens (with [CLS] and [SEP]) and of unknown tokens.
CountTokens = Callable[[list[str]], tuple[np.ndarray, np.ndarray]]
Table = list[tuple[str, ...]]


def inspect_data(config: InspectOptions) -> str:
    """Describes a corpus and writes report.html, report.json and leaks.tsv.

    Returns:
        The report as text.

    Raises:
        InputError: an input cannot be used.
        FileExistsError: the output exists and may not be replaced.
    """
    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        # Sets and vocabulary are read first, so that their errors appear before the corpus is read.
        sets = {p: read_retrieval_set(p).sentences for p in _resolve(config, "retrieval")}
        for path in _resolve(config, "sts"):
            pairs = read_sts_set(path)
            sets[path] = pairs.first + pairs.second
        wanted = {path: {_normalize(text): text for text in texts} for path, texts in sets.items()}
        # Path of a set -> sentence of it, without case and punctuation -> where it was found.
        leaks: dict[pathlib.Path, dict[str, tuple[str, str]]] = {path: {} for path in sets}
        found = Statistics(_make_token_counter(config.vocab) if config.vocab else None)
        bad_lines = config.count_bad_lines()
        dropped = collections.Counter(short_sessions=0, empty_utterances=0)
        for session in read_sessions(config, bad_lines, dropped):
            if len(session.turns) < config.min_turns:
                dropped["short_sessions"] += 1
                continue
            found.add(session)
            for key, turn in ((_normalize(turn.text), turn) for turn in session.turns):
                for path, sentences in wanted.items():
                    if len(key) >= _LONG and key in sentences:
                        leaks[path].setdefault(key, (turn.text, session.session_id))
        if not found.turns:
            raise InputError(
                f"`input`={','.join(config.input)}: no session of at least {config.min_turns} "
                f"turns ({describe_dropped(dropped, bad_lines.count)})"
            )
        left_out = {**dropped, "bad_lines": bad_lines.count}
        figures = found.describe(config.max_sequence_length)
        counts = {str(path): len(places) for path, places in leaks.items()}
        content = {"settings": config.to_dict(), "left_out": left_out, **figures, "leaks": counts}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (folder / "report.json").write_text(text, encoding="utf-8")
        rows = [("set", "sentence", "utterance", "session")]
        for path, places in leaks.items():
            rows += [(str(path), wanted[path][key], *place) for key, place in places.items()]
        lines = ["\t".join(" ".join(cell.split()) for cell in row) for row in rows]
        (folder / "leaks.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        tables = _make_tables(left_out, figures)
        if leaks:
            table: Table = [("set", f"sentences of {_LONG}+ characters", "of them in the corpus")]
            for path, places in leaks.items():
                count = sum(len(key) >= _LONG for key in wanted[path])
                table.append((short_path(str(path)), f"{count:,}", f"{len(places):,}"))
            tables.append(table)
        page = render_page("The corpus", *map(render_table, tables))
        (folder / "report.html").write_text(page, encoding="utf-8")
    return "\n\n".join(align(table, text_columns=1) for table in tables)


def _resolve(config: InspectOptions, name: str) -> list[pathlib.Path]:
    return resolve_inputs(getattr(config, name), name)


def _normalize(text: str) -> str:
    """The text without case, spaces and punctuation."""
    return re.sub(rf"[^\w{list_marks()}]+|_+", "", text.casefold())


def _make_token_counter(vocab: str) -> CountTokens:
    from dcse_tf.bert.checkpoints import resolve_checkpoint
    from dcse_tf.bert.token_rows import TextTokenizer, UnknownTokens
    from dcse_tf.bert.tokenizer import read_vocabulary

    vocabulary = read_vocabulary(resolve_checkpoint(vocab, "vocab", weights=False))
    tokenizer, unknown = TextTokenizer(vocabulary, _TOKENS_COUNTED), vocabulary.unk_id
    ends = 2 + vocabulary.count_prefix()
    unknown_tokens = UnknownTokens(unknown, vocabulary.special.unk, ends)

    def count(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        rows, _ = tokenizer.tokenize(texts)
        unknown_tokens.add(rows.values, len(texts))
        return rows.lengths, np.add.reduceat(rows.values == unknown, rows.splits[:-1], dtype=int)

    return count


class Statistics:
    """Counts what a stream of sessions has.

    Memory: eight bytes for each turn and for each session, and a bounded number of texts.

    Args:
        count_tokens: counts the tokens of texts; None to leave tokens out.

    Attributes:
        turns: fingerprints of all turns, ignoring case.
    """

    def __init__(self, count_tokens: CountTokens | None = None):
        self._count_tokens = count_tokens
        self._split_words = make_splitter("auto")
        self.turns, self._sessions = array.array("Q"), array.array("Q")
        # Length -> how many sessions or utterances have it.
        self._lengths = {unit: collections.Counter[int]() for unit in ("turns", "words", "tokens")}
        self._speakers, self._intents = collections.Counter[str](), collections.Counter[str]()
        self._labelled = self._unknown = 0
        self._frequent = collections.Counter[str]()
        self._waiting: list[str] = []

    def add(self, session: Session) -> None:
        texts = [turn.text.casefold() for turn in session.turns]
        self._sessions.append(hash_number("\n".join(texts)))
        self.turns.extend(map(hash_number, texts))
        self._lengths["turns"][len(texts)] += 1
        self._frequent.update(texts)
        if len(self._frequent) > _CANDIDATES:
            kept = self._frequent.most_common(_CANDIDATES // 2)
            self._frequent = collections.Counter(dict(kept))
        for turn in session.turns:
            self._speakers[turn.role] += 1
            self._intents.update(turn.intents)
            self._labelled += bool(turn.intents)
            self._lengths["words"][len(self._split_words(turn.text))] += 1
            self._waiting.append(turn.text)
        if len(self._waiting) >= _AT_A_TIME:
            self._count_waiting()

    def _count_waiting(self) -> None:
        if self._count_tokens and self._waiting:
            tokens, unknown = self._count_tokens(self._waiting)
            self._lengths["tokens"].update(tokens.tolist())
            self._unknown += int(unknown.sum())
        self._waiting = []

    def describe(self, max_sequence_length: int) -> dict[str, Any]:
        """The statistics of all sessions added, as JSON values; shares are 0 to 1.

        Args:
            max_sequence_length: length in tokens, of interest beside the usual ones.
        """
        self._count_waiting()
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
            if lengths:
                figures[unit + "_of_each"] = _summarize(lengths)
        if tokens := self._lengths["tokens"]:
            figures["share_of_unknown_tokens"] = self._unknown / sum(n * tokens[n] for n in tokens)
            limits = sorted({*_LIMITS, max_sequence_length})
            above = {limit: sum(tokens[n] for n in tokens if n > limit) for limit in limits}
            figures["share_cut_at"] = {n: above[n] / len(self.turns) for n in limits}
        return {
            "figures": figures,
            "speakers": dict(self._speakers.most_common()),
            "intents": dict(self._intents.most_common()),
            "frequent_utterances": {text: count for text, count in frequent if count > 1},
        }


def _summarize(lengths: collections.Counter[int]) -> dict[str, float]:
    ascending = np.repeat(sorted(lengths), [lengths[n] for n in sorted(lengths)])
    quantiles = np.quantile(ascending, [0.5, 0.95, 0.99, 1.0], method="inverted_cdf").tolist()
    names = ("median", "95%", "99%", "longest")
    return {"mean": round(float(ascending.mean()), 2), **dict(zip(names, quantiles, strict=True))}


def _make_tables(left_out: dict[str, int], found: dict[str, Any]) -> list[Table]:
    """The report as tables: of all figures, and of what is most frequent."""
    rows: Table = [("what", "figure")]
    for name, value in [
        *(("left_out_" + k, v) for k, v in left_out.items()),
        *found["figures"].items(),
    ]:
        words = name.replace("_", " ")
        if not isinstance(value, dict):
            rows.append((words, f"{value:,}" if isinstance(value, int) else f"{value:.2%}"))
        elif name == "share_cut_at":
            rows += [(f"{words} {limit} tokens", f"{share:.2%}") for limit, share in value.items()]
        else:
            rows.append((words, ", ".join(f"{key} {number:g}" for key, number in value.items())))
    tables = [rows]
    for name in ("speakers", "intents", "frequent_utterances"):
        most = list(found[name].items())[:_NAMES_SHOWN]
        if most:
            cells = [(text[:60], f"{count:,}") for text, count in most]
            tables.append([(name.replace("_", " "), "turns"), *cells])
    return tables
