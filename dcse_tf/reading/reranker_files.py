"""What makes a checkpoint folder a re-ranker: reranker.json and the tensors of its head.

The rest of the folder is a BERT's: config.json, model.safetensors, and the vocabulary with [EOT] as
its last entry. This module does not import TensorFlow.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from dcse_tf.bert.checkpoints import MATCHER_FILE, RERANKER_FILE
from dcse_tf.errors import InputError
from dcse_tf.files import write_json
from dcse_tf.input_files import read_json_object

# The settings of a DualLSTM or an ESIM, each with its least value.
LEAST_OF_MATCHER: dict[str, Any] = {
    "architecture": "",
    **dict.fromkeys(("vocabulary_size", "embedding_dim", "hidden_dim"), 1),
    "dropout": 0.0,
}


@dataclasses.dataclass(frozen=True)
class RerankerSettings:
    """A re-ranker's settings beyond its BERT's configuration and weights."""

    # "bert", a cross-encoder that reads context and response as one sequence; "dual_lstm" or
    # "esim", see `dcse_tf.reading.matchers`.
    architecture: str = "bert"
    first_tokens: int = 448  # at most in the context, see `PairRule`
    second_tokens: int = 64  # at most in the response
    speakers: bool = False  # whether it has speaker embeddings (Gu et al. 2020, SA-BERT)


def is_reranker(folder: pathlib.Path) -> bool:
    return (folder / RERANKER_FILE).is_file()


def _read_settings(path: pathlib.Path, least: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the settings of a JSON file, with for each a value of its type, which is the least of a
    number; raises InputError if the file or a setting is missing, or a setting is invalid.
    """
    content = read_json_object(path)
    for name, bound in least.items():
        value, kind = content.get(name), type(bound)
        if type(value) is not kind or (kind in (int, float) and value < bound):
            wanted = f" of {bound} or more" if kind in (int, float) else ""
            raise InputError(f"{path}: {name} is {value!r:.40}, expected {kind.__name__}{wanted}")
    return {name: content[name] for name in least}


def read_reranker_settings(folder: pathlib.Path) -> RerankerSettings:
    """Reads reranker.json; for errors see `_read_settings`."""
    # [CLS] and [SEP] in the first segment, [SEP] in the second, and one token of text in each.
    least = {"architecture": "", "first_tokens": 3, "second_tokens": 2, "speakers": False}
    return RerankerSettings(**_read_settings(folder / RERANKER_FILE, least))


def read_matcher_settings(folder: pathlib.Path) -> dict[str, Any]:
    """Reads matcher.json; for errors see `_read_settings`."""
    return _read_settings(folder / MATCHER_FILE, LEAST_OF_MATCHER)


def write_reranker_settings(folder: pathlib.Path, settings: RerankerSettings) -> None:
    """Writes reranker.json, which marks a checkpoint folder as a re-ranker."""
    write_json(folder / RERANKER_FILE, dataclasses.asdict(settings))
