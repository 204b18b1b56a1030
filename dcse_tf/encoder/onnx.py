"""How ONNX exports are run."""

import functools
import pathlib
from collections.abc import Sequence
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


class OnnxFile:
    """The model of an export, and what is written beside it.

    Args:
        folder: of the export.
        inputs: names of what the model takes, int64 arrays.
        output: name of what it gives.
        kind: what it should be, for messages.

    Raises:
        InputError: onnxruntime is not installed, or the model is damaged or of something else.
    """

    def __init__(self, folder: pathlib.Path, inputs: Sequence[str], output: str, kind: str):
        self.inputs = inputs
        self._output = output
        self._path = folder / MODEL_FILE
        self._session = _open_session(self._path)
        takes, gives = (
            {value.name for value in values}
            for values in (self._session.get_inputs(), self._session.get_outputs())
        )
        if takes != set(inputs) or output not in gives:
            raise InputError(
                f"{self._path}: takes {', '.join(sorted(takes))} and gives "
                f"{', '.join(sorted(gives))}; expected {kind} that `export` wrote, from "
                f"{', '.join(inputs[:-1])} and {inputs[-1]} to {output}"
            )

    @functools.cached_property
    def written(self) -> dict[str, Any]:
        """What the export says of itself; nothing where its model was changed since."""
        path = self._path.with_name(SETTINGS_FILE)
        written = read_json_object(path) if path.is_file() else {}
        return written if written.get("sha256") == hash_file(self._path) else {}

    def run(self, *arrays: np.ndarray) -> np.ndarray:
        """What it gives of whole numbers or truth values, an array for each of `inputs`."""
        given = {
            name: array.astype(np.int64) for name, array in zip(self.inputs, arrays, strict=True)
        }
        return self._session.run([self._output], given)[0]

    def fingerprint(self, *facts: object) -> str:
        """Of what was exported in float32; in eight bits, or where none is written, of the model
        and the facts beside it.
        """
        written = self.written.get("fingerprint")
        if isinstance(written, str):
            return written
        return hash_bytes(" ".join(map(str, (hash_file(self._path), *facts))).encode())


class OnnxBackend:
    """Runs an export by onnxruntime: tokenised here first, then batched by tokens.

    Args:
        folder: of the export.
        batch_tokens: most tokens of a batch, padding counted.

    Raises:
        InputError: see `OnnxFile`.
    """

    match = None  # there are no token embeddings

    def __init__(self, folder: pathlib.Path, batch_tokens: int):
        self.batch_tokens = batch_tokens
        self._file = OnnxFile(folder, INPUTS, OUTPUT, "an encoder")
        self._max_sequence_length = read_max_sequence_length(folder)
        self._vocabulary = read_vocabulary(folder)
        self._tokenize = self._vocabulary.make_tokenizer().as_graph(self._max_sequence_length)

    @property
    def settings(self) -> dict[str, Any]:
        """See `Backend`; None where the export does not say."""
        prefix = self._vocabulary.prefix
        return {
            "max_sequence_length": self._max_sequence_length,
            "pooling": self._file.written.get("pooling"),
            "compute_dtype": self._file.written.get("compute_dtype"),
            **({"unit_norm": True} if self._file.written.get("unit_norm") else {}),
            **({"prefix": prefix} if prefix else {}),
        }

    def read(self, sentences: list[str]) -> tuple[tf.RaggedTensor, np.ndarray]:
        """Token ids and their number."""
        token_ids = self._tokenize(tf.constant(sentences))
        return token_ids, token_ids.row_lengths().numpy()

    def embed(self, token_ids: tf.RaggedTensor, tokens: int) -> np.ndarray:
        """Embeds int32 `[n, (tokens)]`; float32 `[n, dim]`."""
        ids = token_ids.to_tensor(shape=[None, tokens]).numpy()
        return self._file.run(ids, ids != 0)

    def fingerprint(self) -> str:
        """The encoder's in float32; see `OnnxFile.fingerprint`."""
        return self._file.fingerprint(self._vocabulary.fingerprint(), self._max_sequence_length)


def _open_session(path: pathlib.Path) -> Any:
    onnxruntime = require("onnxruntime", extra="onnx", why=f"{path}:")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = (
        tf.config.threading.get_intra_op_parallelism_threads() or available_processors()
    )
    # Threads that wait for work by spinning take the processors from those that have some.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(
            str(path),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=_LEFT_OUT,
        )
    except Exception as error:  # onnxruntime's own have no common class
        raise InputError(f"{path}: onnxruntime cannot read it: {error}") from error
