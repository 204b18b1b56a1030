"""Any encoder that a user names, as a function from sentences to embeddings."""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's operations
from absl import logging

from dcse_tf.baselines.files import is_baseline, read_baseline
from dcse_tf.encoder.batching import BATCH_TOKENS, BatchEncoder, Progress, embed_all
from dcse_tf.encoder.graph import SentenceEncoder, TokenBatches
from dcse_tf.encoder.scorers import ExportScorer, ResponseScorer
from dcse_tf.errors import InputError
from dcse_tf.export.saved_model import MATCH, SETTINGS_FILE, SIGNATURE, is_saved_model
from dcse_tf.files import hash_file
from dcse_tf.input_files import read_json_object
from dcse_tf.model.affine import AffineMaps
from dcse_tf.model.bert import FusedBert, build_bert_encoder, load_backbone
from dcse_tf.model.checkpoints import (
    SentenceModules,
    read_max_sequence_length,
    read_modules,
    resolve_checkpoint,
)
from dcse_tf.model.dialogue_cse import read_turn_attention
from dcse_tf.model.tokenizer import read_vocabulary

# Contexts and candidates to the matching similarity; see `ResponseScorer.score`.
Match = Callable[[list[list[str]], list[list[str]]], np.ndarray]
_BYTES_PER_TOKEN = 4
_FILE_PATTERNS = (
    "*.json",
    "*.safetensors",
    "vocab.txt",
    "*.pb",
    "variables/*",
    "assets/*",
    "*/config.json",
    "*/*.safetensors",
)


@dataclasses.dataclass(frozen=True)
class Execution:
    """How an encoder is run; see the flags of these names."""

    batch_tokens: int = BATCH_TOKENS
    compute_dtype: str = "float32"
    jit_compile: bool = False


@dataclasses.dataclass(frozen=True)
class LoadedEncoder:
    """An encoder ready for use.

    Attributes:
        batches: the encoder, for `embed_distinct`.
        sentence_encoder: its parts, where a response can be matched by its token embeddings; None
            for an export, which has become one graph, and for a fitted baseline, whose sentence
            embeddings are another space than the tokens'.
        folder: where the model lies.
        settings: by which it computes, where they are known: max_sequence_length in tokens,
            pooling, compute_dtype.
        exported_match: the matching similarity of an export that has it.
    """

    batches: BatchEncoder
    sentence_encoder: SentenceEncoder | None
    folder: pathlib.Path
    settings: Mapping[str, Any]
    exported_match: Match | None = None

    @functools.cached_property
    def match(self) -> Match | None:
        """The model's own matching similarity; None where it has sentence embeddings alone."""
        if self.sentence_encoder is None:
            return self.exported_match
        return ResponseScorer(self.sentence_encoder, read_turn_attention(self.folder)).score

    def encode(self, sentences: list[str], progress: Progress | None = None) -> np.ndarray:
        """Embeds sentences; float32 `[n, dim]`."""
        return embed_all(self.batches, sentences, progress)

    def fingerprint(self) -> str:
        """SHA-256 over the model's files: weights, vocabulary, configuration."""
        digest = hashlib.sha256()
        files = {path for pattern in _FILE_PATTERNS for path in self.folder.glob(pattern)}
        # Not the record of the training: where an encoder comes from is not what it computes.
        for path in sorted(files - {self.folder / "training.json"}):
            digest.update(f"{path.relative_to(self.folder)} {hash_file(path)}\n".encode())
        return digest.hexdigest()


class ExportBatches:
    """An export as `embed_distinct` runs it. It tokenises inside: bytes stand for tokens.

    Args:
        embed: strings `[n]` to float `[n, dim]`.
        batch_tokens: most tokens of a batch, four bytes taken as one.
    """

    def __init__(self, embed: Callable[[tf.Tensor], tf.Tensor], batch_tokens: int):
        self.batch_tokens = batch_tokens
        self._embed = embed

    def read(self, sentences: list[str]) -> tuple[tf.Tensor, np.ndarray]:
        """The strings, and how many tokens they may have, [CLS] and [SEP] counted."""
        lengths = np.array([len(text.encode()) for text in sentences])
        return tf.constant(sentences), 2 + -(-lengths // _BYTES_PER_TOKEN)

    def embed(self, sentences: tf.Tensor, tokens: int) -> tf.Tensor:
        """Embeds strings `[n]`; float `[n, dim]`."""
        return self._embed(sentences)


def load_sentence_encoder(
    name: str, flag: str, max_sequence_length: int, pooling: str
) -> SentenceEncoder:
    """Builds the encoder of a checkpoint, in a form that can be exported.

    Args:
        name: see `resolve_checkpoint`.
        flag: the flag that names it, for messages.
        max_sequence_length: 0 for the checkpoint's own.
        pooling: "mean" or "cls".

    A sentence-transformers folder that says "cls" has it unless told otherwise.

    Raises:
        InputError: there is no such checkpoint, or its positions do not reach that far.
    """
    folder = find_encoder(name, flag)
    if is_baseline(folder) and read_baseline(folder).spec.make_encode:
        raise InputError(
            f"`{flag}`={name}: is a baseline without an encoder, which cannot be exported"
        )
    return _build(folder, max_sequence_length, pooling, None)


def find_encoder(name: str, flag: str) -> pathlib.Path:
    """The folder of a checkpoint, see `resolve_checkpoint`, or of a baseline."""
    folder = pathlib.Path(name)
    return folder if is_baseline(folder) else resolve_checkpoint(name, flag)


def _build(
    folder: pathlib.Path, max_sequence_length: int, pooling: str, compute_dtype: str | None
) -> SentenceEncoder:
    """The encoder of a folder; fused, if a type to compute in is given."""
    backbone = load_backbone(folder)
    length = max_sequence_length or read_max_sequence_length(folder)
    if length > backbone.max_sequence_length:
        raise InputError(
            f"`max_sequence_length`={length}: {folder} has {backbone.max_sequence_length} positions"
        )
    postprocessing = None
    if is_baseline(folder):
        baseline = read_baseline(folder)
        # Mean is the flag's default: it cannot be told from no flag.
        if pooling not in ("mean", baseline.pooling):
            raise InputError(
                f"`pooling`={pooling}: {folder} was fitted to embeddings with "
                f"`pooling`={baseline.pooling}"
            )
        assert baseline.pooling
        pooling, postprocessing = baseline.pooling, baseline.make_layer(backbone.hidden_dim)
    elif modules := read_modules(folder):
        pooling, postprocessing = _apply_modules(modules, folder, pooling, backbone.hidden_dim)
    encoder = FusedBert(backbone, compute_dtype) if compute_dtype else build_bert_encoder(backbone)
    return SentenceEncoder(encoder, read_vocabulary(folder), length, pooling, postprocessing)


def _apply_modules(
    modules: SentenceModules, folder: pathlib.Path, pooling: str, dim: int
) -> tuple[str, AffineMaps | None]:
    """Pooling and postprocessing of a sentence-transformers folder."""
    if modules.unit_norm:
        logging.info(
            "%s scales its embeddings to unit length (Normalize); here they keep their length, "
            "export has `unit_norm`",
            folder,
        )
    if not modules.maps:
        # Mean is the flag's default: it cannot be told from no flag. Cls was asked for.
        return modules.pooling if pooling == "mean" else pooling, None
    if pooling not in ("mean", modules.pooling):
        raise InputError(
            f"`pooling`={pooling}: {folder} has a Dense module for `pooling`={modules.pooling}"
        )
    for step in modules.maps:
        if len(step.matrix) != dim:
            raise InputError(f"{folder}: a Dense module of {len(step.matrix)}, expected {dim}")
        dim = step.matrix.shape[1]
    return modules.pooling, AffineMaps(modules.maps, name="dense")


def load_checkpoint_encoder(
    folder: pathlib.Path, max_sequence_length: int, pooling: str, execution: Execution
) -> LoadedEncoder:
    """Loads a checkpoint folder to embed many sentences; see `load_encoder`."""
    encoder = _build(folder, max_sequence_length, pooling, execution.compute_dtype)
    batches = TokenBatches(encoder, execution.batch_tokens, execution.jit_compile)
    settings = {
        "max_sequence_length": encoder.max_sequence_length,
        "pooling": encoder.pooling,
        "compute_dtype": execution.compute_dtype,
    }
    return LoadedEncoder(batches, None if encoder.postprocessing else encoder, folder, settings)


def load_encoder(
    name: str,
    flag: str,
    max_sequence_length: int,
    pooling: str,
    execution: Execution = Execution(),
) -> LoadedEncoder:
    """Loads an export, a run directory, a checkpoint or a baseline, to embed many sentences.

    Args:
        name, flag, max_sequence_length, pooling: see `load_sentence_encoder`.
        execution: how it is run.

    Raises:
        InputError: also if of an export or of word vectors is asked what they do not have.
    """
    folder = pathlib.Path(name)
    if is_saved_model(folder):
        fixed = "an export computes as it was exported; {}, or name the run directory"
        _refuse_settings(f"`{flag}`={name}: {fixed}", max_sequence_length, pooling, execution)
        signatures = tf.saved_model.load(str(folder)).signatures
        embed = signatures[SIGNATURE]
        exported = ExportBatches(lambda x: embed(sentences=x)["embeddings"], execution.batch_tokens)
        match = ExportScorer(signatures[MATCH]).score if MATCH in signatures else None
        return LoadedEncoder(exported, None, folder, _read_export_settings(folder), match)
    folder = find_encoder(name, flag)
    if is_baseline(folder) and (baseline := read_baseline(folder)).spec.make_encode:
        fixed = "a baseline without an encoder; {}"
        _refuse_settings(f"`{flag}`={name}: {fixed}", max_sequence_length, pooling, execution)
        encode = baseline.make_encode()
        batches = ExportBatches(
            lambda x: tf.constant(encode([text.decode() for text in x.numpy()])),
            execution.batch_tokens,
        )
        return LoadedEncoder(batches, None, folder, {"max_sequence_length": None})
    return load_checkpoint_encoder(folder, max_sequence_length, pooling, execution)


def _read_export_settings(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / SETTINGS_FILE
    written = read_json_object(path) if path.is_file() else {}
    return {name: written.get(name) for name in ("max_sequence_length", "pooling")}


def _refuse_settings(
    message: str, max_sequence_length: int, pooling: str, execution: Execution
) -> None:
    """Refuses what only a checkpoint can be asked for; the message has a place for the flags."""
    given = {
        "`max_sequence_length`": max_sequence_length != 0,
        "`pooling`": pooling != "mean",
        "`compute_dtype`": execution.compute_dtype != "float32",
        "`jit_compile`": execution.jit_compile,
    }
    flags = [flag for flag, is_given in given.items() if is_given]
    if flags:
        raise InputError(message.format(f"leave out {' and '.join(flags)}"))
