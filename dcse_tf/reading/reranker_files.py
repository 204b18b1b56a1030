"""What makes a checkpoint folder a re-ranker: reranker.json and the tensors of its head.

The rest of the folder is a BERT's: config.json, model.safetensors, and the vocabulary with [EOT] as
its last entry. This module does not import TensorFlow.
"""

import dataclasses
import pathlib
from typing import Any

from dcse_tf.bert.checkpoints import RERANKER_FILE
from dcse_tf.errors import InputError
from dcse_tf.files import write_json
from dcse_tf.input_files import read_json_object

# [CLS] and [SEP] in the first segment, [SEP] in the second, and one token of text in each.
_SHORTEST = {"first_tokens": 3, "second_tokens": 2}


@dataclasses.dataclass(frozen=True)
class RerankerSettings:
    """A re-ranker's settings beyond its BERT's configuration and weights.

    Attributes:
        architecture: "bert", a cross-encoder that reads context and response as one sequence;
            "dual_lstm" or "esim", see `dcse_tf.reading.matchers`.
        first_tokens, second_tokens: the largest number of tokens in the context and in the
            response, see `dcse_tf.bert.pairs.PairRule`.
        speakers: whether it has speaker embeddings (Gu et al. 2020, SA-BERT).
    """

    architecture: str = "bert"
    first_tokens: int = 448
    second_tokens: int = 64
    speakers: bool = False


def is_reranker(folder: pathlib.Path) -> bool:
    return (folder / RERANKER_FILE).is_file()


def read_reranker_settings(folder: pathlib.Path) -> RerankerSettings:
    """Reads reranker.json.

    Raises:
        InputError: the file or a setting is missing, or a setting is invalid.
    """
    path = folder / RERANKER_FILE
    content = read_json_object(path)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(RerankerSettings):
        value: Any = content.get(field.name)
        values[field.name] = value
        expected: Any = type(getattr(RerankerSettings, field.name))
        least: int = _SHORTEST.get(field.name, 0)
        if type(value) is not expected or (least and value < least):
            bound = f" of {least} or more" if least else ""
            raise InputError(
                f"{path}: {field.name} is {value!r:.40}, expected {expected.__name__}{bound}"
            )
    return RerankerSettings(**values)


def write_reranker_settings(folder: pathlib.Path, settings: RerankerSettings) -> None:
    """Writes reranker.json, which marks a checkpoint folder as a re-ranker."""
    write_json(folder / RERANKER_FILE, dataclasses.asdict(settings))
