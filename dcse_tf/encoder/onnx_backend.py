"""Runs ONNX exports, without TensorFlow."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dcse_tf.bert.checkpoints import read_max_sequence_length
from dcse_tf.bert.token_rows import TextTokenizer, TokenRows
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.unknown import UnknownTokens
from dcse_tf.encoder.backend import Backend
from dcse_tf.errors import InputError, require
from dcse_tf.files import hash_bytes, hash_file
from dcse_tf.input_files import read_json_object
from dcse_tf.machine import count_threads

MODEL_FILE = "model.onnx"
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "embeddings"
# The settings of an export, and its fingerprint.
SETTINGS_FILE = "dcse_tf.json"
# Settings that an encoder's export names where they are not the default.
OF_EXPORT = ("unit_norm", "projection")
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
        inputs, output: names of the model's inputs, int64 arrays, and of its output.
        kind: the kind of model expected, for messages, such as "an encoder".

    Raises:
        InputError: onnxruntime is not installed, or the model is damaged or another.
    """

    def __init__(self, folder: pathlib.Path, inputs: Sequence[str], output: str, kind: str):
        self._inputs = inputs
        self._output = output
        self._path = folder / MODEL_FILE
        onnxruntime = require("onnxruntime", extra="onnx", why=f"{self._path}:")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = count_threads()
        # Threads that spin while they wait for work take the cores from threads that have some.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(
                str(self._path),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=_LEFT_OUT,
            )
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise InputError(f"{self._path}: onnxruntime cannot read it: {error}") from error

        takes = {value.name for value in self._session.get_inputs()}
        gives = {value.name for value in self._session.get_outputs()}
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
        """Runs the model on integer or bool arrays, one for each input."""
        given = {
            name: array.astype(np.int64) for name, array in zip(self._inputs, arrays, strict=True)
        }
        return self._session.run([self._output], given)[0]

    def fingerprint(self, *facts: object) -> str:
        """The fingerprint of the exported model, if the export is float32 and has it written.
        Otherwise, such as for int8, a hash of the file and the given facts.
        """
        if isinstance(written := self.written.get("fingerprint"), str):
            return written
        return hash_bytes(" ".join(map(str, (hash_file(self._path), *facts))).encode())


class OnnxBackend(Backend):
    """Runs an encoder's export with onnxruntime on the token ids of HuggingFace's tokenizer.

    Args:
        folder: the export's folder.
        batch_tokens: most tokens in a batch, including padding.

    Raises:
        InputError: see `OnnxFile`.
    """

    def __init__(self, folder: pathlib.Path, batch_tokens: int):
        self._file = OnnxFile(folder, INPUTS, OUTPUT, "an encoder")
        written, length = self._file.written, read_max_sequence_length(folder)
        self._vocabulary = vocabulary = read_vocabulary(folder)
        settings = {
            "max_sequence_length": length,
            "pooling": written.get("pooling"),
            "compute_dtype": written.get("compute_dtype"),
            **{name: value for name in OF_EXPORT if (value := written.get(name))},
            **({"prefix": vocabulary.prefix} if vocabulary.prefix else {}),
        }
        super().__init__(batch_tokens, settings)
        self._tokenizer = TextTokenizer(vocabulary, length)
        ends = 2 + vocabulary.count_prefix()
        self._unknown = UnknownTokens(vocabulary.unk_id, vocabulary.special.unk, ends)

    def read(self, texts: list[str]) -> tuple[TokenRows, np.ndarray, np.ndarray]:
        rows, truncated = self._tokenizer.tokenize(texts)
        self._unknown.add(rows.values, len(texts))
        return rows, rows.lengths, truncated

    def embed(self, inputs: TokenRows, tokens: int) -> np.ndarray:
        token_ids = inputs.to_table(tokens)
        return self._file.run(token_ids, token_ids != 0)

    def fingerprint(self) -> str:
        length = self.settings["max_sequence_length"]
        return self._file.fingerprint(self._vocabulary.fingerprint(), length)
