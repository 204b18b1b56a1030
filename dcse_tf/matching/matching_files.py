"""The form of a model's matching, and its files in an encoder's folder.

matching.json says that the encoder was trained with the paper's matching;
turn_attention.safetensors contains the weights of the turns' attention, if there is one.
"""

import dataclasses
import pathlib

import safetensors

from dcse_tf.bert.bert import initialize_weights
from dcse_tf.bert.checkpoints import ATTENTION_FILE, MATCHING_FILE
from dcse_tf.bert.tensor_files import write_tensor_file
from dcse_tf.errors import InputError
from dcse_tf.files import write_json
from dcse_tf.input_files import read_json_object
from dcse_tf.matching.matching import TurnAttention

_KIND = "paper"


@dataclasses.dataclass(frozen=True)
class MatchingForm:
    """How the turns of a context are combined.

    Attributes:
        attention: weights the turns (I1); None for their mean (I2).
    """

    attention: TurnAttention | None = None

    @property
    def turns(self) -> str:
        """ "mean", or the kind of the attention."""
        return self.attention.kind if self.attention else "mean"


PAPER = MatchingForm()


def build_turn_attention(kind: str, dim: int, seed: int) -> TurnAttention:
    """A `TurnAttention` with weights drawn by (seed, position)."""
    attention = TurnAttention(kind, dtype="float32", name="turn_attention")
    attention.build((None, dim))
    initialize_weights(attention.trainable_variables, seed)
    return attention


def has_matching(folder: pathlib.Path) -> bool:
    """Whether an encoder's folder has files of its matching."""
    return any((folder / name).is_file() for name in (MATCHING_FILE, ATTENTION_FILE))


def write_matching(folder: pathlib.Path, form: MatchingForm) -> None:
    """Writes a form into an encoder's folder."""
    write_json(folder / MATCHING_FILE, {"kind": _KIND})
    if attention := form.attention:
        tensors = {variable.path: variable.numpy() for variable in attention.variables}
        settings = {"kind": attention.kind, "dim": str(attention.hidden.kernel.shape[0])}
        write_tensor_file(folder / ATTENTION_FILE, tensors, settings)


def read_matching(folder: pathlib.Path) -> MatchingForm:
    """Reads the form from an encoder's folder; the mean of the turns if there are no files of it.

    Raises:
        InputError: a file is damaged, or names a matching that is no longer supported.
    """
    path = folder / MATCHING_FILE
    if path.is_file():
        kind = read_json_object(path, "the form of a matching").get("kind")
        if kind != _KIND:
            raise InputError(
                f"{path}: the encoder was trained with the matching {kind!r:.40}, which was "
                f"removed; expected {_KIND!r} (docs/tried.md names the commit that has it)"
            )
    path = folder / ATTENTION_FILE
    if not path.is_file():
        return PAPER
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            settings = file.metadata()
            attention = build_turn_attention(settings["kind"], int(settings["dim"]), 0)
            for variable in attention.variables:
                variable.assign(file.get_tensor(variable.path))
    except (OSError, KeyError, ValueError, TypeError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: expected the weights of a turn attention: {error}") from error
    return MatchingForm(attention)
