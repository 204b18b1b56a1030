"""Embeds the lines of a file, which may be larger than memory.

The lines are embedded in blocks. Until the last is done, the rows lie beside the output, in
OUTPUT.dcse_tf-partial, with a record of their number. A resumed job goes on after them and writes
the same bytes as an uninterrupted one: the embeddings of a block depend only on its own lines.
"""

import datetime
import itertools
import os
import pathlib
from typing import IO, Any

import numpy as np
from absl import logging

from dcse_tf import files
from dcse_tf.bert.encoder_options import ModelOptions
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError, name_output
from dcse_tf.input_files import BadLines, read_json_object, read_lines
from dcse_tf.options import option
from dcse_tf.progress import Progress


class EmbedOptions(ModelOptions):
    """Embeds a file of sentences."""

    input: str = option(
        "",
        "Text file, one sentence a line; plain or compressed. It may be larger than memory.",
        required=True,
        path="files",
    )
    output: str = option(
        "",
        "NumPy file to write: float32 [lines, dim], in the order of the lines. If the job is "
        "stopped, the same command resumes it.",
        required=True,
        path="writes",
    )
    block_size: int = option(
        100_000,
        "Lines embedded and written at a time (100,000 x 384 dimensions: 154 MB); one that is "
        "repeated in a block is encoded once.",
        minimum=1,
    )
    spark_master: str = option(
        "",
        "Embed on a Spark cluster, such as spark://HOST:7077, yarn, k8s://... or local[4]. "
        "`input` is then Parquet or text, or a glob, and `output` a folder of Parquet with a "
        "further column, embedding. All workers must reach both.",
    )
    text_column: str = option("text", "With `spark_master`: the column to embed.")
    overwrite: bool = option(False, "Replace `output` if it exists; start anew, not resume.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_needed("spark_master", "text_column")
        if self.is_given("block_size") and self.spark_master:
            self.refuse("block_size", "has no meaning with `spark_master`")


# Settings that the bits of the embeddings depend on.
_DECISIVE = "pooling", "max_sequence_length", "batch_tokens", "compute_dtype", "truncate_dim"
_RECORD = "done.json"  # rows on the disk, texts truncated, and what they are made from


def embed(config: EmbedOptions) -> tuple[int, int]:
    """Embeds every line of a file, including blank ones, so that row and line numbers agree; see
    `dcse_tf.embed`. Returns the shape of the array written, (lines, dim).
    """
    source, output = pathlib.Path(config.input), pathlib.Path(config.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with files.lock_output(output), name_output(output):
        files.refuse_existing(output, config.overwrite)
        described = _describe_input(source)
        encoder = SentenceEncoder.from_options(config)
        # The values that the encoder resolved, so that messages show the actual pooling and length.
        used = {**config.to_dict(), "truncate_dim": None, **encoder.settings}
        settings = {f"`{name}`": used[name] for name in (*_DECISIVE, "block_size")}
        made_from = {"`input`": described, "contents of `model`": encoder.fingerprint(), **settings}
        lines = sum(1 for _ in read_lines(source, BadLines(), blank=True))
        if not lines:
            raise InputError(f"`input`={source}: no lines")
        work = files.marked(output, "partial")
        done = _begin(work, made_from, config.overwrite)
        try:
            rows = _write_rows(config, encoder, lines, work, done)
            if _describe_input(source) != described:
                raise InputError(f"`input`={source}: changed while it was being embedded")
            rows.replace(output)
        except BaseException:
            if not done["rows"]:
                files.remove(work)
            raise
        files.remove(work)
        files.flush(output.parent)
    return lines, encoder.dim


def _describe_input(path: pathlib.Path) -> str:
    """Size and modification time; hashing would need another pass over a large file."""
    state = path.stat()
    changed = datetime.datetime.fromtimestamp(state.st_mtime, datetime.UTC)
    return f"{state.st_size} bytes of {changed}"


def _begin(work: pathlib.Path, made_from: dict[str, Any], overwrite: bool) -> dict[str, Any]:
    """The record of a stopped job with the same `made_from`, or of a new one; makes its folder."""
    record = work / _RECORD
    if not record.exists() or overwrite:
        files.remove(work)
        work.mkdir(parents=True)
        return {"made_from": made_from, "rows": 0, "truncated": 0}
    remedy = "give the same, or `overwrite` to start anew"
    try:
        done = read_json_object(record)
    except InputError as error:
        raise InputError(f"{error}; {remedy}") from error
    problem = f"{work}: begun with other settings or files"
    files.require_same(done.get("made_from", {}), made_from, problem, remedy)
    return done


def _write_rows(
    config: EmbedOptions,
    encoder: SentenceEncoder,
    lines: int,
    work: pathlib.Path,
    done: dict[str, Any],
) -> pathlib.Path:
    """Embeds the lines whose rows are not in the job's folder yet, block by block; returns the
    complete .npy file, float32 `[lines, dim]`.
    """
    path, resumed = files.marked(work / "rows.npy", "partial"), done["rows"] > 0
    with (
        path.open("r+b" if resumed else "wb") as file,
        Progress("lines", lines, done["rows"]) as progress,
    ):
        write_header(file, (lines, encoder.dim))
        end = file.tell() + 4 * encoder.dim * done["rows"]
        if resumed and path.stat().st_size < end:
            raise InputError(f"{path}: is cut short; `overwrite` starts anew")
        if resumed:
            logging.info("resuming after %d of %d rows", done["rows"], lines)
        # What lies behind the recorded rows is of a block that was interrupted.
        file.seek(end)
        file.truncate()

        texts = read_lines(pathlib.Path(config.input), BadLines(), blank=True)
        left = (text for _, text in itertools.islice(texts, done["rows"], None))
        while block := list(itertools.islice(left, config.block_size)):

            def tell(tokens: int, of: int, size: int = len(block)) -> None:
                # Short sentences go first, so tokens measure the progress better than lines.
                progress.update(done["rows"] + size * tokens // of)

            embeddings, truncated, _ = encoder.encode_and_mark(block, tell)
            # Not through a memory map: on a full disk, writing to it would kill the process.
            file.write(np.ascontiguousarray(embeddings, "<f4").data)
            file.flush()
            os.fsync(file.fileno())  # before the record says that the rows are there
            done["rows"] += len(block)
            done["truncated"] += int(truncated.sum())
            files.write_record(work / _RECORD, done)
    encoder.warn_of_truncated(done["truncated"], "lines")
    return path


def write_header(file: IO[bytes], shape: tuple[int, int]) -> None:
    """Writes the header of a .npy file of float32; the rows follow it one after the other."""
    form = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, form)
