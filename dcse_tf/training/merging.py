"""Averages the weights of two encoders.

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

from dcse_tf.errors import InputError
from dcse_tf.files import MadeFrom

RECORD_FILE = "merge.json"
# Entries of config.json that determine which tensors there are and what they compute.
_SHAPE = (
    *("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size"),
    *("max_position_embeddings", "type_vocab_size", "vocab_size", "layer_norm_eps"),
)


@dataclasses.dataclass(frozen=True)
class Origin:
    """One of the encoders that a merged encoder was made from.

    Attributes:
        name: its name as given by the user.
        files: SHA-256 of its files, by file name.
    """

    name: str
    files: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class MergeRecord:
    """What an encoder was made from, kept in its folder.

    Attributes:
        start: the encoder before training.
        trained: the encoder trained from it; None if the start is only centred.
        share: weight of the trained encoder, from 0 to 1; 0 without one.
        centered_on: fingerprint of the corpus whose mean embedding was subtracted; "" for none.
        utterances: number of that corpus's utterances in the mean.
    """

    start: Origin
    trained: Origin | None
    share: float
    centered_on: str = ""
    utterances: int = 0

    def write(self, folder: pathlib.Path) -> None:
        MadeFrom(dataclasses.asdict(self)).write(folder / RECORD_FILE)

    def describe(self) -> dict[str, str]:
        """The facts for a model card, without local folders of the machine it was made on."""
        facts = {"start": _describe_origin(self.start)}
        if self.trained:
            facts["trained"] = _describe_origin(self.trained)
            facts["weights"] = f"{1 - self.share:g} of the start, {self.share:g} of the trained"
        if self.centered_on:
            facts["centred"] = (
                f"without the mean embedding of {self.utterances:,} utterances of the corpus "
                f"{self.centered_on}"
            )
        return facts


def read_merge_record(folder: pathlib.Path) -> MergeRecord | None:
    """Reads the record in a merged encoder's folder; None for any other folder.

    Raises:
        InputError: the record is damaged.
    """
    path = folder / RECORD_FILE
    if not path.is_file():
        return None
    values = dict(MadeFrom.read(path).values)
    try:
        start, trained = Origin(**values.pop("start")), values.pop("trained")
        record = MergeRecord(start, Origin(**trained) if trained else None, **values)
        record.describe()  # fails if a value has the wrong type
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not the record of a merged encoder: {error!r}") from error
    return record


def _describe_origin(origin: Origin) -> str:
    name = origin.name
    if not name.startswith("package:"):
        name = "/".join(pathlib.PurePath(name).parts[-2:])
    return f"{name}, " + ", ".join(
        f"{file} {digest}" for file, digest in origin.files.items() if file.endswith("safetensors")
    )


def require_alike(start: Mapping[str, Any], trained: Mapping[str, Any], problem: str) -> None:
    """Refuses to merge encoders of different architectures.

    Args:
        start, trained: their configurations, see `read_config`.
        problem: the beginning of the error message.

    Raises:
        InputError: the architectures differ; the message names the differences.
    """
    different = [
        f"{key} {trained[key]}, not {start[key]}" for key in _SHAPE if trained[key] != start[key]
    ]
    if different:
        raise InputError(
            f"{problem}: {'; '.join(different)}; expected an encoder trained from this start"
        )


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
    averaged = {}
    for name, value in start.items():
        other = trained[name].astype(np.float64)
        averaged[name] = ((1.0 - share) * value.astype(np.float64) + share * other).astype(
            np.float32
        )
    return averaged
