"""The form of a model's matching, and its files in an encoder's folder.

matching.json contains the form and, for the residual form, lambda; turn_attention.safetensors
contains the weights of the turns' attention, if there is one. A folder without either has the
paper's form.
"""

import dataclasses
import pathlib

import safetensors

from dcse_tf.bert.bert import initialize_weights
from dcse_tf.bert.checkpoints import ATTENTION_FILE, MATCHING_FILE
from dcse_tf.bert.options import MATCHINGS
from dcse_tf.bert.tensor_files import write_tensor_file
from dcse_tf.errors import InputError
from dcse_tf.files import write_json
from dcse_tf.input_files import read_json_object
from dcse_tf.matching.matching import TurnAttention
from dcse_tf.matching.matching_forms import ResidualWeight


@dataclasses.dataclass(frozen=True)
class MatchingForm:
    """How a response is matched with its context.

    Attributes:
        kind: "paper", the cosine of the response and M R (equations 3 to 7); "residual", that of
            the response and lambda U + M R; "context", that of the context and M R; "maxsim", late
            interaction. Only the first is the paper's.
        attention: weights the turns (I1); None for their mean (I2) and for "maxsim".
        residual: lambda, for "residual" only.

    Raises:
        ValueError: the kind is unknown or does not allow the other attributes.
    """

    kind: str = "paper"
    attention: TurnAttention | None = None
    residual: ResidualWeight | None = None

    def __post_init__(self) -> None:
        if self.kind not in MATCHINGS:
            raise ValueError(f"matching {self.kind!r}, expected one of {', '.join(MATCHINGS)}")
        if (self.kind == "residual") != (self.residual is not None):
            raise ValueError("lambda belongs to the matching 'residual', and to no other")
        if self.kind == "maxsim" and self.attention:
            raise ValueError("with the matching 'maxsim' each turn counts the same")

    def describe(self) -> str:
        """A few words, such as "residual (lambda 1.25), turns by attention"."""
        weight = f" (lambda {float(self.residual.value()):.4g})" if self.residual else ""
        return f"{self.kind}{weight}, turns by {self.attention.kind if self.attention else 'mean'}"


PAPER = MatchingForm()


def make_matching_form(kind: str, attention: TurnAttention | None = None) -> MatchingForm:
    """A form with its initial values at the start of training: lambda is 1."""
    residual = ResidualWeight(dtype="float32") if kind == "residual" else None
    return MatchingForm(kind, attention, residual)


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
    content: dict[str, str | float] = {"kind": form.kind}
    if form.residual:
        content["lambda"] = float(form.residual.value())
    write_json(folder / MATCHING_FILE, content)
    if form.attention:
        _write_attention(folder / ATTENTION_FILE, form.attention)


def read_matching(folder: pathlib.Path) -> MatchingForm:
    """Reads the form from an encoder's folder; the paper's form if there are no files of it.

    Raises:
        InputError: a file is damaged, or the two contradict each other.
    """
    path, attention = folder / MATCHING_FILE, _read_attention(folder / ATTENTION_FILE)
    if not path.is_file():
        return MatchingForm(attention=attention)
    content = read_json_object(path, "the form of a matching")
    residual = None
    try:
        if "lambda" in content:
            residual = ResidualWeight(float(content["lambda"]), dtype="float32")
        return MatchingForm(content["kind"], attention, residual)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not the form of a matching: {error}") from error


def _write_attention(path: pathlib.Path, attention: TurnAttention) -> None:
    tensors = {variable.path: variable.numpy() for variable in attention.variables}
    settings = {"kind": attention.kind, "dim": str(attention.hidden.kernel.shape[0])}
    write_tensor_file(path, tensors, settings)


def _read_attention(path: pathlib.Path) -> TurnAttention | None:
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
