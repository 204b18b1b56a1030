"""Settings of `embed` and `export`."""

import dataclasses

from dcse_tf.model.options import EncoderOptions
from dcse_tf.options import OptionError, option


@dataclasses.dataclass(frozen=True)
class ExportOptions(EncoderOptions):
    """Writes a trained encoder or re-ranker in a form that can be served."""

    run_dir: str = option(
        "",
        "What to export: a run directory, of an encoder or a re-ranker, or any checkpoint (a "
        "folder, a hub name, package:NAME).",
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
        "token ids to embeddings or scores, with the tokenizer's files (needs pip install "
        "dcse_tf[onnx]).",
        choices=("saved_model", "sentence_transformers", "onnx"),
    )
    unit_norm: bool = option(
        False, "Scale embeddings to length 1, so that a product of two is their cosine."
    )
    versioned: bool = option(
        False,
        "Write `output_dir`/1, or what follows the largest number in it, as TensorFlow Serving "
        "reads them; an older version is never replaced.",
    )
    warmup: bool = option(
        False,
        "saved_model: add requests that TensorFlow Serving runs before a version takes traffic. "
        "Needs tensorflow-serving-api: pip install 'dcse_tf[serving]'.",
    )
    quantize: str = option(
        "none",
        "Of `format`=onnx. int8: weights in eight bits, a quarter of the size; compare its "
        "embeddings with those of float32 before you use it.",
        choices=("none", "int8"),
    )
    results: tuple[str, ...] = option(
        (),
        "Files that evaluate wrote of this model, for its card.",
        files=True,
    )
    data_report: str = option("", "Folder that inspect_data wrote of the corpus, for the card.")
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.versioned and self.overwrite:
            raise OptionError("`versioned` replaces nothing: leave out `overwrite`")
        if self.warmup and self.format != "saved_model":
            raise OptionError("`warmup`: only with `format`=saved_model")
        if self.quantize != "none" and self.format != "onnx":
            raise OptionError(f"`quantize`={self.quantize}: only with `format`=onnx")
