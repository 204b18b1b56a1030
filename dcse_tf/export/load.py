"""Any encoder that a user names, as a function from sentences to embeddings."""

import dataclasses
import pathlib

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's operations

from dcse_tf.data.tokenization import read_vocabulary
from dcse_tf.errors import InputError
from dcse_tf.export.saved_model import SIGNATURE, is_saved_model
from dcse_tf.models.bert_encoder import build_bert_encoder, load_backbone
from dcse_tf.models.checkpoints import read_max_sequence_length, resolve_checkpoint
from dcse_tf.models.sentence_encoder import EmbedBatch, Progress, SentenceEncoder, embed_all


@dataclasses.dataclass(frozen=True)
class LoadedEncoder:
    """An encoder ready for use.

    Attributes:
        embed: strings `[n]` to float32 `[n, dim]`.
        batch_size: sentences encoded at a time.
        sentence_encoder: its parts; None for an export, which has become one graph.
    """

    embed: EmbedBatch
    batch_size: int
    sentence_encoder: SentenceEncoder | None

    def encode(self, sentences: list[str], progress: Progress | None = None) -> np.ndarray:
        """Embeds sentences; float32 `[n, dim]`."""
        return embed_all(self.embed, sentences, self.batch_size, progress)


def load_sentence_encoder(
    name: str, flag: str, max_sequence_length: int, pooling: str
) -> SentenceEncoder:
    """Builds the encoder of a checkpoint.

    Args:
        name: see `resolve_checkpoint`.
        flag: the flag that names it, for messages.
        max_sequence_length: 0 for the checkpoint's own.
        pooling: "mean" or "cls".

    Raises:
        InputError: there is no such checkpoint, or its positions do not reach that far.
    """
    folder = resolve_checkpoint(name, flag)
    backbone = load_backbone(folder)
    length = max_sequence_length or read_max_sequence_length(folder)
    if length > backbone.max_sequence_length:
        raise InputError(
            f"--max_sequence_length={length}: {folder} has {backbone.max_sequence_length} positions"
        )
    return SentenceEncoder(build_bert_encoder(backbone), read_vocabulary(folder), length, pooling)


def load_encoder(
    name: str, flag: str, max_sequence_length: int, pooling: str, batch_size: int
) -> LoadedEncoder:
    """Loads an export, a run directory, or a checkpoint; see `load_sentence_encoder`.

    Raises:
        InputError: also if a length is asked of an export, whose length is fixed.
    """
    folder = pathlib.Path(name)
    if not is_saved_model(folder):
        encoder = load_sentence_encoder(name, flag, max_sequence_length, pooling)
        return LoadedEncoder(lambda x: encoder.embed(x)["embeddings"], batch_size, encoder)
    if max_sequence_length or pooling != "mean":
        raise InputError(
            f"--{flag}={name}: an export has its length and pooling built in; leave out "
            "--max_sequence_length and --pooling, or name the run directory"
        )
    signature = tf.saved_model.load(str(folder)).signatures[SIGNATURE]
    return LoadedEncoder(lambda x: signature(sentences=x)["embeddings"], batch_size, None)
