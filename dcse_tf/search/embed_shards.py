"""Splits an embedding job into shards for several machines: `embed --shard=0/4`, `1/4`, ...

A shard is a contiguous range of the file's blocks. It is written to its own NumPy file, with a
record beside it of what it was made from. The job without `shard` then takes over the parts of its
output that were made from the same input and model, and embeds what is missing.
"""

import dataclasses
import glob
import pathlib
import re
from collections.abc import Iterator

import numpy as np
from absl import logging

from dcse_tf.errors import InputError
from dcse_tf.files import MadeFrom
from dcse_tf.input_files import UNREADABLE_ARRAY
from dcse_tf.options import OptionError

_FIRST, _LINES = "first line", "lines"


@dataclasses.dataclass(frozen=True)
class Shard:
    """Shard `number`, from 0, of `count`."""

    number: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parses the value of `shard`; "" stands for the whole file.

            Shard.parse("1/4")  # Shard(1, 4)

        Raises:
            OptionError: the text has another form.
        """
        if not text:
            return cls()
        found = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text)
        if not found or int(found[1]) >= int(found[2]):
            raise OptionError(
                f"`shard`={text}: expected NUMBER/COUNT, with NUMBER from 0 to COUNT - 1"
            )
        return cls(int(found[1]), int(found[2]))

    def path(self, output: pathlib.Path) -> pathlib.Path:
        """The shard's file, such as rows-00001-of-00004.npy; for the whole, `output` itself."""
        if self.count == 1:
            return output
        return output.with_name(
            f"{output.stem}-{self.number:05d}-of-{self.count:05d}{output.suffix}"
        )

    def lines(self, lines: int, block_size: int) -> range:
        """The range of the shard's lines, counted from 0.

        Args:
            lines: the number of lines in the file.
            block_size: the number of lines per block.

        Raises:
            OptionError: the file has fewer blocks than there are shards.
        """
        blocks = -(-lines // block_size)
        if blocks < self.count:
            raise OptionError(
                f"`shard`={self.number}/{self.count}: the file has only {blocks} blocks of "
                f"{block_size} lines; a smaller `block_size` gives more, the same for all parts"
            )
        first, end = (blocks * n // self.count for n in (self.number, self.number + 1))
        return range(first * block_size, min(end * block_size, lines))


@dataclasses.dataclass(frozen=True)
class Part:
    """The rows of some blocks, embedded by another job.

    Attributes:
        path: the NumPy file.
        lines: the lines of the input that the rows belong to, counted from 0.
        rows: float32 `[lines, dim]`.
    """

    path: pathlib.Path
    lines: range
    rows: np.ndarray


def write_record(path: pathlib.Path, made_from: MadeFrom, lines: range) -> None:
    """Writes a record of what a part was made from beside it.

    Args:
        path: the part's NumPy file.
        made_from: what the embeddings depend on.
        lines: the lines of the input that the part has rows of, counted from 0.
    """
    where = {_FIRST: lines.start, _LINES: len(lines)}
    MadeFrom({**made_from.values, **where}).write(path.with_suffix(".json"))


def find_parts(output: pathlib.Path, made_from: MadeFrom, dim: int) -> Iterator[Part]:
    """Yields the usable parts of an output; logs why others are ignored.

    Args:
        output: the output of the whole job.
        made_from: what the whole output is made from.
        dim: the dimension of the embeddings.
    """
    stem, suffix = map(glob.escape, (output.stem, output.suffix))
    for path in sorted(output.parent.glob(f"{stem}-?????-of-?????{suffix}")):
        try:
            record = dict(MadeFrom.read(path.with_suffix(".json")).values)
            first, count = int(record.pop(_FIRST)), int(record.pop(_LINES))
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
        except (InputError, KeyError, *UNREADABLE_ARRAY) as error:
            logging.warning("%s is ignored: %s", path, error)
            continue
        changes = MadeFrom(record).compare(made_from)
        if changes or rows.shape != (count, dim) or rows.dtype != np.float32:
            why = "; ".join(changes.values()) or f"{rows.dtype} {list(rows.shape)}"
            logging.warning("%s is ignored: %s", path, why)
            continue
        yield Part(path, range(first, first + count), rows)
