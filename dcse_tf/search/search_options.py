"""The options of `embed` and `search`."""

from dcse_tf.bert.blanks import is_blank
from dcse_tf.encoder.model_options import ModelOptions
from dcse_tf.options import OptionError, option


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
    overwrite: bool = option(
        False, "Replace `output` if it exists, and start anew instead of resuming."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_needed("spark_master", "text_column")
        if self.is_given("block_size") and self.spark_master:
            self.refuse("block_size", "has no meaning with `spark_master`")


class SearchOptions(ModelOptions):
    """Finds the texts of a corpus that are nearest to queries."""

    corpus: str = option(
        "",
        "Text file to search, one text a line, UTF-8; plain or compressed. Not needed if "
        "`index` exists.",
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
    query: str | None = option(
        None, "A single query. Default: `queries`, or else lines of standard input."
    )
    queries: tuple[str, ...] = option(
        (), "Text files of queries, one a line, comma-separated.", path="files"
    )
    top: int = option(5, "Texts to find for each query.", minimum=1)
    reranker: str = option(
        "",
        "Re-ranker that orders the texts found (a run directory, a checkpoint or an ONNX export). "
        "A query is then a dialogue, with turns separated by [EOT].",
        path="reads",
    )
    rerank_top: int = option(100, "With `reranker`: texts to find and then re-order.", minimum=1)
    cosine_weight: float = option(
        0.0,
        "With `reranker`: order by its score plus this times the cosine. One that has seen few "
        "dialogues needs the cosine's help: 4 to 32.",
        minimum=0.0,
    )
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
        self.check_needed("reranker", "rerank_top", "cosine_weight")
        if self.projection:
            raise OptionError("`projection`: give `find`=responses, which uses both heads")
        if self.find == "responses":  # the heads were trained on whole mean embeddings
            for name in ("truncate_dim", "pooling"):
                if self.is_given(name) and getattr(self, name) != "mean":
                    self.refuse(name, "has no meaning with `find`=responses")
        if self.reranker and self.rerank_top < self.top:
            self.refuse("rerank_top", f"expected `top`={self.top} at least, the best of them")
