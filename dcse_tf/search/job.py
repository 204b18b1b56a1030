"""The search job: builds the index of a corpus if there is none, and answers queries from it."""

import contextlib
import dataclasses
import glob
import pathlib
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging

from dcse_tf.bert.blanks import is_blank
from dcse_tf.bert.vocabulary import END_OF_TURN
from dcse_tf.encoder.options import ModelOptions
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.encoder.unit_length import normalize
from dcse_tf.errors import InputError, name_output
from dcse_tf.files import (
    MARK,
    MadeFrom,
    atomic_directory,
    atomic_file,
    hash_file,
    lock_output,
    partial_path,
    remove,
    replace_folder,
    restore_replaced,
    resumable,
)
from dcse_tf.input_files import UNREADABLE_ARRAY
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.search import index as layout
from dcse_tf.search.embed import embed
from dcse_tf.search.embed_options import EmbedOptions
from dcse_tf.search.index import Hit, IndexFolder, SearchIndex
from dcse_tf.search.nearest import ApproximateIndex, import_faiss
from dcse_tf.search.options import SearchOptions

_QUERIES_AT_A_TIME = 256
_RECALL_AT = 10
_CORPUS = "contents of `corpus`"


class Searcher:
    """An index with the encoder it was made with, and optionally a re-ranker of the results.

    Args:
        index: the index.
        encoder: embeds the queries.
        responses: whether the index is one of responses, to be searched by the projection heads.
        top: number of texts to find for each query.
        reranker: ranks the `rerank_top` nearest texts; None to rank by cosine.
        rerank_top: number of texts to re-rank, at least `top`.
        cosine_weight: how much the cosine adds to a re-ranker's score in the order of texts.
    """

    def __init__(
        self,
        index: SearchIndex,
        encoder: SentenceEncoder,
        responses: bool,
        top: int,
        reranker: Reranker | None = None,
        rerank_top: int = 0,
        cosine_weight: float = 0.0,
    ):
        self.index = index
        self._encoder = encoder
        self._responses = responses
        self._top = top
        self._reranker = reranker
        self._rerank_top = rerank_top
        self._cosine_weight = cosine_weight

    def answer(self, queries: list[str]) -> list[list[Hit]]:
        """The nearest texts of each query, best first.

        If responses are searched, or with a re-ranker, a query is a dialogue, see `split_turns`.
        With a re-ranker its hits are those of the nearest texts that the re-ranker scores highest,
        or whose scores plus weighted cosines are highest.
        """
        if not (self._responses or self._reranker):
            return self.index.search(self._encoder.encode(queries, show_progress=False), self._top)
        contexts = [split_turns(query) for query in queries]
        rows = self._embed_contexts(contexts)
        if self._reranker is None:
            return self.index.search(rows, self._top)
        found = self.index.search(rows, self._rerank_top)
        scores = self._reranker.score(
            contexts, [[hit.text for hit in hits] for hits in found], show_progress=len(queries) > 1
        )
        return [
            _order(*each, self._cosine_weight)[: self._top]
            for each in zip(found, scores, strict=True)
        ]

    def _embed_contexts(self, contexts: list[list[str]]) -> np.ndarray:
        """The mean of each context's embeddings, to search responses behind the context's head;
        float32 `[contexts, dim]`.
        """
        texts = [text for turns in contexts for text in turns]
        rows = self._encoder.encode(texts, show_progress=False)
        starts = np.cumsum([0, *(len(turns) for turns in contexts)])[:-1]
        sums = np.add.reduceat(rows, starts, axis=0)
        means = sums / np.array([[len(turns)] for turns in contexts], np.float32)
        return self._encoder.project(means, "context") if self._responses else means

    def answer_all(self, queries: Iterable[str]) -> Iterator[tuple[str, list[Hit]]]:
        """Yields every query with its hits; queries are processed in large groups."""
        source = iter(queries)
        while group := [text for _, text in zip(range(_QUERIES_AT_A_TIME), source)]:
            yield from zip(group, self.answer(group), strict=True)


def split_turns(query: str) -> list[str]:
    """The turns of a query, the oldest first; "hello [EOT] where is my parcel" has two."""
    turns = [turn.strip() for turn in query.split(END_OF_TURN)]
    return [turn for turn in turns if not is_blank(turn)] or [query]


def _order(hits: list[Hit], scores: np.ndarray, cosine_weight: float) -> list[Hit]:
    """Hits by descending score plus weighted cosine; of equal ones, the nearer text first."""
    sums = scores + cosine_weight * np.array([hit.cosine for hit in hits])
    order = np.argsort(-sums, kind="stable").tolist()
    return [
        dataclasses.replace(hits[place], rank=rank, score=float(scores[place]))
        for rank, place in enumerate(order, start=1)
    ]


@contextlib.contextmanager
def open_searcher(config: SearchOptions) -> Iterator[Searcher]:
    """Opens the indexes that the settings name; one that does not exist is built first.

    Raises:
        OptionError: there are several indexes, and a corpus; or a setting is given that matters to
            none of the indexes.
        InputError: a model, the corpus or an index cannot be used, or an index was made from
            another model or corpus.
        LockedError: another process is building the index.
        OutputError: the index cannot be written.
    """
    with contextlib.ExitStack() as stack:
        folders = _list_folders(config.index)
        if not folders:
            folders = [pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "index"]
        if len(folders) > 1 and config.corpus:
            config.refuse("corpus", f"builds one `index`, and {len(folders)} are given")
        for folder in folders:
            _require_index(folder, buildable=bool(config.corpus))
        exists = folders[0].exists() and not config.overwrite
        if not exists:
            config.check_kinds([config.index_type or "exact"])

        encoder = indexed = SentenceEncoder.from_options(config)
        responses = config.find == "responses"
        if responses and not encoder.heads:
            raise InputError(
                f"`find`=responses: {config.model} has no projection heads; expected the run of a "
                "training with `projection_dim`"
            )
        if responses:
            indexed = SentenceEncoder.from_options(ModelOptions(**_settings_of_index(config)))
        reranker = _load_reranker(config)  # before the index is built, which takes long
        if not exists:
            build_index(config, folders[0], indexed)
        index = SearchIndex(folders, config)
        if exists:
            for each in index.folders:
                _require_same(config, each, indexed)
            config.check_kinds(sorted({each.kind for each in index.folders}))
        stack.enter_context(encoder.gather_truncated())
        second = (reranker, config.rerank_top, config.cosine_weight)
        yield Searcher(index, encoder, responses, config.top, *second)


def _list_folders(names: Sequence[str]) -> list[pathlib.Path]:
    """Folders by name or glob, each once; matches of a glob are sorted.

    An index that is still being built is listed too, if a glob matches its temporary folder, so
    that its absence is noticed.
    """
    folders: list[pathlib.Path] = []
    for name in names:
        found = [] if pathlib.Path(name).exists() else sorted(glob.glob(name))
        folders += [pathlib.Path(each.partition(MARK)[0]) for each in found or [name]]
    return list(dict.fromkeys(folders))


def _require_index(folder: pathlib.Path, buildable: bool) -> None:
    """Refuses a folder that is no index, or that neither exists nor can be built."""
    restore_replaced(folder)
    # A folder with anything else in it must never be replaced.
    if folder.exists() and not layout.is_index(folder):
        raise InputError(f"`index`={folder}: exists and is not an index; give another folder")
    if not folder.exists() and not buildable:
        raise InputError(f"`index`={folder}: no such index; give `corpus` to build it from")


def _load_reranker(config: SearchOptions) -> Reranker | None:
    if not config.reranker:
        return None
    return Reranker.load(
        config.reranker,
        batch_tokens=config.batch_tokens,
        compute_dtype=config.compute_dtype,
        option="reranker",
    )


def _settings_of_index(config: SearchOptions) -> dict[str, Any]:
    """The options of the encoder that embeds the corpus."""
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(ModelOptions)}
    return {**shared, "projection": "response" if config.find == "responses" else ""}


def build_index(config: SearchOptions, folder: pathlib.Path, encoder: SentenceEncoder) -> None:
    """Builds the index of `corpus`, resuming after steps that are done; logs how long it took.

    Raises:
        InputError: the corpus cannot be used, or an interrupted build to be resumed had other
            settings.
        LockedError: another process is building the index.
        OutputError: the index cannot be written.
    """
    started = time.monotonic()
    kind = config.index_type or "exact"
    if kind != "exact":
        import_faiss(kind)  # before the embedding, which takes long
    made_from = layout.describe(kind, {**_describe_model(encoder), **_hash_corpus(config)})
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        lock_output(folder),
        name_output(folder),
        resumable(folder, made_from, config.overwrite) as work,
    ):
        texts = work / layout.TEXTS_FOLDER
        if not texts.exists():
            with atomic_directory(texts) as partial:
                layout.write_corpus_texts(pathlib.Path(config.corpus), partial)
        embeddings = work / layout.EMBEDDINGS_FILE
        if not embeddings.exists() and config.embeddings:
            remove(partial_path(embeddings))  # of a build without `embeddings` that was stopped
            _take_rows(pathlib.Path(config.embeddings), texts, embeddings, encoder)
        elif not embeddings.exists():
            _embed_texts(config, texts / layout.TEXTS_FILE, embeddings, encoder)
        if kind != "exact":
            matrix = np.load(embeddings, mmap_mode="r")
            _build_approximate(config, kind, matrix, work / layout.FAISS_FILE)
        replace_folder(work, folder)
    logging.info("built %s in %.0f s", folder, time.monotonic() - started)


def _describe_model(encoder: SentenceEncoder) -> dict[str, Any]:
    """Everything that determines the embeddings of texts and queries."""
    # The fingerprint covers the settings; they are listed so that messages can name what differs.
    names = ("pooling", "max_sequence_length", "truncate_dim")
    settings = {f"`{name}`": encoder.settings.get(name) for name in names}
    return {"contents of `model`": encoder.fingerprint(), **settings}


def _hash_corpus(config: SearchOptions) -> dict[str, Any]:
    try:
        return {_CORPUS: hash_file(pathlib.Path(config.corpus))}
    except OSError as error:
        raise InputError(f"`corpus`={config.corpus}: cannot be read: {error}") from error


def _embed_texts(
    config: SearchOptions, texts: pathlib.Path, output: pathlib.Path, encoder: SentenceEncoder
) -> None:
    shared = _settings_of_index(config)
    # The texts are distinct, so a cache for repeated ones is useless.
    settings = EmbedOptions(**shared, input=str(texts), output=str(output), cache_size=0)
    embed(settings, encoder, layout.scale_to_unit_length)


_ROWS_AT_A_TIME = 65_536
_COMPARED = 32
# Lowest cosine accepted between a given row and the encoder's own: rows computed in bfloat16 or
# int8 are at least this close to float32.
_NEAR = 0.98


def _take_rows(
    path: pathlib.Path, texts_folder: pathlib.Path, output: pathlib.Path, encoder: SentenceEncoder
) -> None:
    """Writes the rows of the distinct texts, taken from a file with a row per corpus line.

    Raises:
        InputError: the file is not such an array, or a sample of its rows shows that they are not
            the encoder's.
    """
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except UNREADABLE_ARRAY as error:
        raise InputError(f"`embeddings`={path}: not a NumPy array: {error}") from error
    # An .npz file is read as a collection of arrays.
    if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "fiu":
        raise InputError(f"`embeddings`={path}: not a NumPy array of numbers, as embed writes it")
    texts = layout.CorpusTexts(texts_folder)
    last, dim = int(texts.lines[-1]), encoder.dim
    if rows.ndim != 2 or rows.shape[1] != dim or len(rows) < last:
        raise InputError(
            f"`embeddings`={path}: an array of {list(rows.shape)}, expected {dim} columns and "
            f"a row for each line of `corpus`, of which line {last} has a text"
        )

    compared = np.linspace(0, len(texts) - 1, min(_COMPARED, len(texts))).astype(int).tolist()
    own, _ = encoder.encode_and_mark([texts[place] for place in compared])
    given = rows[texts.lines[compared] - 1].astype(np.float32)
    near = (normalize(own) * normalize(given)).sum(axis=1)
    # Texts in which a model knows no word, such as a static export's, have embeddings of zeros.
    near[~own.any(axis=1) & ~given.any(axis=1)] = 1.0
    if near.min() < _NEAR:
        line = int(texts.lines[compared[int(near.argmin())]])
        raise InputError(
            f"`embeddings`={path}: row {line} is not the embedding of line {line} of `corpus` by "
            f"`model` (cosine {near.min():.3f})"
        )

    with atomic_file(output) as partial:
        target = np.lib.format.open_memmap(partial, "w+", np.float32, (len(texts), dim))
        for start in range(0, len(texts), _ROWS_AT_A_TIME):
            lines = texts.lines[start : start + _ROWS_AT_A_TIME] - 1
            target[start : start + len(lines)] = layout.scale_to_unit_length(rows[lines])
        target.flush()


def _build_approximate(
    config: SearchOptions, kind: str, matrix: np.ndarray, path: pathlib.Path
) -> None:
    started = time.monotonic()
    index = ApproximateIndex.build(matrix, kind, config)
    index.write(path)
    logging.info("%s over %d texts in %.0f s", kind, len(matrix), time.monotonic() - started)
    index.measure_recall(config, _RECALL_AT)


def _require_same(config: SearchOptions, index: IndexFolder, encoder: SentenceEncoder) -> None:
    """Refuses an index that was made from another model or corpus than the settings name."""
    now = _describe_model(encoder)
    if config.corpus:
        now |= _hash_corpus(config)
    if config.index_type:
        now[layout.INDEX_TYPE] = config.index_type
    # Settings that are not given are taken from the index.
    before = {name: index.made_from.values.get(name) for name in now}
    MadeFrom(before).require(
        MadeFrom(now),
        f"`index`={index.path}: was built with other settings or inputs",
        "give the same, another `index`, or `overwrite` to build it anew",
    )
