"""Reads labelled sentences from tables or dialogues. This module does not import TensorFlow."""

import collections
import itertools
import pathlib
from collections.abc import Callable, Iterator

from dcse_tf.data.corpus import read_sessions
from dcse_tf.data.dialogue import Utterance, fold_spaces, is_blank, strip_html
from dcse_tf.data.formats.reading import read_table
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines, resolve_inputs
from dcse_tf.sets.set_options import TABLE_FORMATS, LabelledOptions


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
    turns: Iterator[Utterance]
    if config.format in TABLE_FORMATS:
        rows = itertools.chain.from_iterable(
            _read_table(path, config, bad_lines, labelled) for path in resolve_inputs(config.input)
        )
        turns = itertools.islice(rows, config.max_sessions or None)
    else:
        sessions = (session.turns for session in read_sessions(config, bad_lines, left_out))
        turns = itertools.chain.from_iterable(s for s in sessions if len(s) >= config.min_turns)
    sentences: list[tuple[str, tuple[str, ...]]] = []
    for turn in turns:
        if config.roles and turn.role not in config.roles:
            continue
        if is_blank(turn.text):
            left_out["empty_utterances"] += 1
        elif len(split_words(turn.text)) < config.min_words:
            left_out["short"] += 1
        elif config.labels == "act" and turn.acts:
            act = fold_spaces(" ".join([turn.role, *sorted(turn.acts)]))
            sentences.append((turn.text, (act,)))
        else:
            sentences.append((turn.text, turn.intents if config.labels == "intent" else ()))
    left_out["bad_lines"] = bad_lines.count
    return sentences, dict(left_out)


def _read_table(
    path: pathlib.Path, config: LabelledOptions, bad_lines: BadLines, labelled: bool
) -> Iterator[Utterance]:
    """Yields the rows of a table as utterances of nobody, with an intent where a row has one."""
    tabs = config.format == "tsv"
    rows = read_table(path, bad_lines, "\t" if tabs else ",", quoted=not tabs)
    _, header = next(rows, (0, []))
    wanted = {"text_column": config.text_column}
    if labelled or config.intent_column in header:
        wanted["intent_column"] = config.intent_column
    for name, column in wanted.items():
        if column not in header:
            # Escaped, because the first line of a file that is not a table can contain anything.
            found = repr(", ".join(header))[1:-1][:300] or "none"
            raise InputError(f"{path}:1: no column {column!r} (`{name}`); the header has {found}")
    places = [header.index(column) for column in wanted.values()]
    for _, row in rows:
        text, *intents = (row[place] for place in places)
        text = strip_html(text) if config.strip_html else text
        intents = [fold_spaces(intent) for intent in intents if intent.strip()]
        yield Utterance("", fold_spaces(text), tuple(intents))
