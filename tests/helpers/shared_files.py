"""Where the public corpora lie that tests read if they are there."""

import os
import pathlib

import pytest

_FOLDER = pathlib.Path(
    os.environ.get("DCSE_SHARED_DATA", pathlib.Path(__file__).parents[3] / "shared" / "data")
)


def shared_file(name: str) -> pathlib.Path:
    """The path of a file; skips the test if there is none."""
    path = _FOLDER / name
    if not path.is_file():
        pytest.skip(f"{name} is not here: set DCSE_SHARED_DATA to the folder that has it")
    return path
