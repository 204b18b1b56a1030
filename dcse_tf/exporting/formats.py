"""The forms in which a trained model can be written. Importing this does not import TensorFlow."""

import dataclasses
import importlib
import pathlib
from collections.abc import Callable
from typing import Any

from dcse_tf.errors import require
from dcse_tf.plugins import load_plugins

# From the folder to write to, the model and an `ExportOptions` to facts for the model card, by name
# and in the order in which they are told. Raises InputError if the format cannot hold the model,
# and OutputError if what was written computes something else.
Write = Callable[[pathlib.Path, Any, Any], dict[str, str]]


@dataclasses.dataclass(frozen=True)
class ExportFormat:
    """A form in which `export` writes a trained model.

    The folder to write to exists and is empty. It gets its name only when the format has written
    it whole; after an error it is removed.

    Attributes:
        name: its value of the option `format`.
        help: one line for `--help`.
        usage: for the model card: Markdown, such as code that loads "FOLDER" and embeds a
            sentence. LENGTH in it becomes the longest sentence in tokens, and "PREFIX + " what the
            encoder puts before every text, if anything.
        write_encoder: writes an `EncoderGraph`, whose attribute `source` is the folder of its
            checkpoint; None if the format is not for encoders.
        reranker_usage: like `usage`, for a re-ranker.
        write_reranker: writes the re-ranker of a `RerankerFolder`; None if the format is not for
            re-rankers.
        card: the name of the model card's file.

    Example:

        def write(folder, encoder, options):
            ids = [[encoder.vocabulary.cls_id, token, encoder.vocabulary.sep_id] for token in ...]
            np.save(folder / "tokens.npy", encoder.pool_tokens(tf.constant(ids)).numpy())
            return {"tokens": str(len(ids))}

        register_export(ExportFormat("table", "a table of tokens", "    np.load(...)", write))
    """

    name: str
    help: str
    usage: str = ""
    write_encoder: Write | None = None
    reranker_usage: str = ""
    write_reranker: Write | None = None
    card: str = "model_card.md"


# By name, in the order of registration.
FORMATS: dict[str, ExportFormat] = {}


def register_export(form: ExportFormat) -> None:
    """Registers a format for `export`.

    Raises:
        ValueError: there is a format of this name already.
    """
    if not form.name or form.name in FORMATS:
        raise ValueError(f"format {form.name!r}: expected a name that no other has")
    FORMATS[form.name] = form


def find_format(name: str) -> ExportFormat:
    """The format of a name that `ExportOptions` accepts."""
    load_plugins()
    return FORMATS[name]


def _later(module: str, name: str, *needed: str) -> Write:
    """A function of a module of this room, which is imported when the function is first called.

    Args:
        module, name: the module and its function.
        needed: packages of the extra "onnx" that the module needs.
    """

    def write(*arguments: Any) -> dict[str, str]:
        for package in needed:
            require(package, extra="onnx", why="`format`=onnx")
        return getattr(importlib.import_module(f"dcse_tf.exporting.{module}"), name)(*arguments)

    return write


_LOGIT = """
A score is a logit: higher is better, and 1 / (1 + exp(-score)) is the probability that the response
belongs to the context. Rank by the score itself: probabilities close to 1 round to 1 and tie.
"""

register_export(
    ExportFormat(
        "saved_model",
        "a TensorFlow SavedModel whose serving signature takes strings",
        """\
    import tensorflow as tf
    import tensorflow_text  # registers the tokenizer's operations: "Op type not registered" without

    serve = tf.saved_model.load("FOLDER").signatures["serving_default"]
    embeddings = serve(sentences=tf.constant(["where is my parcel?"]))["embeddings"]
""",
        _later("saved_model", "write_encoder"),
        """\
    import tensorflow as tf
    import tensorflow_text  # registers the tokenizer's operations: "Op type not registered" without

    model = tf.saved_model.load("FOLDER")
    scores = model.signatures["score"](
        context=tf.constant([["where is my parcel?", "it left today"]]),
        candidates=tf.constant([["thanks, that helps", "i like tea"]]),
    )["scores"]

Shapes: context [n, turns], the oldest turn first; candidates and scores [n, candidates]. Pad lists
of different lengths with empty strings: an empty string is no turn, and an empty candidate gets the
score -1e9. A model that knows who speaks assumes here that two speakers alternate; its signature
"score_speakers" also takes speakers, int32 [n, turns]: 0 for turns by the speaker of the response.
"""
        + _LOGIT,
        _later("saved_model", "write_reranker"),
    )
)
register_export(
    ExportFormat(
        "sentence_transformers",
        "a folder for that library and for transformers",
        """\
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer("FOLDER")
    embeddings = model.encode(["where is my parcel?"])
    similarity = model.similarity(embeddings, embeddings)  # cosine
""",
        _later("sentence_transformers", "write_encoder"),
        """\
    from sentence_transformers import CrossEncoder

    model = CrossEncoder("FOLDER")
    turns = ["where is my parcel?", "it left today"]
    context = " ".join(f"{turn} [EOT]" for turn in turns)
    scores = model.predict([(context, "thanks, that helps"), (context, "i like tea")])

Every turn ends with [EOT], including the last one. The library has one limit for a pair, and the
model was trained with one for the context, cut at its start, and one for the response, see below.
Only pairs within both limits get the trained model's scores, so truncate longer texts yourself.
"""
        + _LOGIT,
        _later("sentence_transformers", "write_reranker"),
        "README.md",
    )
)
register_export(
    ExportFormat(
        "onnx",
        "a model from token ids to embeddings or scores, with the tokenizer's files (needs pip "
        "install onnx onnxruntime)",
        """\
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
        _later("onnx_export", "write_encoder", "onnx", "onnxruntime"),
        """\
    import dcse_tf  # needs no TensorFlow here

    reranker = dcse_tf.Reranker.load("FOLDER")
    reranker.rank(["where is my parcel?", "it left today"], ["thanks, that helps", "i like tea"])

The file reads sequences [CLS] u1 [EOT] ... um [EOT] [SEP] response [SEP] as input_ids,
attention_mask and token_type_ids (1 after the first [SEP]), each int64 [pairs, tokens]. A model
that knows who speaks also takes speaker_ids: 1 in the turns of others than the responder, else 0.
"""
        + _LOGIT,
        _later("onnx_export", "write_reranker", "onnx", "onnxruntime"),
    )
)
register_export(
    ExportFormat(
        "static",
        "a table of token vectors, fitted to the utterances of `data_dir`; a sentence is the mean "
        "of its tokens' vectors. It embeds tens of thousands of sentences a second, with model2vec "
        "and in every job that takes a model",
        """\
    import model2vec

    embeddings = model2vec.StaticModel.from_pretrained("FOLDER").encode(["where is my parcel?"])
""",
        _later("static_table", "write_encoder"),
    )
)
