"""Settings of `embed` and `export`."""

import dataclasses

from dcse_tf.config.base import ConfigError, option
from dcse_tf.config.encoder import EncoderOptions, ModelOptions


@dataclasses.dataclass(frozen=True)
class EmbedConfig(ModelOptions):
    """Embeds a file of sentences."""

    input: str = option(
        "",
        "Text file, one sentence a line, UTF-8; plain, .gz or .zip. It may be larger than memory.",
        required=True,
        files=True,
    )
    output: str = option(
        "",
        "NumPy file to write: float32 [lines, dim], in the order of the lines. Until it is "
        "complete it is a folder of this name with .dcse_tf-partial, from which the same command "
        "goes on.",
        required=True,
        writes=True,
    )
    block_size: int = option(
        100_000,
        "Lines read, embedded and written at a time; distinct sentences of a block are encoded "
        "once. Memory: the embeddings of a block (100,000 lines x 384 dimensions: 154 MB).",
        minimum=1,
    )
    cache_size: int = option(
        50_000,
        "Input of several blocks: sentences repeated most often, encoded once for all blocks. "
        "Memory: their embeddings (x 384 dimensions: 77 MB), and while they are counted the "
        "texts of ten times as many (about 100 MB). 0: repeats are looked for in a block only.",
        minimum=0,
    )
    workers: int = option(
        1,
        "Processes that embed blocks, sharing the processor's cores; each holds the model and a "
        "block. One process uses all cores already.",
        minimum=1,
        maximum=1024,
    )
    overwrite: bool = option(
        False, "Replace --output if it exists, and start anew instead of going on."
    )


@dataclasses.dataclass(frozen=True)
class ExportConfig(EncoderOptions):
    """Writes a trained encoder in a form that can be served."""

    run_dir: str = option(
        "",
        "What to export: a run directory, or any checkpoint (a folder, a hub name, package:NAME).",
        required=True,
        reads=True,
    )
    output_dir: str = option(
        "",
        "Folder to write; it appears only when it is complete.",
        required=True,
        writes=True,
    )
    format: str = option(
        "saved_model",
        "saved_model: a TensorFlow SavedModel whose serving signature takes strings. "
        "sentence_transformers: a folder for that library and for transformers. onnx: a model from "
        "token ids to embeddings, with the tokenizer's files (needs pip install dcse_tf[onnx]).",
        choices=("saved_model", "sentence_transformers", "onnx"),
    )
    unit_norm: bool = option(
        False, "Scale embeddings to length 1, so that a product of two is their cosine."
    )
    versioned: bool = option(
        False,
        "Write --output_dir/1, or what follows the largest number in it, as TensorFlow Serving "
        "reads them; an older version is never replaced.",
    )
    warmup: bool = option(
        False,
        "saved_model: add requests that TensorFlow Serving runs before a version takes traffic. "
        "Needs tensorflow-serving-api: pip install 'dcse_tf[serving]'.",
    )
    quantize: str = option(
        "none",
        "Of --format=onnx. int8: weights in eight bits, a quarter of the size; measure what is "
        "lost by experiments/onnx_quality.py.",
        choices=("none", "int8"),
    )
    results: tuple[str, ...] = option(
        (),
        "Files that evaluate wrote of this model, for its card.",
        files=True,
    )
    data_report: str = option("", "Folder that inspect_data wrote of the corpus, for the card.")
    overwrite: bool = option(False, "Replace --output_dir if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.versioned and self.overwrite:
            raise ConfigError("--versioned replaces nothing: leave out --overwrite")
        if self.warmup and self.format != "saved_model":
            raise ConfigError("--warmup: only with --format=saved_model")
        if self.quantize != "none" and self.format != "onnx":
            raise ConfigError(f"--quantize={self.quantize}: only with --format=onnx")
