"""A text file read to its end, as `embed` and `search` read theirs bit by bit."""

import pathlib

from dcse_tf.input_files import iterate_bare_lines


def read_bare_lines(path: pathlib.Path) -> list[str]:
    return list(iterate_bare_lines(path))
