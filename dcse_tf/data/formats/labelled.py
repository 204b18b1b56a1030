"""Labelled sentences, in a table with a header: the sentences of each label form a session.

This is for the task `labelled`, which draws two sentences of a label at a time. The sessions are
not dialogues: objectives that learn from contexts can learn nothing from them.
"""

import pathlib
from collections.abc import Iterator, Sequence

from dcse_tf.data.dialogue import Utterance, is_blank
from dcse_tf.data.formats.reading import read_table
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines

TEXT_COLUMNS = ("text", "sentence", "utterance", "query")
LABEL_COLUMNS = ("label", "intent", "category")


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields each label's distinct sentences, in order of first occurrence, once all rows are read.

    A file named .tsv or .tsv.gz is read as TSV, any other as CSV. A row is bad if its number of
    fields differs from the header's, or its sentence or label is empty.
    """
    tabs = ".tsv" in path.suffixes
    rows = read_table(path, bad_lines, "\t" if tabs else ",", quoted=not tabs)
    _, header = next(rows, (0, []))
    places = [_find(path, header, names) for names in (TEXT_COLUMNS, LABEL_COLUMNS)]
    labels: dict[str, dict[str, None]] = {}
    for number, row in rows:
        if len(row) != len(header):
            bad_lines.report(path, number, f"expected {len(header)} field(s), found {len(row)}")
            continue
        text, label = (row[place].strip() for place in places)
        # A blank sentence would be dropped later, and its neighbours joined as one speaker's.
        if is_blank(text) or not label:
            bad_lines.report(path, number, "expected a sentence and its label, neither empty")
            continue
        labels.setdefault(label, {})[text] = None
    for label, sentences in labels.items():
        # Two alternating speakers, so that no sentences are joined as one speaker's.
        yield label, [Utterance("ab"[i % 2], text, (label,)) for i, text in enumerate(sentences)]


def _find(path: pathlib.Path, header: Sequence[str], names: Sequence[str]) -> int:
    found = [name.strip().lower() for name in header]
    for name in names:
        if name in found:
            return found.index(name)
    raise InputError(
        f"{path}:1: no column {', '.join(names[:-1])} or {names[-1]}; the header has "
        f"{', '.join(header)!r:.300}"
    )
