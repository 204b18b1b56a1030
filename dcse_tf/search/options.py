"""Settings of `search`."""

import dataclasses

from dcse_tf.encoder.options import ModelOptions
from dcse_tf.options import OptionError, option


@dataclasses.dataclass(frozen=True)
class SearchOptions(ModelOptions):
    """Finds the texts of a corpus that are nearest to queries."""

    corpus: str = option(
        "",
        "Text file to search, a text a line, UTF-8; plain, .gz or .zip. May be left out where "
        "`index` exists.",
        files=True,
    )
    index: str = option(
        "",
        "Folder of the index: built from `corpus` if it is not there, and used again. A build "
        "that was stopped goes on with the same command. Default: a temporary one.",
    )
    query: str = option("", "One query. Default: `queries`, or else lines of standard input.")
    queries: str = option(
        "",
        "Text file of queries, one a line.",
        files=True,
    )
    top: int = option(5, "Texts found for a query.", minimum=1)
    output: str = option(
        "",
        "File for the answers, a JSON object a query and line; - for standard output. Default: "
        "they are printed to be read.",
        writes=True,
    )
    index_type: str | None = option(
        None,
        "exact compares a query with every text; hnsw and ivf are approximate indexes of FAISS "
        "(pip install 'dcse_tf[search]'), whose recall is measured after the build. Default: what "
        "`index` is, or else exact.",
        choices=("exact", "hnsw", "ivf"),
    )
    hnsw_m: int = option(32, "hnsw, as it is built: links of a text.", minimum=2)
    ef_construction: int = option(
        200, "hnsw, as it is built: candidates from which links are chosen.", minimum=1
    )
    ef_search: int = option(
        128, "hnsw, as it is searched: candidates. More is slower and finds more.", minimum=1
    )
    nlist: int = option(
        0, "ivf, as it is built: lists. 0: four times the root of the number of texts.", minimum=0
    )
    nprobe: int = option(
        32, "ivf, as it is searched: lists read. More is slower and finds more.", minimum=1
    )
    overwrite: bool = option(False, "Build `index` anew, also if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.corpus or self.index):
            raise OptionError("nothing to search: give `corpus`, or `index` with one built before")
        if self.overwrite and not self.corpus:
            raise OptionError("`overwrite` builds the index anew: give `corpus`")
        if self.query and self.queries:
            raise OptionError("give either `query` or `queries`")
