"""How an ONNX export is run over many sentences."""

import functools
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from dcse_tf.encoder.saved_model import SETTINGS_FILE
from dcse_tf.errors import InputError, require
from dcse_tf.files import hash_bytes, hash_file
from dcse_tf.input_files import read_json_object
from dcse_tf.model.checkpoints import read_max_sequence_length
from dcse_tf.model.tokenizer import read_vocabulary
from dcse_tf.processors import available_processors

MODEL_FILE = "model.onnx"
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "embeddings"
# Fused with the sum before it, a layer norm takes longer on the CPUs tried, in eight bits only,
# where nothing else hinders that fusion.
_LEFT_OUT = ["SkipLayerNormFusion"]


def is_onnx(folder: pathlib.Path) -> bool:
    """Whether a folder is an export; a checkpoint may have a model.onnx beside its weights."""
    return (folder / MODEL_FILE).is_file() and not any(folder.glob("*.safetensors"))


class OnnxBackend:
    """Runs an export by onnxruntime: tokenised here first, then batched by tokens.

    Args:
        folder: of the export.
        batch_tokens: most tokens of a batch, padding counted.

    Raises:
        InputError: onnxruntime is not installed, or the model is damaged or of something else.
    """

    match = None  # there are no token embeddings

    def __init__(self, folder: pathlib.Path, batch_tokens: int):
        self.batch_tokens = batch_tokens
        self._path = folder / MODEL_FILE
        self._session = _open_session(self._path)
        self._max_sequence_length = read_max_sequence_length(folder)
        self._vocabulary = read_vocabulary(folder)
        self._tokenizer = self._vocabulary.make_tokenizer()

    @functools.cached_property
    def _written(self) -> dict[str, Any]:
        """What the export says of itself; nothing where its model was changed since."""
        path = self._path.with_name(SETTINGS_FILE)
        written = read_json_object(path) if path.is_file() else {}
        return written if written.get("sha256") == hash_file(self._path) else {}

    @property
    def settings(self) -> dict[str, Any]:
        """See `Backend`; None where the export does not say."""
        prefix = self._vocabulary.prefix
        return {
            "max_sequence_length": self._max_sequence_length,
            "pooling": self._written.get("pooling"),
            "compute_dtype": self._written.get("compute_dtype"),
            **({"unit_norm": True} if self._written.get("unit_norm") else {}),
            **({"prefix": prefix} if prefix else {}),
        }

    def read(self, sentences: list[str]) -> tuple[tf.RaggedTensor, np.ndarray]:
        """Token ids and their number."""
        token_ids = self._tokenizer.tokenize(tf.constant(sentences), self._max_sequence_length)
        return token_ids, token_ids.row_lengths().numpy()

    def embed(self, token_ids: tf.RaggedTensor, tokens: int) -> np.ndarray:
        """Embeds int32 `[n, (tokens)]`; float32 `[n, dim]`."""
        ids = token_ids.to_tensor(shape=[None, tokens]).numpy().astype(np.int64)
        given = dict(zip(INPUTS, (ids, (ids != 0).astype(np.int64)), strict=True))
        return self._session.run([OUTPUT], given)[0]

    def fingerprint(self) -> str:
        """The encoder's in float32; in eight bits, or where none is written, of the files."""
        written = self._written.get("fingerprint")
        if isinstance(written, str):
            return written
        parts = (hash_file(self._path), self._vocabulary.fingerprint(), self._max_sequence_length)
        return hash_bytes(" ".join(map(str, parts)).encode())


def _open_session(path: pathlib.Path) -> Any:
    onnxruntime = require("onnxruntime", extra="onnx", why=f"{path}:")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = (
        tf.config.threading.get_intra_op_parallelism_threads() or available_processors()
    )
    # Threads that wait for work by spinning take the processors from those that have some.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(
            str(path),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=_LEFT_OUT,
        )
    except Exception as error:  # onnxruntime's own have no common class
        raise InputError(f"{path}: onnxruntime cannot read it: {error}") from error
    inputs, outputs = (
        {value.name for value in values} for values in (session.get_inputs(), session.get_outputs())
    )
    if inputs != set(INPUTS) or OUTPUT not in outputs:
        raise InputError(
            f"{path}: takes {', '.join(sorted(inputs))} and gives {', '.join(sorted(outputs))}; "
            f"expected an encoder that `export` wrote, from {' and '.join(INPUTS)} to {OUTPUT}"
        )
    return session
