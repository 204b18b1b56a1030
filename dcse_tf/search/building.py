"""Builds a search index: distinct texts, their embeddings, FAISS' part; goes on after a stop.

What is not complete lies in a folder beside the index, INDEX.dcse_tf-building, with a journal of
what it is made of.
"""

import json
import pathlib
import resource
import shutil
import sys
import time

import numpy as np
from absl import logging

from dcse_tf.encoder.load import LoadedEncoder
from dcse_tf.errors import InputError, name_output
from dcse_tf.files import MARK, atomic_directory, atomic_file, hash_file, lock_folder, marked
from dcse_tf.input_files import parse_json
from dcse_tf.search import index as folders
from dcse_tf.search.index import TEXTS_FILE, write_corpus_texts
from dcse_tf.search.nearest import ApproximateIndex, Settings, import_faiss
from dcse_tf.search.options import SearchOptions
from dcse_tf.tools.embed import embed
from dcse_tf.tools.options import EmbedOptions

_JOURNAL_FILE = "journal.json"
_ROWS_FILE = "rows.npy"
_RECALL_AT = 10
# Settings of the encoder by which its embeddings differ by more than the last bits.
_DECISIVE = ("pooling", "max_sequence_length")


def describe_model(config: SearchOptions, encoder: LoadedEncoder) -> dict[str, str]:
    """What decides the embeddings, for an index and for its queries."""
    settings = {f"`{name}`": str(getattr(config, name)) for name in _DECISIVE}
    return {"contents of `model`": encoder.fingerprint()[:16], **settings}


def fingerprint_corpus(path: pathlib.Path) -> str:
    """SHA-256 of a file's bytes.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return hash_file(path)
    except OSError as error:
        raise InputError(f"`corpus`={path}: cannot be read: {error}") from error


def build_index(config: SearchOptions, folder: pathlib.Path, encoder: LoadedEncoder) -> None:
    """Builds the index of `corpus`, and says what it took.

    Raises:
        InputError: the corpus cannot be used, or another build was begun there.
        LockedError: another process builds it.
        OutputError: it cannot be written.
    """
    started = time.monotonic()
    kind = config.index_type or "exact"
    if kind != "exact":
        import_faiss(kind)  # before the embedding, not after
    corpus = fingerprint_corpus(pathlib.Path(config.corpus))
    model = describe_model(config, encoder)
    work = marked(folder, "building")
    with lock_folder(work, "wait for it, or give another `index`"), name_output(folder):
        job = {"contents of `corpus`": corpus[:16], **model}
        lines = _prepare_texts(config, work, job)
        _embed_texts(config, work, encoder)
        matrix = np.load(work / folders.EMBEDDINGS_FILE, mmap_mode="r")
        if kind != "exact":
            _build_approximate(config, work, kind, matrix)
        shape = (int(matrix.shape[0]), int(matrix.shape[1]))
        description = folders.Description(kind, *shape, lines, corpus, model)
        folders.write_description(work, description)
        with atomic_directory(folder, config.overwrite) as partial:
            for name in folders.INDEX_FILES:
                if (work / name).exists():
                    (work / name).rename(partial / name)
        shutil.rmtree(work)
    logging.info(
        "indexed %d lines, %d distinct texts of %d dimensions, in %.0f s; peak memory %.2f GB",
        lines,
        *shape,
        time.monotonic() - started,
        _peak_bytes() / 1e9,
    )


def _prepare_texts(config: SearchOptions, work: pathlib.Path, job: dict[str, str]) -> int:
    """The distinct texts, as a build that was stopped left them or anew; the corpus' lines."""
    path = work / _JOURNAL_FILE
    if path.is_file() and not config.overwrite:
        try:
            journal = parse_json(path.read_text(encoding="utf-8"))
            changed = folders.list_differences(journal["job"], job)
            lines = int(journal["lines"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: cannot be read: {error!r}; delete {work}") from error
        if changed:
            raise InputError(
                f"{work}: a build of another index was begun there: {'; '.join(changed)}; give the "
                "same settings, or `overwrite` to start anew"
            )
        return lines
    for old in work.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
        elif not old.name.startswith(MARK):
            old.unlink()
    lines = write_corpus_texts(pathlib.Path(config.corpus), work)
    with atomic_file(path) as partial:
        partial.write_text(json.dumps({"job": job, "lines": lines}, indent=2) + "\n")
    return lines


def _embed_texts(config: SearchOptions, work: pathlib.Path, encoder: LoadedEncoder) -> None:
    rows = work / _ROWS_FILE
    if (work / folders.EMBEDDINGS_FILE).exists():
        return
    if not rows.exists():
        settings = EmbedOptions(
            model=config.model,
            pooling=config.pooling,
            max_sequence_length=config.max_sequence_length,
            batch_tokens=config.batch_tokens,
            compute_dtype=config.compute_dtype,
            jit_compile=config.jit_compile,
            input=str(work / TEXTS_FILE),
            output=str(rows),
            cache_size=0,  # the texts are distinct
        )
        embed(settings, encoder)
    folders.write_embeddings(np.load(rows, mmap_mode="r"), work / folders.EMBEDDINGS_FILE)
    rows.unlink()


def _build_approximate(
    config: SearchOptions, work: pathlib.Path, kind: str, matrix: np.ndarray
) -> None:
    settings = Settings(**{name: getattr(config, name) for name in vars(Settings())})
    started = time.monotonic()
    index = ApproximateIndex.build(matrix, kind, settings)
    index.write(work / folders.FAISS_FILE)
    logging.info("%s over %d texts in %.0f s", kind, len(matrix), time.monotonic() - started)
    recall = index.measure_recall(settings, _RECALL_AT)
    logging.info("%s finds %.1f%% of the exact %d nearest", kind, 100 * recall, _RECALL_AT)


def _peak_bytes() -> int:
    # Kilobytes, except on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
