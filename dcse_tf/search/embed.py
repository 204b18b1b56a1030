"""Embeds the lines of a file, which may be larger than memory.

The lines are embedded in blocks. Until all blocks are done, the rows lie in a folder beside the
output, OUTPUT.dcse_tf-partial, with a marker for every block whose rows are on disk. A resumed job
skips those blocks and produces the same bytes as an uninterrupted one: the embeddings of a block
depend only on its own lines and on the sentences shared by all blocks, which are stored too.
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
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from absl import logging

from dcse_tf.encoder.batching import Progress as Tell
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError, name_output
from dcse_tf.files import MadeFrom, atomic_directory, flush, lock_output, refuse_existing, resumable
from dcse_tf.input_files import UNREADABLE_ARRAY, iterate_bare_lines, parse_json
from dcse_tf.processors import available_processors, limit_threads
from dcse_tf.progress import Progress
from dcse_tf.search.embed_options import EmbedOptions
from dcse_tf.search.embed_shards import Part, Shard, find_parts, write_record

# Settings that the bits of the embeddings depend on.
_DECISIVE = (
    "pooling",
    "max_sequence_length",
    "batch_tokens",
    "compute_dtype",
    "truncate_dim",
    "jit_compile",
    "block_size",
    "cache_size",
)

# A function applied to rows, float32 `[n, dim]`, before they are written.
Postprocess = Callable[[np.ndarray], np.ndarray]


def embed(
    config: EmbedOptions,
    encoder: SentenceEncoder | None = None,
    postprocess: Postprocess = lambda rows: rows,
) -> tuple[int, int]:
    """Embeds every line of a file, including blank ones, so that row and line numbers agree.

    Args:
        config: the settings.
        encoder: the encoder of `model`, if the caller has already loaded it.
        postprocess: applied to the rows before they are written; must treat each row independently.

    Returns:
        The shape of the array written, (lines, dim); with `shard`, that of the part.

    Raises:
        InputError: the model or the input cannot be used, or the interrupted job to resume had
            other settings.
        FileExistsError: the output exists and may not be replaced.
        LockedError: another process is writing it.
        OutputError: it cannot be written.
    """
    shard = Shard.parse(config.shard)
    source, output = pathlib.Path(config.input), shard.path(pathlib.Path(config.output))
    output.parent.mkdir(parents=True, exist_ok=True)
    with lock_output(output), name_output(output):
        refuse_existing(output, config.overwrite)
        described = _describe_input(source)
        encoder = encoder or SentenceEncoder.from_options(config)
        # The values that the encoder resolved, so that messages show the actual pooling and length.
        used = {**config.to_dict(), "truncate_dim": None, **encoder.settings}
        settings = {f"`{name}`": used[name] for name in _DECISIVE}
        made_from = MadeFrom(
            {"`input`": described, "contents of `model`": encoder.fingerprint(), **settings}
        )

        with resumable(output, made_from, config.overwrite) as work:
            folder = work / "rows"
            if not folder.exists():
                _begin(config, shard, encoder, folder)
            rows = Rows(folder)
            if shard.count == 1:
                _take_over(config.block_size, rows, find_parts(output, made_from, rows.shape[1]))
            _write_blocks(config, encoder, rows, postprocess)
            encoder.warn_of_truncated(rows.count_truncated(), "lines")

            if _describe_input(source) != described:
                raise InputError(f"`input`={source}: changed while it was being embedded")
            if shard.count > 1:
                write_record(output, made_from, rows.lines)
            rows.path.replace(output)
            flush(output.parent)
    return rows.shape


def _describe_input(path: pathlib.Path) -> str:
    """Size and modification time; hashing would need another pass over a large file."""
    try:
        state = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    changed = datetime.datetime.fromtimestamp(state.st_mtime, datetime.UTC)
    return f"{state.st_size} bytes of {changed}"


# First pass: lines are counted, frequent sentences embedded


@dataclasses.dataclass(frozen=True)
class Scan:
    """What the first pass over the file finds.

    Attributes:
        lines: the number of lines.
        repeated: the most frequent repeated sentences, in order of falling frequency.
    """

    lines: int
    repeated: list[str]


# Counters for each sentence to find, and the longest sentence that is counted, in characters. Both
# bound the memory; long texts are seldom repeated.
_COUNTED = 10
_LONGEST = 200


def scan_lines(path: pathlib.Path, most: int) -> Scan:
    """Counts a file's lines and finds its frequent sentences in one pass with bounded memory.

    Sentences are counted with the algorithm of Misra and Gries (1982). Among n lines it finds every
    sentence that occurs more than n / (10 most) times, and possibly less frequent ones.

    Args:
        path: the text file, see `iterate_bare_lines`.
        most: how many repeated sentences to find; 0 for none.

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
    progress.close()

    found = sorted((-count, text) for text, count in counts.items() if count > 1)
    return Scan(lines, [text for _, text in found[:most]])


def _begin(
    config: EmbedOptions, shard: Shard, encoder: SentenceEncoder, folder: pathlib.Path
) -> None:
    """Creates the folder that `Rows` opens.

    Raises:
        InputError: the input cannot be used, or the disk has too little free space.
    """
    scan = scan_lines(pathlib.Path(config.input), config.cache_size)
    if not scan.lines:
        raise InputError(f"`input`={config.input}: no lines")
    lines = shard.lines(scan.lines, config.block_size)
    # Within a single block, every sentence is encoded once anyway.
    texts = scan.repeated if scan.lines > config.block_size else []
    logging.info("%d lines; %d sentences are shared by all blocks", scan.lines, len(texts))
    found = encoder.encode_and_mark(texts, Progress("tokens of shared sentences").update)
    embeddings, truncated = found

    shape = (len(lines), embeddings.shape[1])
    needed, free = 4 * shape[0] * shape[1], shutil.disk_usage(folder.parent).free
    if needed > free:
        raise InputError(
            f"`output`={config.output}: {shape[0]} rows of {shape[1]} float32 are "
            f"{_show_bytes(needed)}; only {_show_bytes(free)} are free there"
        )
    with atomic_directory(folder) as partial:
        Rows.create(partial, lines, texts, embeddings, truncated)


def _show_bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


# The rows, block by block


@dataclasses.dataclass(frozen=True)
class Shared:
    """Frequent sentences, embedded before the first block for use in all blocks.

    Attributes:
        row: sentence -> its row in `embeddings`.
        embeddings: float32 `[sentences, dim]`.
        truncated: whether the encoder cut the sentence, bool `[sentences]`.
    """

    row: dict[str, int]
    embeddings: np.ndarray
    truncated: np.ndarray


class Rows:
    """The rows of all blocks on disk, and which blocks are done.

    Attributes:
        path: the .npy file, float32 `[rows, dim]`, allocated in full from the start.
        shape: the shape of the array, (rows, dim).
        lines: the line numbers of the input that the rows belong to, counted from 0.
        shared: the sentences shared by all blocks.
    """

    def __init__(self, folder: pathlib.Path):
        """Opens a folder that `create` wrote.

        Raises:
            InputError: a file is damaged.
        """
        self.path = folder / "rows.npy"
        self._folder = folder
        try:
            shared = parse_json((folder / "shared.json").read_text(encoding="utf-8"))
            texts, first = shared["texts"], int(shared["first_line"])
            truncated = np.array(shared["truncated"], bool)
            embeddings = np.load(folder / "shared.npy", allow_pickle=False)
            array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (*UNREADABLE_ARRAY, KeyError, TypeError) as error:
            raise InputError(
                f"{folder}: cannot be resumed: {error!r}; `overwrite` starts anew"
            ) from error
        self.shape: tuple[int, int] = array.shape
        self.lines = range(first, first + len(array))
        self._offset = array.offset
        self.shared = Shared({text: row for row, text in enumerate(texts)}, embeddings, truncated)

    @staticmethod
    def create(
        folder: pathlib.Path,
        lines: range,
        texts: list[str],
        embeddings: np.ndarray,
        truncated: np.ndarray | None = None,
    ) -> None:
        """Writes an empty array, and the shared sentences with what `Shared` says of them."""
        cut = np.zeros(len(texts), bool) if truncated is None else truncated
        shared = {"first_line": lines.start, "texts": texts, "truncated": cut.tolist()}
        content = json.dumps(shared, ensure_ascii=False, indent=1)
        (folder / "shared.json").write_text(content, encoding="utf-8")
        with (folder / "shared.npy").open("wb") as file:
            np.save(file, embeddings)
        shape = (len(lines), embeddings.shape[1])
        np.lib.format.open_memmap(folder / "rows.npy", "w+", "<f4", shape)

    def is_done(self, block: int) -> bool:
        return self._marker(block).exists()

    def write(
        self, block: int, first_row: int, parts: Iterable[np.ndarray], truncated: int = 0
    ) -> None:
        """Writes the rows of a block, in parts float32 `[n, dim]`, starting at `first_row`, and the
        number of its lines that were truncated.
        """
        # Not through a memory map: on a full disk, writing to it would kill the process.
        with self.path.open("r+b") as file:
            file.seek(self._offset + 4 * self.shape[1] * first_row)
            for part in parts:
                file.write(np.ascontiguousarray(part, "<f4").data)
            file.flush()
            os.fsync(file.fileno())
        self._marker(block).write_text(f"{truncated}" if truncated else "")
        flush(self._folder)

    def count_truncated(self) -> int:
        """The number of truncated lines in the blocks that are done."""
        return sum(int(path.read_text() or 0) for path in self._folder.glob("*.done"))

    def _marker(self, block: int) -> pathlib.Path:
        return self._folder / f"{block:06}.done"


_ROWS_AT_A_TIME = 8192


@dataclasses.dataclass(frozen=True)
class Block:
    """The embeddings of a block's lines, each distinct sentence stored once.

    Attributes:
        embeddings: float32 `[distinct, dim]`, of the sentences that are not shared by all blocks.
        index: int64 `[lines]`: a row r of `embeddings`, or -1 - r for row r of the shared ones.
        truncated: the number of lines that the encoder cut.
    """

    embeddings: np.ndarray
    index: np.ndarray
    truncated: int

    def rows(self, shared: Shared) -> Iterator[np.ndarray]:
        """Yields the rows in the order of the lines, in parts float32 `[n, dim]`."""
        for start in range(0, len(self.index), _ROWS_AT_A_TIME):
            index = self.index[start : start + _ROWS_AT_A_TIME]
            part = np.empty([len(index), self.embeddings.shape[1]], np.float32)
            own = index >= 0
            part[own] = self.embeddings[index[own]]
            part[~own] = shared.embeddings[-1 - index[~own]]
            yield part


def embed_block(
    encoder: SentenceEncoder, shared: Shared, sentences: list[str], progress: Tell | None = None
) -> Block:
    """Embeds a block. The result depends only on the arguments, down to the last bit.

    Args:
        encoder: the encoder.
        shared: sentences that are already embedded.
        sentences: the lines of the block.
        progress: called after each batch with (tokens done, tokens in the block).
    """
    distinct = [text for text in dict.fromkeys(sentences) if text not in shared.row]
    place = {text: row for row, text in enumerate(distinct)}
    for text in set(sentences) - place.keys():
        place[text] = -1 - shared.row[text]
    embeddings, own = encoder.encode_and_mark(distinct, progress)
    index = np.array([place[text] for text in sentences], np.int64)
    # A negative index counts from the end, where the shared sentences are, the first one last.
    truncated = np.concatenate([own, shared.truncated[::-1]])[index]
    return Block(embeddings, index, int(truncated.sum()))


def _take_over(block_size: int, rows: Rows, parts: Iterable[Part]) -> None:
    """Copies the rows of blocks that other jobs embedded as shards."""
    for part in parts:
        for first in part.lines[::block_size]:
            block, start = first // block_size, first - part.lines.start
            if not rows.is_done(block):
                rows.write(block, first, [part.rows[start : start + block_size]])
        logging.info("reusing %d rows of %s", len(part.lines), part.path)


def _write_blocks(
    config: EmbedOptions, encoder: SentenceEncoder, rows: Rows, postprocess: Postprocess
) -> None:
    """Embeds and writes the blocks that are not yet done."""
    total = rows.shape[0]
    starts = range(0, total, config.block_size)
    missing = [block for block in range(len(starts)) if not rows.is_done(block)]
    done = total - sum(len(range(total)[starts[n] :][: config.block_size]) for n in missing)
    if done:
        logging.info("resuming after %d of %d rows", done, total)

    progress = Progress("lines", already=done)
    texts = _read_blocks(config, rows.lines, missing)
    if config.workers > 1:
        blocks = _embed_in_processes(config, rows.shared, texts)
    else:
        blocks = _embed_here(
            encoder, rows.shared, texts, lambda n: progress.update(done + n, total)
        )
    written = done
    for number, block in zip(missing, blocks, strict=True):
        parts = map(postprocess, block.rows(rows.shared))
        rows.write(number, starts[number], parts, block.truncated)
        written += len(block.index)
        progress.update(written, total)


def _read_blocks(config: EmbedOptions, lines: range, blocks: Sequence[int]) -> Iterator[list[str]]:
    """Yields the lines of each given block; block 0 begins at the first of `lines`."""
    texts, read = iterate_bare_lines(pathlib.Path(config.input)), 0
    for block in blocks:
        own = lines[block * config.block_size :][: config.block_size]
        sentences = list(itertools.islice(texts, own.start - read, own.stop - read))
        read = own.stop
        if len(sentences) < len(own):
            raise InputError(f"`input`={config.input}: is shorter than when its lines were counted")
        yield sentences


def _embed_here(
    encoder: SentenceEncoder,
    shared: Shared,
    texts: Iterable[list[str]],
    progress: Callable[[int], object],
) -> Iterator[Block]:
    """Embeds blocks in this process; calls `progress` with the number of lines done."""
    before = 0
    for sentences in texts:

        def tell(tokens: int, of: int, before: int = before, count: int = len(sentences)) -> None:
            # Short sentences go first, so the share of tokens is the better measure of progress.
            progress(before + int(count * tokens / of))

        yield embed_block(encoder, shared, sentences, tell)
        before += len(sentences)


# In a worker process: set by `_start_worker`.
_worker: tuple[SentenceEncoder, Shared]


def _start_worker(config: EmbedOptions, shared: Shared) -> None:
    global _worker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    threads = max(1, available_processors() // config.workers)
    limit_threads(threads)
    _worker = SentenceEncoder.from_options(config), shared


def _end_with_parent() -> None:
    """Ends this process when its parent is killed; otherwise it would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)


def _embed_in_worker(sentences: list[str]) -> Block:
    return embed_block(*_worker, sentences)


def _embed_in_processes(
    config: EmbedOptions, shared: Shared, texts: Iterable[list[str]]
) -> Iterator[Block]:
    """Embeds blocks in `workers` processes and yields them in order; few are in memory at a time.

    Raises:
        ChildProcessError: a process was killed, perhaps because memory ran out.
    """
    waiting: collections.deque[concurrent.futures.Future[Block]] = collections.deque()
    source = iter(texts)
    with concurrent.futures.ProcessPoolExecutor(
        config.workers, multiprocessing.get_context("spawn"), _start_worker, (config, shared)
    ) as executor:
        try:
            # One block more than workers, so that no worker waits while a block is written.
            for sentences in itertools.islice(source, config.workers + 1):
                waiting.append(executor.submit(_embed_in_worker, sentences))
            while waiting:
                yield waiting.popleft().result()
                for sentences in itertools.islice(source, 1):
                    waiting.append(executor.submit(_embed_in_worker, sentences))
        except concurrent.futures.process.BrokenProcessPool as error:
            raise ChildProcessError(f"a process of `workers`={config.workers} ended") from error
        finally:
            executor.shutdown(wait=True, cancel_futures=True)
