"""The forms in which a trained model can be written, and the settings of `export`.

Importing this does not import TensorFlow.
"""

import pathlib
import types
from collections.abc import Callable
from typing import Any

from dcse_tf.arguments import load
from dcse_tf.bert.encoder_options import EncoderOptions
from dcse_tf.errors import require
from dcse_tf.options import OptionError, is_edited, option

Facts = dict[str, str]  # for the model card, by name
Write = Callable[[pathlib.Path, Any, Any], Facts]  # see `register_export`

# By name, in the order of registration: the arguments of `register_export`.
FORMATS: dict[str, types.SimpleNamespace] = {}


def register_export(
    name: str,
    help: str,
    *,
    write_encoder: Write | None = None,
    usage: str = "",
    write_reranker: Write | None = None,
    reranker_usage: str = "",
    card: str = "model_card.md",
) -> None:
    """Registers a format for `export`.

        def write(folder, encoder, options):
            lines = "".join(f"{token}\\n" for token in encoder.vocabulary.tokens)
            (folder / "tokens.txt").write_text(lines)
            return {"tokens": str(len(encoder.vocabulary.tokens))}

        dcse_tf.register_export("tokens", "what an encoder reads", write_encoder=write)

    The functions take the folder to write to, the model and the `ExportOptions`, and return facts
    for the model card, by name and in the order in which they are told. The folder is empty. It
    gets its name only when it is whole; after an error it is removed. They raise InputError if the
    format cannot hold the model, and OutputError if what was written computes something else.

    Args:
        name: the value of the option `format`.
        help: one line for `--help`.
        write_encoder: writes an `EncoderGraph`, whose attribute `source` is the folder of its
            checkpoint; None if the format is not for encoders.
        usage: for the model card: Markdown, such as code that loads "FOLDER" and embeds a
            sentence. LENGTH in it becomes the longest sentence in tokens, and "PREFIX + " what the
            encoder puts before every text, if anything.
        write_reranker, reranker_usage: the same for the re-ranker of a `RerankerFolder`.
        card: the name of the model card's file.

    Raises:
        ValueError: there is another format of this name, and no earlier version of this one.
    """
    entry = types.SimpleNamespace(**locals())
    functions = [x.write_encoder or x.write_reranker for x in (entry, FORMATS.get(name, entry))]
    if not name or not is_edited(*functions):
        raise ValueError(f"format {name!r}: expected a name that no other has")
    FORMATS[name] = entry


def _later(module: str, name: str, *needed: str) -> Write:
    """A function of this room; its module and the packages of "onnx" are imported when called."""

    def write(*arguments: Any) -> Facts:
        for package in needed:
            require(package, extra="onnx", why="`format`=onnx")
        return load(f"exporting.{module}:{name}")(*arguments)

    return write


_IMPORTS = """\
    import tensorflow as tf
    import tensorflow_text  # registers the tokenizer's operations: "Op type not registered" without
"""
register_export(
    "saved_model",
    "a TensorFlow SavedModel whose serving signature takes strings",
    usage=f"""{_IMPORTS}
    serve = tf.saved_model.load("FOLDER").signatures["serving_default"]
    embeddings = serve(sentences=tf.constant(["where is my parcel?"]))["embeddings"]
""",
    write_encoder=_later("saved_model", "write_encoder"),
    reranker_usage=f"""{_IMPORTS}
    score = tf.saved_model.load("FOLDER").signatures["score"]
    context = tf.constant([["where is my parcel?", "it left today"]])  # [n, turns], oldest first
    candidates = tf.constant([["thanks, that helps", "i like tea"]])  # [n, candidates]
    scores = score(context=context, candidates=candidates)["scores"]  # [n, candidates]

Pad lists with empty strings, which are no turns and score -1e9. A model that knows who speaks
assumes here that two speakers alternate.
""",
    write_reranker=_later("saved_model", "write_reranker"),
)
register_export(
    "sentence_transformers",
    "a folder for that library and for transformers",
    usage="""\
    from sentence_transformers import SentenceTransformer

    embeddings = SentenceTransformer("FOLDER").encode(["where is my parcel?"])
""",
    write_encoder=_later("sentence_transformers", "write_encoder"),
    reranker_usage="""\
    from sentence_transformers import CrossEncoder

    context = "where is my parcel? [EOT] it left today [EOT]"  # after every turn
    pairs = [(context, "thanks, that helps"), (context, "i like tea")]
    scores = CrossEncoder("FOLDER").predict(pairs)

The library has one limit for a pair, the model one for the context and one for the response, see
below: only pairs within both get the trained model's scores.
""",
    write_reranker=_later("sentence_transformers", "write_reranker"),
    card="README.md",
)
register_export(
    "onnx",
    "a model from token ids to embeddings or scores, with the tokenizer's files (needs pip "
    "install onnx onnxruntime)",
    usage="""\
    import numpy as np, onnxruntime, tokenizers

    tokenizer = tokenizers.Tokenizer.from_file("FOLDER/tokenizer.json")
    tokenizer.encode_special_tokens = True
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch([PREFIX + "where is my parcel?"])
    inputs = {
        "input_ids": np.array([e.ids for e in encoded], np.int64),
        "attention_mask": np.array([e.attention_mask for e in encoded], np.int64),
    }
    embeddings = onnxruntime.InferenceSession("FOLDER/model.onnx").run(None, inputs)[0]
""",
    write_encoder=_later("onnx_export", "write_encoder", "onnx", "onnxruntime"),
    reranker_usage="""\
    import dcse_tf  # needs no TensorFlow here

    reranker = dcse_tf.Reranker.load("FOLDER")
    reranker.rank(["where is my parcel?", "it left today"], ["thanks, that helps", "i like tea"])
""",
    write_reranker=_later("onnx_export", "write_reranker", "onnx", "onnxruntime"),
)
register_export(
    "static",
    "a table of token vectors, fitted to the utterances of `data_dir`; it embeds tens of "
    "thousands of sentences a second, with model2vec and in every job that takes a model",
    usage="""\
    import model2vec

    embeddings = model2vec.StaticModel.from_pretrained("FOLDER").encode(["where is my parcel?"])
""",
    write_encoder=_later("static_table", "write_encoder"),
)


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
        for name, form in (("quantize", "onnx"), ("data_dir", "static")):
            if self.is_given(name) and self.format != form:
                self.refuse(name, f"only with `format`={form}")
        if self.format == "static" and not self.data_dir:
            raise OptionError("`format`=static is fitted to utterances: give `data_dir`")
