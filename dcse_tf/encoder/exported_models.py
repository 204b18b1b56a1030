"""Backends that run exports: ONNX and static ones without TensorFlow, and SavedModels."""

import functools
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers

from dcse_tf.bert.checkpoints import ONNX_FILE, read_max_sequence_length
from dcse_tf.bert.tensor_files import read_tensor_file
from dcse_tf.bert.token_rows import TextTokenizer, TokenRows, UnknownTokens
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.encoder.backend import Backend, FunctionBackend, hash_arrays, normalize
from dcse_tf.errors import InputError, name_input, require
from dcse_tf.files import hash_bytes, hash_file
from dcse_tf.input_files import read_json_object
from dcse_tf.machine import count_threads

# The settings of an ONNX export or a SavedModel, and its fingerprint.
SETTINGS_FILE = "dcse_tf.json"
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "embeddings"
# Fusing a layer norm with the sum before it was slower on the CPUs tried. It affects only int8
# models: in float32 ones the fusion does not apply anyway.
_LEFT_OUT = ["SkipLayerNormFusion"]

# The signature of a SavedModel, see `dcse_tf.exporting.saved_model`: an encoder's or a re-ranker's.
EMBED, MATCH, SCORE = "serving_default", "match", "score"

# A static export is in model2vec's format.
STATIC_TYPE, STATIC_FILE, STATIC_TABLE = "model2vec", "model.safetensors", "embeddings"
# Large, because the overhead of a call exceeds the cost of its tokens.
_STATIC_TOKENS = 32_768


def _of_export(written: dict[str, Any]) -> dict[str, Any]:
    """The settings that an encoder's export tells, some only where they are not the default."""
    told = {x: written[x] for x in ("prefix", "unit_norm", "projection") if written.get(x)}
    return {x: written.get(x) for x in ("max_sequence_length", "pooling")} | told


def is_onnx(folder: pathlib.Path) -> bool:
    """Whether a folder is an ONNX export, not a checkpoint that also has a model.onnx."""
    return (folder / ONNX_FILE).is_file() and not any(folder.glob("*.safetensors"))


class OnnxFile:
    """The model of an export and the settings beside it, given the names of the inputs, int64
    arrays, and of the output; `kind` is what messages expect, such as "an encoder". Raises
    InputError if onnxruntime is not installed, or the model is damaged or another.
    """

    def __init__(self, folder: pathlib.Path, inputs: Sequence[str], output: str, kind: str):
        self._inputs = inputs
        self._output = output
        self._path = folder / ONNX_FILE
        onnxruntime = require("onnxruntime", extra="onnx", why=f"{self._path}:")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = count_threads()
        # Threads that spin while they wait for work take the cores from threads that have some.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        settings = {"providers": ["CPUExecutionProvider"], "disabled_optimizers": _LEFT_OUT}
        # Neither onnxruntime's exceptions nor those of tokenizers have a common base class.
        with name_input(f"{self._path}: onnxruntime cannot read it", Exception):
            self._session = onnxruntime.InferenceSession(str(self._path), options, **settings)

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
        written = read_json_object(self._path.parent / SETTINGS_FILE, optional=True)
        return written if written.get("sha256") == hash_file(self._path) else {}

    def run(self, *arrays: np.ndarray) -> np.ndarray:
        """Runs the model on integer or bool arrays, one for each input."""
        pairs = zip(self._inputs, arrays, strict=True)
        given = {name: array.astype(np.int64) for name, array in pairs}
        return self._session.run([self._output], given)[0]

    def fingerprint(self, *facts: object) -> str:
        """The fingerprint of the exported model, if the export is float32 and has it written.
        Otherwise, such as for int8, a hash of the file and the given facts.
        """
        if isinstance(written := self.written.get("fingerprint"), str):
            return written
        return hash_bytes(" ".join(map(str, (hash_file(self._path), *facts))).encode())


class OnnxBackend(Backend):
    """Runs an encoder's export with onnxruntime on the token ids of HuggingFace's tokenizer; for
    the arguments see `Backend`, for errors `OnnxFile`.
    """

    def __init__(self, folder: pathlib.Path, batch_tokens: int):
        self._file = OnnxFile(folder, INPUTS, OUTPUT, "an encoder")
        length, vocabulary = read_max_sequence_length(folder), read_vocabulary(folder)
        own = {"max_sequence_length": length, "prefix": vocabulary.prefix}
        written = {"compute_dtype": None, **self._file.written, **own}
        settings = {"compute_dtype": written["compute_dtype"], **_of_export(written)}
        facts = vocabulary.fingerprint(), length
        super().__init__(batch_tokens, settings, functools.partial(self._file.fingerprint, *facts))
        self._tokenizer = TextTokenizer(vocabulary, length)
        self._unknown = UnknownTokens.of(vocabulary)

    def read(self, texts: list[str]) -> tuple[TokenRows, np.ndarray, np.ndarray]:
        rows, truncated = self._tokenizer.tokenize(texts)
        self._unknown.add(rows.values, len(texts))
        return rows, rows.lengths, truncated

    def embed(self, inputs: TokenRows, tokens: int) -> np.ndarray:
        token_ids = inputs.to_table(tokens)
        return self._file.run(token_ids, token_ids != 0)


def load_saved_model(folder: pathlib.Path, batch_tokens: int) -> FunctionBackend:
    """Loads an export that tokenizes by itself; InputError if it embeds no sentences."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers the tokenizer's operations

    signatures = tf.saved_model.load(str(folder)).signatures
    if EMBED not in signatures:
        kind = "of a re-ranker" if SCORE in signatures else "of something else"
        raise InputError(f"{folder}: is an export {kind}, which embeds no sentences")
    written = read_json_object(folder / SETTINGS_FILE, optional=True)

    def encode(texts: list[str]) -> np.ndarray:
        return signatures[EMBED](sentences=tf.constant(texts))["embeddings"].numpy()

    def fingerprint() -> str:
        # What the export records; else a hash of the files that decide what it computes.
        if isinstance(recorded := written.get("fingerprint"), str):
            return recorded
        patterns = ("*.pb", "variables/*", "assets/*")
        paths = sorted({path for pattern in patterns for path in folder.glob(pattern)})
        return hash_bytes(" ".join(map(hash_file, paths)).encode())

    return FunctionBackend(encode, fingerprint, batch_tokens, _of_export(written))


def load_static(folder: pathlib.Path) -> FunctionBackend:
    """Loads a folder that `export --format=static` or model2vec wrote: an embedding is the mean of
    token vectors. The unknown token is ignored, as in model2vec.
    """
    path = folder / STATIC_FILE
    tensors = read_tensor_file(path)
    table = tensors.get(STATIC_TABLE)
    if table is None or table.ndim != 2:
        raise InputError(f"{path}: expected a table of token vectors, {STATIC_TABLE}")
    if "mapping" in tensors:
        table = table[tensors["mapping"]]
    table = table.astype(np.float32)
    if "weights" in tensors:
        table = table * tensors["weights"].astype(np.float32)[:, None]

    path = folder / "tokenizer.json"
    with name_input(f"{path}: not a tokenizer that can be read", Exception):
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    if tokenizer.get_vocab_size() > len(table):
        raise InputError(
            f"{path}: {tokenizer.get_vocab_size()} tokens, and {len(table)} token vectors"
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    model, config = read_json_object(path)["model"], read_json_object(folder / "config.json")
    unk_id = model.get("unk_id", tokenizer.get_vocab().get(model.get("unk_token"), -1))
    unk_id = -1 if unk_id is None else unk_id
    unknown = UnknownTokens(unk_id, model.get("unk_token") or "unknown")
    unit_norm, characters = bool(config.get("normalize")), None
    if longest := config.get("max_length", 512):  # model2vec cuts by characters first
        tokenizer.enable_truncation(longest)
        characters = longest * int(np.median([*map(len, tokenizer.get_vocab())]))

    def encode(texts: list[str]) -> np.ndarray:
        import scipy.sparse  # takes a fifth of a second

        texts = [text[:characters] for text in texts]
        lists = [x.ids for x in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        ids = np.fromiter(itertools.chain.from_iterable(lists), np.int32)
        unknown.add(ids, len(texts))
        known = ids != unk_id
        # The start of each text's known tokens, and the end of the last text's.
        starts = np.insert(np.cumsum(known), 0, 0)[np.cumsum([0, *map(len, lists)])]
        lengths = np.diff(starts)
        shares = (1 / np.repeat(lengths, lengths)).astype(np.float32)
        shape = len(texts), len(table)
        means = scipy.sparse.csr_matrix((shares, ids[known], starts), shape) @ table
        return normalize(means).astype(np.float32) if unit_norm else means

    facts: dict[str, Any] = {"tokenizer": hash_file(path), "unit_norm": unit_norm}
    facts |= {"max_length": longest} if longest else {}
    settings = {"unit_norm": True} if unit_norm else {}
    fingerprint = functools.partial(hash_arrays, {STATIC_TABLE: table}, facts)
    return FunctionBackend(encode, fingerprint, _STATIC_TOKENS, settings)
