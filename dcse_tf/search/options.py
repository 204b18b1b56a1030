"""Settings of `search`."""

import dataclasses
from collections.abc import Collection

from dcse_tf.bert.blanks import is_blank
from dcse_tf.encoder.options import ModelOptions
from dcse_tf.options import OptionError, Options, option

KINDS = ("exact", "hnsw", "ivf", "hnsw_int8", "ivf_int8", "binary")
# What building and searching an index depends on; int8 changes nothing in it.
_SETTINGS = {
    "exact": (),
    "hnsw": ("hnsw_m", "ef_construction", "ef_search"),
    "ivf": ("nlist", "nprobe"),
    "binary": ("binary_candidates",),
}


@dataclasses.dataclass(frozen=True)
class ApproximateOptions(Options):
    """How an approximate index is built and searched."""

    hnsw_m: int = option(32, "Building hnsw: links for each text.", minimum=2)
    ef_construction: int = option(
        200, "Building hnsw: candidates from which the links are chosen.", minimum=1
    )
    ef_search: int = option(
        128, "Searching hnsw: candidates. More are slower and find more.", minimum=1
    )
    nlist: int = option(
        0,
        "Building ivf: number of lists. 0: four times the square root of the number of texts, "
        "at most 4096.",
        minimum=0,
    )
    nprobe: int = option(
        32, "Searching ivf: lists to read. More are slower and find more.", minimum=1
    )
    binary_candidates: int = option(
        50,
        "Searching binary: candidates for each text requested. More are slower and find more.",
        minimum=1,
    )

    def check_kinds(self, kinds: Collection[str]) -> None:
        """Refuses a given setting that matters to no index of these types."""
        used = {name for kind in kinds for name in _SETTINGS[kind.removesuffix("_int8")]}
        for field in dataclasses.fields(ApproximateOptions):
            if field.name not in used and self.is_given(field.name):
                self.refuse(field.name, f"has no meaning with `index_type`={', '.join(kinds)}")


@dataclasses.dataclass(frozen=True)
class SearchOptions(ModelOptions, ApproximateOptions):
    """Finds the texts of a corpus that are nearest to queries."""

    corpus: str = option(
        "",
        "Text file to search, one text a line, UTF-8; plain or compressed. Not needed if "
        "`index` exists.",
        files=True,
    )
    find: str = option(
        "similar",
        "similar: texts that mean the same as the query. responses: texts that answer it, by the "
        "projection heads that a training with `projection_dim` kept; a query is then the "
        "dialogue so far, with turns separated by [EOT].",
        choices=("similar", "responses"),
    )
    index: tuple[str, ...] = option(
        (),
        "Folder of the index: built from `corpus` if it does not exist, and reused later. If "
        "the build is stopped, the same command resumes it. Several existing indexes of the "
        "same model, comma-separated or as a glob, are searched as one. Default: a temporary "
        "folder.",
        resumes=True,
    )
    embeddings: str = option(
        "",
        "NumPy file with the embeddings of `corpus` by `model`, one row for each line, as "
        "embed writes it. The index is built from them, and some are compared with the "
        "model's. Default: embed the texts.",
        files=True,
    )
    query: str | None = option(
        None, "A single query. Default: `queries`, or else lines of standard input."
    )
    queries: tuple[str, ...] = option(
        (), "Text files of queries, one a line, comma-separated.", files=True
    )
    top: int = option(5, "Texts to find for each query.", minimum=1)
    reranker: str = option(
        "",
        "Re-ranker of responses: a run directory, a checkpoint folder or an export to ONNX. "
        "Texts are found by their embeddings and ordered by its scores. A query is then the "
        "dialogue so far, with turns separated by [EOT]; the search uses the mean of their "
        "embeddings.",
        reads=True,
    )
    rerank_top: int = option(
        100, "With `reranker`: texts to find by embeddings and then re-order.", minimum=1
    )
    cosine_weight: float = option(
        0.0,
        "With `reranker`: texts are ordered by its score plus this times their cosine. A re-ranker "
        "that has seen few dialogues needs the cosine's help: 4 to 32.",
        minimum=0.0,
    )
    output: str = option(
        "",
        "File for the answers, one JSON object a line for each query; - for standard output. "
        "An existing file is replaced. Default: print them in readable form.",
        writes=True,
        renews=True,
    )
    index_type: str | None = option(
        None,
        "exact compares a query with every text. The others are approximate indexes of FAISS "
        "(pip install faiss-cpu), whose recall is measured after the build: hnsw and "
        "ivf hold all embeddings in memory, hnsw_int8 and ivf_int8 a quarter of that, binary "
        "only their signs, a 32nd. Default: that of an existing `index`, or else exact.",
        choices=KINDS,
    )
    overwrite: bool = option(False, "Rebuild `index` even if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.corpus or self.index):
            raise OptionError("nothing to search: give `corpus`, or `index` with one built before")
        if self.overwrite and not self.corpus:
            raise OptionError("`overwrite` builds the index anew and needs `corpus`")
        if self.embeddings and not self.corpus:
            raise OptionError("`embeddings`: only with `corpus`, whose lines they are of")
        if self.query is not None and self.queries:
            raise OptionError("give either `query` or `queries`")
        if self.query is not None and is_blank(self.query):
            raise OptionError("`query`: is blank; without it, queries come from standard input")
        self.check_needed("reranker", "rerank_top", "cosine_weight")
        self.check_needed("corpus", "hnsw_m", "ef_construction", "nlist")  # to build the index
        if self.projection:
            raise OptionError("`projection`: give `find`=responses, which uses both heads")
        if self.find == "responses" and self.truncate_dim:
            self.refuse("truncate_dim", "the heads of `find`=responses take whole embeddings")
        if self.find == "responses" and self.pooling == "cls":
            self.refuse("pooling", "the heads of `find`=responses were trained with `pooling`=mean")
        if self.reranker and self.rerank_top < self.top:
            raise OptionError(
                f"`rerank_top`={self.rerank_top}: expected `top`={self.top} at least, "
                "because these are the best of them"
            )
