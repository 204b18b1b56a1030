"""The embedding job."""

import datetime
import itertools
import os
import pathlib
from collections.abc import Iterator

from absl import logging

from dcse_tf.config import EmbedConfig
from dcse_tf.data.repeats import scan_lines
from dcse_tf.errors import InputError, name_output
from dcse_tf.export.load import LoadedEncoder
from dcse_tf.input_files import iterate_bare_lines
from dcse_tf.jobs import resumable_rows
from dcse_tf.jobs.block_embedding import Block, embed_block, embed_in_processes, load
from dcse_tf.jobs.resumable_rows import ResumableRows, Shared
from dcse_tf.locking import lock_output
from dcse_tf.models.batching import embed_distinct
from dcse_tf.progress import Progress

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


def embed(config: EmbedConfig, encoder: LoadedEncoder | None = None) -> tuple[int, int]:
    """Embeds every line of a file, blank ones too, so that row and line numbers agree.

    The file is read in blocks of lines. A job that was stopped goes on with the block after the
    last whole one, and writes byte for byte what it would have written: a block's embeddings
    depend on its own lines and on the sentences shared by all blocks, which are kept.

    Args:
        config: the settings.
        encoder: the encoder of --model, where the caller has loaded it already.

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
    config: EmbedConfig, output: pathlib.Path, encoder: LoadedEncoder | None
) -> tuple[int, int]:
    source = pathlib.Path(config.input)
    if output.is_dir() or (os.path.lexists(output) and not config.overwrite):
        raise FileExistsError(f"{output} exists already; give another file, or --overwrite")
    begun_with = _describe_input(source)
    encoder = encoder or load(config)
    job = {"--input": begun_with, "contents of --model": encoder.fingerprint()[:16]}
    job |= {f"--{name}": str(getattr(config, name)) for name in _DECISIVE}
    rows = None if config.overwrite else resumable_rows.resume(output, job)
    if rows is None:
        rows = _begin(config, job, encoder)
    else:
        logging.info("going on from row %d of %d", rows.done, rows.shape[0])
    _write_blocks(config, rows, encoder)
    if _describe_input(source) != begun_with:
        raise InputError(f"--input={source}: was changed while it was embedded")
    rows.finish()
    return rows.shape


def _describe_input(path: pathlib.Path) -> str:
    try:
        state = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    changed = datetime.datetime.fromtimestamp(state.st_mtime, datetime.UTC)
    return f"{state.st_size} bytes of {changed}"


def _begin(config: EmbedConfig, job: dict[str, str], encoder: LoadedEncoder) -> ResumableRows:
    """Counts the lines, and embeds the sentences that all blocks share."""
    scan = scan_lines(pathlib.Path(config.input), config.cache_size)
    if not scan.lines:
        raise InputError(f"--input={config.input}: no lines")
    # In a single block every sentence is encoded once anyway.
    texts = scan.repeated if scan.lines > config.block_size else []
    logging.info("%d lines; %d sentences are shared by all blocks", scan.lines, len(texts))
    progress = Progress("tokens of shared sentences")
    embeddings = embed_distinct(encoder.batches, texts, progress.update)
    shared = Shared({text: row for row, text in enumerate(texts)}, embeddings)
    shape = (scan.lines, embeddings.shape[1])
    return resumable_rows.begin(pathlib.Path(config.output), job, shape, shared)


def _write_blocks(config: EmbedConfig, rows: ResumableRows, encoder: LoadedEncoder) -> None:
    sizes = [
        min(config.block_size, rows.shape[0] - start)
        for start in range(rows.done, rows.shape[0], config.block_size)
    ]
    progress = Progress("lines", already=rows.done)
    for block in _embed_blocks(config, rows, encoder, sizes, progress):
        rows.append(block.rows(rows.shared))
        progress.update(rows.done, rows.shape[0])


def _embed_blocks(
    config: EmbedConfig,
    rows: ResumableRows,
    encoder: LoadedEncoder,
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

        yield embed_block(encoder.batches, rows.shared, sentences, tell)


def _read_block(config: EmbedConfig, lines: Iterator[str], size: int) -> list[str]:
    sentences = list(itertools.islice(lines, size))
    if len(sentences) < size:
        raise InputError(f"--input={config.input}: has become shorter since its lines were counted")
    return sentences
