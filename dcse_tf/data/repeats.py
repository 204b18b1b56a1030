"""The first pass over a file of sentences: how many lines, and which of them come again."""

import dataclasses
import pathlib

from dcse_tf.input_files import iterate_bare_lines
from dcse_tf.progress import Progress

# Sentences counted for each that is kept, and the longest that is counted, in characters: both
# bound the memory. Long texts are seldom repeated.
_COUNTED = 10
_LONGEST = 200


@dataclasses.dataclass(frozen=True)
class Scan:
    """What the first pass finds.

    Attributes:
        lines: their number.
        repeated: the sentences that stand there most often, the most frequent first.
    """

    lines: int
    repeated: list[str]


def scan_lines(path: pathlib.Path, most: int) -> Scan:
    """Reads a file once, in bounded memory.

    Sentences are counted as Misra and Gries (1982) do: of n lines all those are found that stand
    there more than n / (10 most) times, and less frequent ones if they come in time.

    Args:
        path: see `iterate_bare_lines`.
        most: repeated sentences to find; 0 for none.

    Raises:
        InputError: the file cannot be read, or a line is not UTF-8.
    """
    counts: dict[str, int] = {}
    limit = _COUNTED * most
    progress = Progress("lines counted")
    lines = 0
    for lines, text in enumerate(iterate_bare_lines(path), start=1):
        if text in counts:
            counts[text] += 1
        elif most and len(text) <= _LONGEST:
            if len(counts) >= limit:
                counts = {text: count - 1 for text, count in counts.items() if count > 1}
            if len(counts) < limit:
                counts[text] = 1
        if lines % 100_000 == 0:
            progress.update(lines)
    found = sorted((-count, text) for text, count in counts.items() if count > 1)
    return Scan(lines, [text for _, text in found[:most]])
