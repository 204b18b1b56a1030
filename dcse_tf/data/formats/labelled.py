"""Labelled sentences, a table with a header: the sentences of a label are a session.

For the task `labelled`, which draws two sentences of a label at a time. They are no dialogue: what
learns from contexts has nothing to learn from them.
"""

import pathlib
from collections.abc import Iterator, Sequence

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import read_table
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines

TEXT_COLUMNS = ("text", "sentence", "utterance", "query")
LABEL_COLUMNS = ("label", "intent", "category")


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields each label's distinct sentences when all are read, in the order of first mention.

    A name with .tsv or .tsv.gz is a TSV file, any other CSV. A row is bad if it has another number
    of fields than the header, or no sentence or label.
    """
    rows = read_table(path, tabs=".tsv" in path.suffixes)
    _, header = next(rows, (0, []))
    places = [_find(path, header, names) for names in (TEXT_COLUMNS, LABEL_COLUMNS)]
    labels: dict[str, dict[str, None]] = {}
    for number, row in rows:
        if len(row) != len(header):
            bad_lines.report(path, number, f"expected {len(header)} field(s), found {len(row)}")
            continue
        text, label = (row[place].strip() for place in places)
        if not text or not label:
            bad_lines.report(path, number, "expected a sentence and its label, neither empty")
            continue
        labels.setdefault(label, {})[text] = None
    for label, sentences in labels.items():
        # Two speakers by turns, so that none are joined as one's consecutive utterances.
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
