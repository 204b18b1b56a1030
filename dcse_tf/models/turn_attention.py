"""The turns' weights (I1) beside an encoder: what its matching similarity needs besides BERT."""

import pathlib

import safetensors

from dcse_tf.errors import InputError
from dcse_tf.layers import TurnAttention
from dcse_tf.models.bert_encoder import initialize_weights
from dcse_tf.models.tensor_files import write_tensor_file

_FILE = "turn_attention.safetensors"


def build_turn_attention(kind: str, dim: int, seed: int) -> TurnAttention:
    """A `TurnAttention` with weights that (seed, position) gives."""
    attention = TurnAttention(kind, dtype="float32", name="turn_attention")
    attention.build((None, dim))
    initialize_weights(attention.trainable_variables, seed)
    return attention


def write_turn_attention(folder: pathlib.Path, attention: TurnAttention) -> None:
    """Writes kind and weights into an encoder's folder."""
    tensors = {variable.path: variable.numpy() for variable in attention.variables}
    settings = {"kind": attention.kind, "dim": str(attention.hidden.kernel.shape[0])}
    write_tensor_file(folder / _FILE, tensors, settings)


def read_turn_attention(folder: pathlib.Path) -> TurnAttention | None:
    """The turns' weights of an encoder's folder; None where each turn counts the same.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / _FILE
    if not path.is_file():
        return None
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            settings = file.metadata()
            attention = build_turn_attention(settings["kind"], int(settings["dim"]), 0)
            for variable in attention.variables:
                variable.assign(file.get_tensor(variable.path))
    except (OSError, KeyError, ValueError, TypeError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: expected the weights of a turn attention: {error}") from error
    return attention
