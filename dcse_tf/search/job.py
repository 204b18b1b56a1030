"""The search job: an index of a corpus, built where there is none, and answers from it."""

import contextlib
import pathlib
import tempfile
from collections.abc import Iterable, Iterator

from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.search.building import build_index, describe_model, fingerprint_corpus
from dcse_tf.search.index import Hit, SearchIndex, is_index, list_differences
from dcse_tf.search.nearest import Settings
from dcse_tf.search.options import SearchOptions

_QUERIES_AT_A_TIME = 256


class Searcher:
    """An index and the encoder it was made by."""

    def __init__(self, index: SearchIndex, encoder: SentenceEncoder, top: int):
        self.index = index
        self._encoder = encoder
        self._top = top

    def answer(self, queries: list[str]) -> list[list[Hit]]:
        """The nearest texts of each query, best first."""
        return self.index.search(self._encoder.encode(queries), self._top)

    def answer_all(self, queries: Iterable[str]) -> Iterator[tuple[str, list[Hit]]]:
        """Every query with its answers; many are encoded and compared at a time."""
        source = iter(queries)
        while group := [text for _, text in zip(range(_QUERIES_AT_A_TIME), source)]:
            yield from zip(group, self.answer(group), strict=True)


@contextlib.contextmanager
def open_searcher(config: SearchOptions) -> Iterator[Searcher]:
    """Opens the index of the settings, and builds it first where there is none.

    Raises:
        InputError: the model, the corpus or the index cannot be used, or the index was made of
            others.
        LockedError: another process builds it.
    """
    with contextlib.ExitStack() as stack:
        if config.index:
            folder = pathlib.Path(config.index)
        else:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "index"
        # Never is a folder replaced that holds something else.
        if folder.exists() and not is_index(folder):
            raise InputError(f"`index`={folder}: exists and is no index; give another folder")
        exists = folder.exists() and not config.overwrite
        if not exists and not config.corpus:
            raise InputError(f"`index`={folder}: no such index; give `corpus` to build it from")
        encoder = SentenceEncoder.from_options(config)
        if not exists:
            build_index(config, folder, encoder)
        settings = Settings(ef_search=config.ef_search, nprobe=config.nprobe)
        index = SearchIndex(folder, settings)
        if exists:
            _compare(config, folder, index, encoder)
        yield Searcher(index, encoder, config.top)


def _compare(
    config: SearchOptions, folder: pathlib.Path, index: SearchIndex, encoder: SentenceEncoder
) -> None:
    """Refuses an index that was made of another model or corpus than the settings name."""
    description = index.description
    before = {**description.model}
    now = describe_model(encoder)
    if config.corpus:
        before["contents of `corpus`"] = description.corpus[:16]
        now["contents of `corpus`"] = fingerprint_corpus(pathlib.Path(config.corpus))[:16]
    if config.index_type:
        before["`index_type`"], now["`index_type`"] = description.index_type, config.index_type
    if changed := list_differences(before, now):
        raise InputError(
            f"`index`={folder}: was built otherwise: {'; '.join(changed)}; give the same, another "
            "`index`, or `overwrite` to build it anew"
        )
