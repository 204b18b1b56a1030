"""Averages the weights of an encoder before and after training.

Wortsman et al. 2022 ("Robust fine-tuning of zero-shot models", WiSE-FT, equation 1) interpolate
linearly between a model and one fine-tuned from it. The result keeps much of what fine-tuning
taught and loses little of what the initial model could do. Xiao et al. 2023 ("LM-Cocktail") apply
this to sentence encoders. The weights must be close to each other, so it works for an encoder and
one trained from it, but not for encoders of different origin.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from dcse_tf.baselines.registry import refuse_baseline
from dcse_tf.bert import checkpoints, sentence_modules
from dcse_tf.bert.tokenizer import number_as_written, read_vocabulary
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.bert.weights import read_bert_tensors, write_bert
from dcse_tf.encoder.load import refuse_reranker
from dcse_tf.files import atomic_directory, write_record
from dcse_tf.options import Options, option

RECORD_FILE = "merge.json"  # the model card reads it
# Entries of config.json that determine which tensors there are and what they compute.
_SHAPE = (
    *("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size"),
    *("max_position_embeddings", "type_vocab_size", "vocab_size", "layer_norm_eps"),
)


class MergeOptions(Options):
    """Averages an encoder's weights from before and after training."""

    start: str = option(
        "",
        "The encoder that training started from: a folder, a hub name, package:NAME or a run.",
        required=True,
        path="reads",
    )
    trained: str = option("", "The encoder trained from it: likewise.", required=True, path="reads")
    output_dir: str = option(
        "",
        "Folder to write the encoder to; all but its weights is the trained one's.",
        required=True,
        path="writes",
    )
    share: float = option(
        0.7,
        "Weight of the trained encoder: more favours its corpus, less what the start knew.",
        minimum=0.0,
        maximum=1.0,
    )
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")


@dataclasses.dataclass(frozen=True)
class _Checkpoint:
    """An encoder to merge; `name` is as given."""

    name: str
    folder: pathlib.Path
    vocabulary: Vocabulary
    config: dict[str, Any]
    tensors: dict[str, np.ndarray]

    @classmethod
    def read(cls, name: str, option: str) -> "_Checkpoint":
        folder = checkpoints.resolve_checkpoint(name, option)
        refuse_baseline(folder, option)
        refuse_reranker(folder, name, option)
        sentence_modules.refuse_maps(folder, option)
        config = checkpoints.read_config(folder)
        tensors = read_bert_tensors(folder, config)
        return cls(name, folder, read_vocabulary(folder), config, tensors)


def merge(options: MergeOptions) -> pathlib.Path:
    """Writes (1 - share) start + share trained as an encoder, with a record of both.

    Returns:
        The folder written.

    Raises:
        InputError: an encoder cannot be used, or the two differ in architecture or vocabulary.
        OptionError: the trained encoder is of another architecture or vocabulary than the start.
        FileExistsError: the output exists and may not be replaced.
    """
    start = _Checkpoint.read(options.start, "start")
    trained = _Checkpoint.read(options.trained, "trained")
    config, vocabulary = trained.config, trained.vocabulary
    different = [
        f"{key} {config[key]}, not {start.config[key]}"
        for key in _SHAPE
        if config[key] != start.config[key]
    ]
    prints = {each.vocabulary.with_prefix("").fingerprint() for each in (start, trained)}
    if len(prints) > 1:
        different.append("another vocabulary")
    if different:
        why = f"{'; '.join(different)}; expected an encoder trained from `start`"
        options.refuse("trained", why)

    with atomic_directory(pathlib.Path(options.output_dir), options.overwrite) as folder:
        # Everything but the weights is the trained encoder's.
        checkpoints.copy_checkpoint(trained.folder, folder, weights=False)
        number_as_written(vocabulary, config).write(folder)
        length = checkpoints.read_max_sequence_length(trained.folder)
        checkpoints.write_max_sequence_length(folder, length)
        if modules := sentence_modules.read_modules(trained.folder):
            sentence_modules.write_modules(folder, modules, config["hidden_size"])
        write_bert(folder, config, average_tensors(start.tensors, trained.tensors, options.share))
        origins = {
            role: {"name": each.name, "files": checkpoints.hash_files(each.folder)}
            for role, each in (("start", start), ("trained", trained))
        }
        write_record(folder / RECORD_FILE, {**origins, "share": options.share})
    return pathlib.Path(options.output_dir)


def average_tensors(
    start: Mapping[str, np.ndarray], trained: Mapping[str, np.ndarray], share: float
) -> dict[str, np.ndarray]:
    """(1 - share) start + share trained for each tensor; shares of 0 and 1 are bit-exact copies.

    Args:
        start, trained: float32 tensors with the same names and shapes.
        share: weight of `trained`, from 0 to 1.
    """
    if share in (0.0, 1.0):
        return dict(trained if share else start)
    start = {name: value.astype(np.float64) for name, value in start.items()}
    return {
        name: ((1.0 - share) * value + share * trained[name].astype(np.float64)).astype(np.float32)
        for name, value in start.items()
    }
