"""The embedding job.

What is not complete lies in a folder beside it, `embeddings.npy.dcse_tf-partial`: the
rows, the sentences shared by all blocks with their embeddings, and a journal. The journal says only
what is on disk: rows are flushed before it counts them.
"""

import collections
import concurrent.futures
import dataclasses
import datetime
import itertools
import json
import multiprocessing
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from dcse_tf.encoder.batching import Progress as Tell
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError, name_output
from dcse_tf.files import atomic_file, flush, lock_output, partial_path
from dcse_tf.input_files import UNREADABLE_ARRAY, iterate_bare_lines, parse_json
from dcse_tf.progress import Progress
from dcse_tf.tools.options import EmbedOptions

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


_ROWS_FILE = "rows.npy"
_SHARED_TEXTS_FILE = "shared.json"
_SHARED_ROWS_FILE = "shared.npy"
_JOURNAL_FILE = "journal.json"
_ANEW = "give the same settings, or `overwrite` to start anew"


@dataclasses.dataclass(frozen=True)
class Shared:
    """Sentences that were embedded before the first block, for all blocks.

    Attributes:
        row: text -> row.
        embeddings: float32 `[sentences, dim]`.
    """

    row: dict[str, int]
    embeddings: np.ndarray


class ResumableRows:
    """The rows on disk; made by `begin` or `resume`.

    Attributes:
        shape: (rows, columns) of the whole.
        done: rows on disk.
        shared: see `Shared`.
    """

    def __init__(self, output: pathlib.Path, journal: dict[str, Any], shared: Shared):
        self.shape: tuple[int, int] = (journal["rows"], journal["columns"])
        self.done: int = journal["done"]
        self.shared = shared
        self._output = output
        self._folder = partial_path(output)
        self._journal = journal

    def append(self, parts: Iterator[np.ndarray]) -> None:
        """Writes the rows that come next, float32 `[n, columns]` each, and makes them last."""
        count = 0
        with (self._folder / _ROWS_FILE).open("r+b") as file:
            file.seek(_read_offset(file) + self.done * self.shape[1] * 4)
            for part in parts:
                file.write(np.ascontiguousarray(part, "<f4").data)
                count += len(part)
            file.flush()
            os.fsync(file.fileno())
        self.done += count
        self._journal["done"] = self.done
        _write_json(self._folder / _JOURNAL_FILE, self._journal)

    def finish(self) -> None:
        """Gives the whole array its name."""
        if self.done != self.shape[0]:
            raise ValueError(f"{self.done} of {self.shape[0]} rows are written")
        (self._folder / _ROWS_FILE).replace(self._output)
        flush(self._output.parent)
        shutil.rmtree(self._folder)


def begin(
    output: pathlib.Path, job: dict[str, str], shape: tuple[int, int], shared: Shared
) -> ResumableRows:
    """Starts a file anew, throwing away what was left of another.

    Args:
        output: the .npy file to come; its folders are made.
        job: what the rows depend on, name -> value, both for people to read.
        shape: (rows, columns).
        shared: see `Shared`.

    Raises:
        InputError: the disk is too small.
    """
    discard(output)
    folder = partial_path(output)
    folder.mkdir(parents=True)
    rows, columns = shape
    needed, free = rows * columns * 4, shutil.disk_usage(folder).free
    if needed > free:
        folder.rmdir()
        raise InputError(
            f"`output`={output}: {rows} rows of {columns} float32 are {_show_bytes(needed)}; "
            f"only {_show_bytes(free)} are free there"
        )
    _write_json(folder / _SHARED_TEXTS_FILE, list(shared.row))
    with (folder / _SHARED_ROWS_FILE).open("wb") as file:
        np.save(file, shared.embeddings)
        _flush(file)
    with (folder / _ROWS_FILE).open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        _flush(file)
    journal = {"job": job, "rows": rows, "columns": columns, "done": 0}
    _write_json(folder / _JOURNAL_FILE, journal)
    return ResumableRows(output, journal, shared)


def resume(output: pathlib.Path, job: dict[str, str]) -> ResumableRows | None:
    """What a run that was stopped left; None if it left nothing whole.

    Raises:
        InputError: it was another job, or its files are damaged.
    """
    folder = partial_path(output)
    path = folder / _JOURNAL_FILE
    if not path.is_file():
        return None
    try:
        journal = parse_json(path.read_text(encoding="utf-8"))
        before = journal["job"]
        shared_texts = parse_json((folder / _SHARED_TEXTS_FILE).read_text(encoding="utf-8"))
        shared_rows = np.load(folder / _SHARED_ROWS_FILE, allow_pickle=False)
        with (folder / _ROWS_FILE).open("rb") as file:
            written = _read_offset(file) + journal["done"] * journal["columns"] * 4
        missing = written - (folder / _ROWS_FILE).stat().st_size
    except (KeyError, *UNREADABLE_ARRAY) as error:
        raise InputError(f"{folder}: cannot be gone on with: {error!r}; {_ANEW}") from error
    changed = [
        f"{name}: {job.get(name)} (begun with {before.get(name)})"
        for name in {**before, **job}
        if job.get(name) != before.get(name)
    ]
    if changed:
        raise InputError(
            f"{folder}: {journal['done']} of {journal['rows']} rows were written by another "
            f"job: {'; '.join(changed)}; {_ANEW}"
        )
    if missing > 0:
        raise InputError(f"{folder / _ROWS_FILE}: {missing} bytes are missing; {_ANEW}")
    row = {text: index for index, text in enumerate(shared_texts)}
    return ResumableRows(output, journal, Shared(row, shared_rows))


def discard(output: pathlib.Path) -> None:
    """Removes what a run that was stopped left."""
    folder = partial_path(output)
    if folder.is_dir():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def _show_bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def _read_offset(file: Any) -> int:
    """Where the rows begin."""
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    return int(file.tell())


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _write_json(path: pathlib.Path, value: Any) -> None:
    with atomic_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1)


_ROWS_AT_A_TIME = 8192


@dataclasses.dataclass(frozen=True)
class Block:
    """The embeddings of the lines of a block.

    Attributes:
        embeddings: float32 `[distinct, dim]`, of the sentences that are not shared by all blocks.
        index: int `[lines]`: row of `embeddings`, or -1 - row of the shared ones.
    """

    embeddings: np.ndarray
    index: np.ndarray

    def rows(self, shared: Shared) -> Iterator[np.ndarray]:
        """Yields the rows in the order of the lines, float32 `[some, dim]`."""
        for start in range(0, len(self.index), _ROWS_AT_A_TIME):
            index = self.index[start : start + _ROWS_AT_A_TIME]
            part = np.empty([len(index), self.embeddings.shape[1]], np.float32)
            own = index >= 0
            part[own] = self.embeddings[index[own]]
            part[~own] = shared.embeddings[-1 - index[~own]]
            yield part


def embed_block(
    encoder: SentenceEncoder,
    shared: Shared,
    sentences: list[str],
    progress: Tell | None = None,
) -> Block:
    """Embeds a block. It depends on nothing but its arguments, to the last bit.

    Args:
        encoder: the encoder.
        shared: sentences that are embedded already.
        sentences: the lines of the block.
        progress: told (tokens done, tokens of the block) after a batch.
    """
    distinct = [text for text in dict.fromkeys(sentences) if text not in shared.row]
    place = {text: row for row, text in enumerate(distinct)}
    for text in set(sentences) - place.keys():
        place[text] = -1 - shared.row[text]
    embeddings = encoder.encode(distinct, show_progress=progress or False)
    return Block(embeddings, np.array([place[text] for text in sentences], np.int64))


# Of a worker process: what `_start_worker` loaded.
_worker: tuple[SentenceEncoder, Shared]


def _start_worker(config: EmbedOptions, shared: Shared) -> None:
    global _worker
    threads = max(1, len(os.sched_getaffinity(0)) // config.workers)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    _worker = SentenceEncoder.from_options(config), shared


def _work(sentences: list[str]) -> Block:
    return embed_block(*_worker, sentences)


def embed_in_processes(
    config: EmbedOptions, shared: Shared, blocks: Iterable[list[str]]
) -> Iterator[Block]:
    """Embeds blocks in `workers` processes; they come in order, few of them at a time.

    Raises:
        ChildProcessError: a process was killed, for want of memory perhaps.
    """
    waiting: collections.deque[concurrent.futures.Future[Block]] = collections.deque()
    source = iter(blocks)
    with concurrent.futures.ProcessPoolExecutor(
        config.workers, multiprocessing.get_context("spawn"), _start_worker, (config, shared)
    ) as executor:
        try:
            # One more than there are workers, so that none waits while a block is written.
            for block in itertools.islice(source, config.workers + 1):
                waiting.append(executor.submit(_work, block))
            while waiting:
                yield waiting.popleft().result()
                for block in itertools.islice(source, 1):
                    waiting.append(executor.submit(_work, block))
        except concurrent.futures.process.BrokenProcessPool as error:
            raise ChildProcessError(f"a process of `workers`={config.workers} ended") from error
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


# Settings that decide the embeddings, their last bits too.
_DECISIVE = (
    "pooling",
    "max_sequence_length",
    "batch_tokens",
    "compute_dtype",
    "jit_compile",
    "block_size",
    "cache_size",
)


def embed(config: EmbedOptions, encoder: SentenceEncoder | None = None) -> tuple[int, int]:
    """Embeds every line of a file, blank ones too, so that row and line numbers agree.

    The file is read in blocks of lines. A job that was stopped goes on with the block after the
    last whole one, and writes byte for byte what it would have written: a block's embeddings
    depend on its own lines and on the sentences shared by all blocks, which are kept.

    Args:
        config: the settings.
        encoder: the encoder of `model`, where the caller has loaded it already.

    Returns:
        The shape of the array written, (lines, dim).

    Raises:
        InputError: the model or the input cannot be used, or another job was begun.
        FileExistsError: the output exists and may not be replaced.
        LockedError: another process is writing it.
        OutputError: it cannot be written.
    """
    output = pathlib.Path(config.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with lock_output(output), name_output(output):
        return _embed(config, output, encoder)


def _embed(
    config: EmbedOptions, output: pathlib.Path, encoder: SentenceEncoder | None
) -> tuple[int, int]:
    source = pathlib.Path(config.input)
    if output.is_dir() or (os.path.lexists(output) and not config.overwrite):
        raise FileExistsError(f"{output} exists already; give another file, or `overwrite`")
    begun_with = _describe_input(source)
    encoder = encoder or SentenceEncoder.from_options(config)
    job = {"`input`": begun_with, "contents of `model`": encoder.fingerprint()[:16]}
    job |= {f"`{name}`": str(getattr(config, name)) for name in _DECISIVE}
    rows = None if config.overwrite else resume(output, job)
    if rows is None:
        rows = _begin(config, job, encoder)
    else:
        logging.info("going on from row %d of %d", rows.done, rows.shape[0])
    _write_blocks(config, rows, encoder)
    if _describe_input(source) != begun_with:
        raise InputError(f"`input`={source}: was changed while it was embedded")
    rows.finish()
    return rows.shape


def _describe_input(path: pathlib.Path) -> str:
    try:
        state = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    changed = datetime.datetime.fromtimestamp(state.st_mtime, datetime.UTC)
    return f"{state.st_size} bytes of {changed}"


def _begin(config: EmbedOptions, job: dict[str, str], encoder: SentenceEncoder) -> ResumableRows:
    """Counts the lines, and embeds the sentences that all blocks share."""
    scan = scan_lines(pathlib.Path(config.input), config.cache_size)
    if not scan.lines:
        raise InputError(f"`input`={config.input}: no lines")
    # In a single block every sentence is encoded once anyway.
    texts = scan.repeated if scan.lines > config.block_size else []
    logging.info("%d lines; %d sentences are shared by all blocks", scan.lines, len(texts))
    progress = Progress("tokens of shared sentences")
    embeddings = encoder.encode(texts, show_progress=progress.update)
    shared = Shared({text: row for row, text in enumerate(texts)}, embeddings)
    shape = (scan.lines, embeddings.shape[1])
    return begin(pathlib.Path(config.output), job, shape, shared)


def _write_blocks(config: EmbedOptions, rows: ResumableRows, encoder: SentenceEncoder) -> None:
    sizes = [
        min(config.block_size, rows.shape[0] - start)
        for start in range(rows.done, rows.shape[0], config.block_size)
    ]
    progress = Progress("lines", already=rows.done)
    for block in _embed_blocks(config, rows, encoder, sizes, progress):
        rows.append(block.rows(rows.shared))
        progress.update(rows.done, rows.shape[0])


def _embed_blocks(
    config: EmbedOptions,
    rows: ResumableRows,
    encoder: SentenceEncoder,
    sizes: list[int],
    progress: Progress,
) -> Iterator[Block]:
    lines = itertools.islice(iterate_bare_lines(pathlib.Path(config.input)), rows.done, None)
    blocks = (_read_block(config, lines, size) for size in sizes)
    if config.workers > 1:
        yield from embed_in_processes(config, rows.shared, blocks)
        return
    for sentences in blocks:

        def tell(tokens: int, of: int, count: int = len(sentences)) -> None:
            # Short sentences go first: what is done is a share of the tokens, not of the lines.
            progress.update(rows.done + int(count * tokens / of), rows.shape[0])

        yield embed_block(encoder, rows.shared, sentences, tell)


def _read_block(config: EmbedOptions, lines: Iterator[str], size: int) -> list[str]:
    sentences = list(itertools.islice(lines, size))
    if len(sentences) < size:
        raise InputError(f"`input`={config.input}: has become shorter since its lines were counted")
    return sentences
