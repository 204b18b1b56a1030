"""The options of `embed`."""

import dataclasses

from dcse_tf.encoder.options import ModelOptions
from dcse_tf.options import option


@dataclasses.dataclass(frozen=True)
class EmbedOptions(ModelOptions):
    """Embeds a file of sentences."""

    input: str = option(
        "",
        "Text file, one sentence a line, UTF-8; plain or compressed. It may be larger than memory.",
        required=True,
        files=True,
        on_cluster=True,
    )
    output: str = option(
        "",
        "NumPy file to write: float32 [lines, dim], in the order of the lines. Until it is "
        "complete, its rows are in a folder of this name with .dcse_tf-partial. If the job is "
        "stopped, the same command resumes it.",
        required=True,
        writes=True,
        on_cluster=True,
    )
    block_size: int = option(
        100_000,
        "Lines read, embedded and written at a time; a sentence that is repeated in a block "
        "is encoded once. Memory: the embeddings of a block (100,000 lines x 384 dimensions: "
        "154 MB).",
        minimum=1,
    )
    cache_size: int = option(
        50_000,
        "If there are several blocks: how many of the most frequent sentences are encoded "
        "once for all blocks. Memory: their embeddings (x 384 dimensions: 77 MB) and, while "
        "sentences are counted, the texts of ten times as many (about 100 MB). 0: repeated "
        "sentences are shared only within a block.",
        minimum=0,
    )
    workers: int = option(
        1,
        "Processes that embed blocks, sharing the processor cores; each holds the model and a "
        "block. A single process already uses all cores.",
        minimum=1,
        maximum=1024,
    )
    shard: str = option(
        "",
        "NUMBER/COUNT, such as 0/4: embed only that part of the file's blocks, for instance "
        "on one of four machines, into a file named after `output`. Without it, parts that "
        "lie beside `output` are used, and what is missing is embedded.",
    )
    spark_master: str = option(
        "",
        "Embed on a Spark cluster, such as spark://HOST:7077, yarn, k8s://... or local[4]. "
        "`input` is then a Parquet or text file, or a glob for several, and `output` a folder "
        "of Parquet with all columns of the input and one named embedding. All of its workers "
        "must be able to reach both.",
    )
    text_column: str = option("text", "With `spark_master`: the column to embed.")
    overwrite: bool = option(
        False, "Replace `output` if it exists, and start anew instead of resuming."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_needed("spark_master", "text_column")
        for name in ("block_size", "cache_size", "workers", "shard"):
            if self.is_given(name) and self.spark_master:
                self.refuse(name, "has no meaning with `spark_master`")
