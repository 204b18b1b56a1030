"""Settings of `export`."""

from dcse_tf.bert.encoder_options import EncoderOptions
from dcse_tf.exporting.export_formats import FORMATS
from dcse_tf.options import OptionError, option


class ExportOptions(EncoderOptions):
    """Writes a trained encoder or re-ranker in a form that can be served."""

    run_dir: str = option(
        "",
        "The run directory of an encoder or a re-ranker, or any checkpoint (a folder, a hub name, "
        "package:NAME).",
        required=True,
        path="reads",
    )
    output_dir: str = option(
        "", "Folder to write; it appears only when it is whole.", required=True, path="writes"
    )
    format: str = option("saved_model", "The form to write.", choices=FORMATS)
    unit_norm: bool = option(
        False, "Scale embeddings to length 1, so that their dot product is the cosine."
    )
    quantize: str = option(
        "none",
        "With `format`=onnx. int8: weights in eight bits, a quarter of the size.",
        choices=("none", "int8"),
    )
    data_dir: str = option(
        "",
        "With `format`=static: a corpus that prepare_data wrote with the encoder's vocabulary.",
        path="reads",
    )
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantize != "none" and self.format != "onnx":
            self.refuse("quantize", "only with `format`=onnx")
        if self.data_dir and self.format != "static":
            self.refuse("data_dir", "only with `format`=static")
        if self.format == "static" and not self.data_dir:
            raise OptionError("`format`=static is fitted to utterances: give `data_dir`")
