"""Loads static encoders in model2vec's format: an embedding is the mean of token vectors."""

import itertools
import pathlib
from typing import Any

import numpy as np
import tokenizers

from dcse_tf.bert.tensor_files import read_tensor_file
from dcse_tf.bert.unknown import UnknownTokens
from dcse_tf.encoder.backend import FunctionBackend, hash_arrays
from dcse_tf.encoder.unit_length import normalize
from dcse_tf.errors import InputError
from dcse_tf.files import hash_file
from dcse_tf.input_files import read_json_object

MODEL_TYPE = "model2vec"
WEIGHTS_FILE, TABLE = "model.safetensors", "embeddings"
# Large, because the overhead of a call exceeds the cost of its tokens.
_BATCH_TOKENS = 32_768


def is_static(folder: pathlib.Path) -> bool:
    path = folder / "config.json"
    return path.is_file() and read_json_object(path).get("model_type") == MODEL_TYPE


def load_static(folder: pathlib.Path) -> FunctionBackend:
    """Loads a folder that `export --format=static` or model2vec wrote.

    The unknown token is ignored, as in model2vec.

    Raises:
        InputError: a file is missing, damaged or in another format.
    """
    path = folder / WEIGHTS_FILE
    tensors = read_tensor_file(path)
    table = tensors.get(TABLE)
    if table is None or table.ndim != 2:
        raise InputError(f"{path}: expected a table of token vectors, {TABLE}")
    if "mapping" in tensors:
        table = table[tensors["mapping"]]
    table = table.astype(np.float32)
    if "weights" in tensors:
        table = table * tensors["weights"].astype(np.float32)[:, None]

    path = folder / "tokenizer.json"
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library's exceptions have no common base class
        raise InputError(f"{path}: not a tokenizer that can be read: {error}") from error
    if tokenizer.get_vocab_size() > len(table):
        raise InputError(
            f"{path}: {tokenizer.get_vocab_size()} tokens, and {len(table)} token vectors"
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    model: Any = tokenizer.model
    unk = getattr(model, "unk_token", None)
    unk_id = tokenizer.token_to_id(unk) if unk else None
    unk_id = -1 if unk_id is None else unk_id
    unknown = UnknownTokens(unk_id, str(unk))
    unit_norm = bool(read_json_object(folder / "config.json").get("normalize"))

    def encode(texts: list[str]) -> np.ndarray:
        import scipy.sparse  # takes a fifth of a second

        found = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        lists = [each.ids for each in found]
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

    facts = {"tokenizer": hash_file(path), "unit_norm": unit_norm}
    settings = {"unit_norm": True} if unit_norm else {}
    return FunctionBackend(
        encode, lambda: hash_arrays({TABLE: table}, facts), _BATCH_TOKENS, settings
    )
