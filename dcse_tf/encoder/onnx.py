"""Runs ONNX exports."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dcse_tf.bert.checkpoints import read_max_sequence_length
from dcse_tf.bert.token_rows import TextTokenizer, TokenRows
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.unknown import UnknownTokens
from dcse_tf.encoder.saved_model import OF_EXPORT, SETTINGS_FILE
from dcse_tf.errors import InputError, require
from dcse_tf.files import hash_bytes, hash_file
from dcse_tf.input_files import read_json_object
from dcse_tf.matching.head_files import NO_HEADS
from dcse_tf.processors import choose_threads

MODEL_FILE = "model.onnx"
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "embeddings"
# Fusing a layer norm with the sum before it was slower on the CPUs tried. It affects only int8
# models: in float32 ones the fusion does not apply anyway.
_LEFT_OUT = ["SkipLayerNormFusion"]


def is_onnx(folder: pathlib.Path) -> bool:
    """Whether a folder is an ONNX export, not a checkpoint that also has a model.onnx."""
    return (folder / MODEL_FILE).is_file() and not any(folder.glob("*.safetensors"))


class OnnxFile:
    """The model of an export, and the settings beside it.

    Args:
        folder: the export's folder.
        inputs: names of the model's inputs, int64 arrays.
        output: name of its output.
        kind: the kind of model expected, for messages, such as "an encoder".

    Raises:
        InputError: onnxruntime is not installed; the model is damaged; or it has other inputs or
            outputs.
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
                f"{', '.join(sorted(gives))}; expected {kind} that export wrote, from "
                f"{', '.join(inputs[:-1])} and {inputs[-1]} to {output}"
            )

    @functools.cached_property
    def written(self) -> dict[str, Any]:
        """The settings written with the export; empty if the model has changed since."""
        path = self._path.with_name(SETTINGS_FILE)
        written = read_json_object(path) if path.is_file() else {}
        return written if written.get("sha256") == hash_file(self._path) else {}

    def run(self, *arrays: np.ndarray) -> np.ndarray:
        """Runs the model on integer or bool arrays, one for each of `inputs`."""
        given = {
            name: array.astype(np.int64) for name, array in zip(self.inputs, arrays, strict=True)
        }
        return self._session.run([self._output], given)[0]

    def fingerprint(self, *facts: object) -> str:
        """The fingerprint of the exported model, if the export is float32 and has it written.
        Otherwise, such as for int8, a hash of the file and the given facts.
        """
        written = self.written.get("fingerprint")
        if isinstance(written, str):
            return written
        return hash_bytes(" ".join(map(str, (hash_file(self._path), *facts))).encode())


class OnnxBackend:
    """Runs an export with onnxruntime: tokenizes the sentences, then batches them by tokens.

    TensorFlow is not needed, and not imported.

    Args:
        folder: the export's folder.
        batch_tokens: most tokens in a batch, including padding.

    Raises:
        InputError: see `OnnxFile`.
    """

    match = None  # there are no token embeddings
    heads = NO_HEADS

    def __init__(self, folder: pathlib.Path, batch_tokens: int):
        self.batch_tokens = batch_tokens
        self._file = OnnxFile(folder, INPUTS, OUTPUT, "an encoder")
        self._max_sequence_length = read_max_sequence_length(folder)
        self._vocabulary = read_vocabulary(folder)
        self._tokenizer = TextTokenizer(self._vocabulary, self._max_sequence_length)
        unk_id, unk = self._vocabulary.unk_id, self._vocabulary.special.unk
        self._unknown = UnknownTokens(unk_id, unk, 2 + self._vocabulary.count_prefix())

    @property
    def settings(self) -> dict[str, Any]:
        """See `Backend`; None for a setting that the export does not record."""
        prefix, written = self._vocabulary.prefix, self._file.written
        return {
            "max_sequence_length": self._max_sequence_length,
            "pooling": written.get("pooling"),
            "compute_dtype": written.get("compute_dtype"),
            **{name: value for name in OF_EXPORT if (value := written.get(name))},
            **({"prefix": prefix} if prefix else {}),
        }

    def read(self, sentences: list[str]) -> tuple[TokenRows, np.ndarray, np.ndarray]:
        """Token ids and the number of tokens of each sentence, and whether it was truncated."""
        rows, truncated = self._tokenizer.tokenize(sentences)
        self._unknown.add(rows.values, len(sentences))
        return rows, rows.lengths, truncated

    def embed(self, token_ids: TokenRows, tokens: int) -> np.ndarray:
        """Embeds n rows of token ids to float32 `[n, dim]`."""
        ids = token_ids.to_table(tokens)
        return self._file.run(ids, ids != 0)

    def fingerprint(self) -> str:
        """See `OnnxFile.fingerprint`."""
        return self._file.fingerprint(self._vocabulary.fingerprint(), self._max_sequence_length)


def _open_session(path: pathlib.Path) -> Any:
    onnxruntime = require("onnxruntime", extra="onnx", why=f"{path}:")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = choose_threads()
    # Threads that spin while they wait for work take the cores from threads that have some.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(
            str(path),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=_LEFT_OUT,
        )
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise InputError(f"{path}: onnxruntime cannot read it: {error}") from error
