"""The search job: builds the index of a corpus if there is none, and answers queries from it."""

import contextlib
import dataclasses
import itertools
import math
import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging

from dcse_tf.bert.encoder_options import ModelOptions
from dcse_tf.bert.vocabulary import END_OF_TURN, is_blank
from dcse_tf.encoder.backend import normalize
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError, require
from dcse_tf.files import atomic_directory, hash_file, require_same, restore_replaced, write_record
from dcse_tf.options import OptionError, option
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.search import index as layout
from dcse_tf.search.calibration import CalibratedOptions, Calibration
from dcse_tf.search.embed_file import write_header

RERANK_TOP = 100
_QUERIES_AT_A_TIME = 256
_SETTINGS = ("pooling", "max_sequence_length", "truncate_dim")


class SearchOptions(CalibratedOptions):
    """Finds the texts of a corpus that are nearest to queries."""

    corpus: str = option(
        "",
        "Text file to search, one text a line; plain or compressed. Not needed if `index` exists.",
        path="files",
    )
    find: str = option(
        "similar",
        "similar: texts that mean the same. responses: texts that answer the query, a dialogue "
        "with turns separated by [EOT], by the heads of a training with `projection_dim`.",
        choices=("similar", "responses"),
    )
    index: str = option(
        "",
        "Folder of the index, built if it does not exist. Default: a temporary folder.",
        path="resumes",
    )
    index_type: str = option(
        "exact",
        "To build the index. exact compares a query with every text; ivf, an approximate index of "
        "FAISS (pip install faiss-cpu), with some, and holds all embeddings in memory.",
        choices=("exact", "ivf"),
    )
    nprobe: int = option(
        32, "Searching ivf: lists of texts to read. More are slower and find more.", minimum=1
    )
    query: str | None = option(None, "A single query. Default: `queries`, or standard input.")
    queries: tuple[str, ...] = option((), "Text files of queries, one a line.", path="files")
    top: int = option(5, "Texts to find for each query.", minimum=1)
    reranker: str = option(
        "",
        "Re-ranker that orders the texts found (a run directory, a checkpoint or an ONNX export). "
        "A query is then a dialogue, with turns separated by [EOT].",
        path="reads",
    )
    rerank_top: int = option(RERANK_TOP, "With `reranker`: texts to find and re-order.", minimum=1)
    output: str = option(
        "",
        "File for the answers, a JSON object a query, which is replaced; - for standard output. "
        "Default: print them in readable form.",
        path="renews",
    )
    overwrite: bool = option(False, "Rebuild `index` even if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.corpus or self.index):
            raise OptionError("nothing to search: give `corpus`, or `index` with one built before")
        self.check_needed("corpus", "index_type", "overwrite")
        if self.query is not None and self.queries:
            raise OptionError("give either `query` or `queries`")
        if self.query is not None and is_blank(self.query):
            raise OptionError("`query`: is blank; without it, queries come from standard input")
        self.check_needed("reranker", "rerank_top")
        if self.calibration and not self.reranker and self.find == "similar":
            self.refuse("calibration", "is for answers: give a `reranker`, or `find`=responses")
        check_first_stage(self)
        if self.reranker and self.rerank_top < self.top:
            self.refuse("rerank_top", f"expected `top`={self.top} at least, the best of them")


@dataclasses.dataclass(frozen=True)
class Searcher:
    """An index with the encoder it was made with, and optionally a re-ranker of the results."""

    config: SearchOptions
    index: layout.SearchIndex
    encoder: SentenceEncoder
    reranker: Reranker | None = None
    calibration: Calibration | None = None

    def answer(self, queries: list[str]) -> list[list[layout.Hit]]:
        """The nearest texts of each query, best first.

        If responses are searched, or with a re-ranker, a query is a dialogue, see `split_turns`.
        With a re-ranker its hits are those of the nearest texts that the re-ranker scores highest;
        a calibration adds the weighted cosine, and a query whose best hit is too low has none.
        """
        config = self.config
        dialogues = self.reranker or config.find == "responses"
        contexts = [split_turns(query) if dialogues else [query] for query in queries]
        weight, least = 0.0, -math.inf
        if self.calibration:
            weight = self.calibration.cosine_weight
            least = self.calibration.threshold(config.false_accepts)
        found = self.find(contexts, config.rerank_top if self.reranker else config.top)
        if self.reranker is None:
            return [hits if hits[0].cosine > least else [] for hits in found]
        texts = [[hit.text for hit in hits] for hits in found]
        answers = []
        scores = self.reranker.score(contexts, texts, show_progress=len(queries) > 1)
        for hits, row in zip(found, scores, strict=True):
            sums = row + weight * np.array([hit.cosine for hit in hits])
            # Of equal ones, the nearer first.
            order = np.argsort(-sums, kind="stable")[: config.top * (sums.max() > least)]
            best = [dataclasses.replace(hits[place], score=float(row[place])) for place in order]
            answers.append([dataclasses.replace(hit, rank=n) for n, hit in enumerate(best, 1)])
        return answers

    def find(self, contexts: Sequence[list[str]], top: int) -> list[list[layout.Hit]]:
        """The texts nearest to the mean of each context's turns, mapped by its head if there is."""
        rows = self.encoder.encode([*itertools.chain(*contexts)], show_progress=False)
        ends = np.cumsum([len(context) for context in contexts])[:-1]
        means = np.stack([part.mean(axis=0) for part in np.split(rows, ends)])
        if self.config.find == "responses":
            means = self.encoder.project(means, "context")
        return self.index.search(means, top)

    def answer_all(self, queries: Iterable[str]) -> Iterator[tuple[str, list[layout.Hit]]]:
        """Yields every query with its hits; queries are processed in large groups."""
        source = iter(queries)
        while group := list(itertools.islice(source, _QUERIES_AT_A_TIME)):
            yield from zip(group, self.answer(group), strict=True)


def check_first_stage(options: Any) -> None:
    """Refuses settings of embeddings that `find` cannot use."""
    if options.projection:
        raise OptionError("`projection`: give `find`=responses, which uses both heads")
    if options.find == "responses":  # the heads were trained on whole mean embeddings
        for name in ("truncate_dim", "pooling"):
            if options.is_given(name) and getattr(options, name) != "mean":
                options.refuse(name, "has no meaning with `find`=responses")


def load_first_stage(options: ModelOptions, find: str) -> SentenceEncoder:
    """The encoder that options name; InputError if it has no heads to find responses by."""
    encoder = SentenceEncoder.from_options(options)
    if find == "responses" and not encoder.heads:
        expected = "expected the run of a training with `projection_dim`"
        raise InputError(f"`find`=responses: {options.model} has no projection heads; {expected}")
    return encoder


def describe_stages(
    find: str, encoder: SentenceEncoder | None, reranker: Reranker | None
) -> dict[str, str]:
    """What a calibration depends on: the models, by their fingerprints, and what is found."""
    first = {"`find`": find, "`model`": encoder.fingerprint()} if encoder else {}
    return first | ({"`reranker`": reranker.fingerprint()} if reranker else {})


def split_turns(query: str) -> list[str]:
    """The turns of a query, the oldest first; "hello [EOT] where is my parcel" has two."""
    turns = [turn.strip() for turn in query.split(END_OF_TURN)]
    return [turn for turn in turns if not is_blank(turn)] or [query]


@contextlib.contextmanager
def open_searcher(config: SearchOptions) -> Iterator[Searcher]:
    """Opens the index that the settings name, which is built if it does not exist; InputError if it
    was made from another model or corpus.
    """
    with contextlib.ExitStack() as stack:
        parent = "" if config.index else stack.enter_context(tempfile.TemporaryDirectory())
        folder = pathlib.Path(config.index or f"{parent}/index").absolute()
        restore_replaced(folder)
        # A folder with anything else in it must never be replaced.
        files = [folder / name for name in (layout.MADE_FROM_FILE, layout.TABLE_FILE)]
        if folder.exists() and not all(path.is_file() for path in files):
            raise InputError(f"`index`={folder}: exists and is not an index; give another folder")
        build = config.overwrite or not folder.exists()
        if build and not config.corpus:
            raise InputError(f"`index`={folder}: no such index; search builds it, from `corpus`")

        # All is loaded before the index is built, which takes long.
        encoder = load_first_stage(config, config.find)
        reranker = Reranker.from_options(config, "reranker") if config.reranker else None
        calibration = config.read_calibration(describe_stages(config.find, encoder, reranker))
        # The fingerprint covers the settings, which are listed so that messages can name them.
        now: dict[str, Any] = {
            layout.INDEX_TYPE: config.index_type,
            "`find`": config.find,
            "contents of `model`": encoder.fingerprint(),
            **{f"`{name}`": encoder.settings.get(name) for name in _SETTINGS},
        }
        if config.corpus:
            now["contents of `corpus`"] = hash_file(pathlib.Path(config.corpus))
        if build:
            build_index(config, folder, encoder, now)
        index = layout.SearchIndex(folder, config.nprobe)
        compared = {name: index.made_from.get(name) for name in now}
        if not config.is_given("index_type"):
            now[layout.INDEX_TYPE] = compared[layout.INDEX_TYPE]
        if config.is_given("nprobe") and index.made_from.get(layout.INDEX_TYPE) == "exact":
            config.refuse("nprobe", "has no meaning with an exact index")
        problem = f"`index`={folder}: was built with other settings or inputs"
        remedy = "give the same, another `index`, or `overwrite` to build it anew"
        require_same(compared, now, problem, remedy)
        if calibration and not calibration.of_index and config.false_accepts < 100:
            logging.warning("`calibration` is without `index`: far more wrong answers may be given")
        yield Searcher(config, index, encoder, reranker, calibration)


def build_index(
    config: SearchOptions, folder: pathlib.Path, encoder: SentenceEncoder, sources: dict[str, Any]
) -> None:
    """Builds the index of `corpus`, made from `sources`; logs an approximate one's recall."""
    approximate = config.index_type == "ivf"
    if approximate:
        require(*layout.FAISS)  # before the embedding, which takes long
    with atomic_directory(folder, config.overwrite) as partial:
        texts = layout.write_corpus_texts(pathlib.Path(config.corpus), partial)
        embeddings = partial / layout.EMBEDDINGS_FILE
        with embeddings.open("wb") as file:
            for rows in encoder.encode_blocks(texts, 65_536):  # at a time
                if config.find == "responses":
                    rows = encoder.project(rows, "response")
                if not file.tell():
                    write_header(file, (len(texts), rows.shape[1]))
                file.write(normalize(rows).astype("<f4").data)
        write_record(partial / layout.MADE_FROM_FILE, {**layout.FORMAT, **sources})
        if approximate:
            layout.build_faiss(np.load(embeddings, mmap_mode="r"), partial / layout.FAISS_FILE)
            recall = layout.SearchIndex(partial, config.nprobe).measure_recall()
            logging.info("ivf finds %.1f%% of the exact 10 nearest", 100 * recall)
    logging.info("built %s", folder)
