"""Settings of `search`."""

import dataclasses

from dcse_tf.encoder.options import ModelOptions
from dcse_tf.options import OptionError, option


@dataclasses.dataclass(frozen=True)
class SearchOptions(ModelOptions):
    """Finds the texts of a corpus that are nearest to queries."""

    corpus: str = option(
        "",
        "Text file to search, a text a line, UTF-8; plain, .gz or .zip. Not needed if `index` "
        "exists.",
        files=True,
    )
    index: str = option(
        "",
        "Folder of the index: built from `corpus` if it does not exist, and used again later. If "
        "the build is stopped, the same command resumes it. Default: a temporary folder.",
    )
    query: str = option("", "One query. Default: `queries`, or else lines of standard input.")
    queries: str = option("", "Text file of queries, one a line.", files=True)
    top: int = option(5, "Texts to find for each query.", minimum=1)
    reranker: str = option(
        "",
        "Re-ranker of responses: a run directory or a checkpoint folder. Texts are found by their "
        "embeddings, and ordered by its scores. A query then is the dialogue so far: [EOT] parts "
        "its turns, and the mean of their embeddings is searched by.",
        reads=True,
    )
    rerank_top: int = option(
        100, "With `reranker`: texts that are found by embeddings and then ordered.", minimum=1
    )
    output: str = option(
        "",
        "File for the answers, a line with a JSON object for each query; - for standard output. "
        "Default: they are printed for people.",
        writes=True,
    )
    index_type: str | None = option(
        None,
        "exact compares a query with every text; hnsw and ivf are approximate indexes of FAISS "
        "(pip install 'dcse_tf[search]'), whose recall is measured after the build. Default: that "
        "of an existing `index`, or else exact.",
        choices=("exact", "hnsw", "ivf"),
    )
    hnsw_m: int = option(32, "Building hnsw: links of each text.", minimum=2)
    ef_construction: int = option(
        200, "Building hnsw: candidates from which the links are chosen.", minimum=1
    )
    ef_search: int = option(
        128, "Searching hnsw: candidates. More is slower and finds more.", minimum=1
    )
    nlist: int = option(
        0,
        "Building ivf: lists. 0: four times the square root of the number of texts.",
        minimum=0,
    )
    nprobe: int = option(
        32, "Searching ivf: lists that are read. More is slower and finds more.", minimum=1
    )
    overwrite: bool = option(False, "Build `index` anew even if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.corpus or self.index):
            raise OptionError("nothing to search: give `corpus`, or `index` with one built before")
        if self.overwrite and not self.corpus:
            raise OptionError("`overwrite` builds the index anew and needs `corpus`")
        if self.query and self.queries:
            raise OptionError("give either `query` or `queries`")
        if self.is_given("rerank_top") and not self.reranker:
            raise OptionError("`rerank_top`: only with `reranker`")
        if self.reranker and self.rerank_top < self.top:
            raise OptionError(
                f"`rerank_top`={self.rerank_top}: expected `top`={self.top} at least, for these "
                "are the best of them"
            )
