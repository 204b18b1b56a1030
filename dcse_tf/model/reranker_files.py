"""What makes a checkpoint folder a re-ranker: reranker.json, and the tensors of its head.

The rest of the folder is a BERT's: config.json, model.safetensors, the vocabulary with [EOT] as its
last entry. Reading this file starts no TensorFlow.
"""

import dataclasses
import json
import pathlib
from typing import Any

from dcse_tf.errors import InputError
from dcse_tf.input_files import read_json_object
from dcse_tf.model.checkpoints import RERANKER_FILE

# The head and the speakers' embeddings, by names as HuggingFace gives them, without "bert.".
POOLER, CLASSIFIER = "pooler.dense", "classifier"
SPEAKER_TABLE = "embeddings.speaker_embeddings.weight"
SPEAKERS = 2  # who speaks the response, and everyone else
# [CLS] and [SEP] of the first segment, [SEP] of the second, and a token of text in each.
_SHORTEST = {"first_tokens": 3, "second_tokens": 2}


@dataclasses.dataclass(frozen=True)
class RerankerSettings:
    """What a re-ranker computes, as far as its configuration and weights do not say.

    Attributes:
        architecture: "bert" is a cross-encoder: one sequence of context and response.
        first_tokens, second_tokens: most tokens of the context and of the response, see
            `dcse_tf.model.pairs.PairRule`.
        speakers: whether it has embeddings of who speaks a token (Gu et al. 2020, SA-BERT).
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
        InputError: it is missing, or a setting is missing or of another type.
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
    """Writes reranker.json, which makes a re-ranker of a checkpoint folder."""
    text = json.dumps(dataclasses.asdict(settings), indent=2) + "\n"
    (folder / RERANKER_FILE).write_text(text, encoding="utf-8")
