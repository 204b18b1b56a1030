"""What several tasks write: an encoder's folder.

Unlike the tasks' own modules, which commands import for their options, this one needs TensorFlow.
"""

import pathlib
from typing import Any

from dcse_tf.bert import bert, checkpoints
from dcse_tf.bert.tokenizer import number_as_written
from dcse_tf.files import write_json
from dcse_tf.matching.equations import write_matching
from dcse_tf.matching.head_files import list_head_maps, write_heads
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.tasks.spec import Setup


def _read_config(setup: Setup[TrainOptions]) -> dict[str, Any]:
    """The content of config.json for the BERT that is trained."""
    backbone = setup.backbone
    if not setup.source:
        sizes = backbone.num_layers, backbone.hidden_dim, backbone.vocabulary_size
        return bert.make_bert_config(*sizes)
    return {**checkpoints.read_config(setup.source), "vocab_size": backbone.vocabulary_size}


def write_config(setup: Setup[Any], folder: pathlib.Path, **entries: Any) -> None:
    """Writes config.json for the BERT that is trained, with further entries."""
    write_json(folder / "config.json", {**_read_config(setup), **entries}, sort_keys=True)


def write_tokenization(setup: Setup[Any], folder: pathlib.Path) -> None:
    """Writes the encoder's vocabulary and the length to which it truncates sentences."""
    number_as_written(setup.vocabulary, _read_config(setup)).write(folder)
    checkpoints.write_max_sequence_length(folder, setup.manifest.max_sequence_length)


def write_sentence_encoder(setup: Setup[TrainOptions], folder: pathlib.Path) -> None:
    """Writes the encoder as an ordinary checkpoint, for the options `encoder` and `model`."""
    parts = setup.parts
    mean = parts.centering.mean().numpy() if parts.centering else None
    bert.save_backbone(folder, setup.backbone, _read_config(setup), mean)
    if parts.matching:
        write_matching(folder, parts.matching)
    if parts.heads:
        write_heads(folder, list_head_maps(parts.heads))
    write_tokenization(setup, folder)
