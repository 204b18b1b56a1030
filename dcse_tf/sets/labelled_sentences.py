"""Reads labelled sentences from tables or dialogues. This module does not import TensorFlow."""

import collections
import itertools
import pathlib
from collections.abc import Callable, Iterator

from dcse_tf.data.corpus import read_sessions
from dcse_tf.data.dialogue import Utterance, fold_spaces, is_blank, make_session
from dcse_tf.data.formats.reading import read_table
from dcse_tf.data.html import strip_html
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines, resolve_inputs
from dcse_tf.sets.options import TABLE_FORMATS, LabelledOptions


def read_sentences(
    config: LabelledOptions, split_words: Callable[[str], list[str]], labelled: bool = True
) -> tuple[list[tuple[str, tuple[str, ...]]], dict[str, int]]:
    """Reads all sentences of the input with their labels; whitespace becomes single spaces.

    Args:
        config: the settings.
        split_words: splits a text into words, for `min_words`.
        labelled: whether a table must have the column of labels.

    Returns:
        (sentence, labels) pairs, and counts of what was left out.

    Raises:
        InputError: a file cannot be read, lacks a column, or has too many bad lines.
    """
    bad_lines = config.count_bad_lines()
    left_out: collections.Counter[str] = collections.Counter(empty_utterances=0, short=0)
    found: Iterator[Utterance]
    if config.format in TABLE_FORMATS:
        paths = resolve_inputs(config.input)
        rows = itertools.chain.from_iterable(
            _read_table(path, config, bad_lines, left_out, labelled) for path in paths
        )
        found = itertools.islice(rows, config.max_sessions or None)
    else:
        found = _read_dialogues(config, bad_lines, left_out)
    sentences = []
    for utterance in found:
        if len(split_words(utterance.text)) < config.min_words:
            left_out["short"] += 1
        else:
            acts = config.labels == "act"
            sentences.append((utterance.text, name_acts(utterance) if acts else utterance.intents))
    left_out["bad_lines"] = bad_lines.count
    return sentences, dict(left_out)


def name_acts(utterance: Utterance) -> tuple[str, ...]:
    """A turn's single label: its speaker, then its sorted acts; empty for a turn without acts."""
    if not utterance.acts:
        return ()
    return (fold_spaces(" ".join([utterance.role, *sorted(utterance.acts)])),)


def one_label_each(
    sentences: list[tuple[str, tuple[str, ...]]],
) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """The sentences that have exactly one label, and counts of the others."""
    labelled = [(text, labels[0]) for text, labels in sentences if len(labels) == 1]
    return labelled, {
        "without_label": sum(not labels for _, labels in sentences),
        "with_several_labels": sum(len(labels) > 1 for _, labels in sentences),
    }


def _read_dialogues(
    config: LabelledOptions, bad_lines: BadLines, left_out: collections.Counter[str]
) -> Iterator[Utterance]:
    for session in read_sessions(config, bad_lines, left_out):
        if len(session.turns) < config.min_turns:
            left_out["short_sessions"] += 1
            continue
        for turn in session.turns:
            if not config.roles or turn.role in config.roles:
                yield turn


def _read_table(
    path: pathlib.Path,
    config: LabelledOptions,
    bad_lines: BadLines,
    left_out: collections.Counter[str],
    labelled: bool,
) -> Iterator[Utterance]:
    tabs = config.format == "tsv"
    rows = read_table(path, bad_lines, "\t" if tabs else ",", quoted=not tabs)
    _, header = next(rows, (0, []))
    place = _column(path, header, "text_column", config.text_column)
    label = None
    if labelled or config.intent_column in header:
        label = _column(path, header, "intent_column", config.intent_column)
    for number, row in rows:
        if len(row) != len(header):
            bad_lines.report(path, number, f"expected {len(header)} field(s), found {len(row)}")
            continue
        text = strip_html(row[place]) if config.strip_html else row[place]
        if is_blank(text):
            left_out["empty_utterances"] += 1
        else:
            intent = "" if label is None else row[label].strip()
            intents = (intent,) if intent else ()
            yield from make_session("", [Utterance("", text, intents)]).turns


def _column(path: pathlib.Path, header: list[str], flag: str, name: str) -> int:
    if name not in header:
        # Escaped, because the first line of a file that is not a table can contain anything.
        found = repr(", ".join(header))[1:-1]
        raise InputError(
            f"{path}:1: no column {name!r} (`{flag}`); the header has {found[:300] or 'none'}"
        )
    return header.index(name)
