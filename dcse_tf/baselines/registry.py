"""What a baseline consists of, those that `fit_baseline` knows, and their files."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dcse_tf.bert.encoder_options import EncoderOptions
from dcse_tf.bert.tensor_files import read_tensor_file, write_tensor_file
from dcse_tf.errors import InputError
from dcse_tf.files import write_json
from dcse_tf.input_files import read_json_object
from dcse_tf.options import Options, is_edited, load_plugins, option

_DESCRIPTION_FILE, _TENSORS_FILE = "baseline.json", "baseline.safetensors"


class BaselineOptions(Options):
    """Settings of every baseline."""

    output_dir: str = option(
        "", "Folder to write, for `model` of evaluate and embed.", required=True, path="writes"
    )
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")


class FittedToEmbeddings(BaselineOptions, EncoderOptions):
    """Settings of a baseline that is a layer after an encoder's pooling."""

    encoder: str = option(
        "", "Checkpoint: a folder, a hub name, package:NAME or a run.", required=True, path="reads"
    )
    data_dir: str = option(
        "", "Folder of prepare_data, whose train split is used.", required=True, path="reads"
    )
    max_sentences: int = option(
        100_000, "Distinct utterances used at most, drawn by `seed`. 0: all.", minimum=0
    )
    seed: int = option(0, "Seed for drawing the utterances and for the fit.", minimum=0)
    batch_tokens: int = option(2048, "Tokens encoded at a time, including padding.", minimum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.projection:
            self.refuse("projection", "a baseline is fitted to embeddings without a head")


@dataclasses.dataclass(frozen=True)
class Fitted:
    """The fitted values, as they are stored: arrays by name, and `facts`, JSON values by name; and
    a sentence about the fit to show to the user, which is not stored.
    """

    tensors: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]
    summary: str = ""


@dataclasses.dataclass(frozen=True)
class BaselineSpec:
    """One kind of baseline: a Keras layer after the pooling of an encoder, or a function from texts
    to embeddings without an encoder, which cannot be exported. docs/extending.md has an example.

    Attributes:
        name, help: its value of `kind`, and one line for `--help`.
        options: a subclass of `FittedToEmbeddings` for a layer, otherwise of `BaselineOptions`.
        fit: (options, corpus) -> `Fitted`. `corpus.embeddings()` are the encoder's of the distinct
            utterances of the train split, float32 `[utterances, dim]`; without one, it is None.
        make_layer: (fitted, dimensions of the encoder) -> a built layer from `[n, dim]` to `[n,
            k]`, which sentence-transformers and ONNX can have if it is an `AffineMaps`. A KeyError,
            TypeError or IndexError counts as a damaged file.
        make_encode: fitted -> a function from texts to embeddings, float32 `[n, k]`.
    """

    name: str
    help: str
    options: type[BaselineOptions]
    fit: Callable[[Any, Any], Fitted]
    make_layer: Callable[[Fitted, int], Any] | None = None
    make_encode: Callable[[Fitted], Callable[[list[str]], np.ndarray]] | None = None

    def __post_init__(self) -> None:
        if (self.make_layer is None) == (self.make_encode is None):
            raise ValueError(f"baseline {self.name}: give make_layer or make_encode, not both")


BASELINES: dict[str, BaselineSpec] = {}


def register_baseline(spec: BaselineSpec) -> None:
    """Registers a baseline for `fit_baseline` and for all jobs that load an encoder, again if its
    `fit` was edited; raises ValueError if another has its name or its options.
    """
    known = BASELINES.get(spec.name, spec)
    same = [x for x in BASELINES.values() if x is not known and x.options is spec.options]
    if not spec.name or same or not is_edited(spec.fit, known.fit):
        raise ValueError(f"baseline {spec.name!r}: expected a name and options that no other has")
    BASELINES[spec.name] = spec


class FitBaselineOptions(Options):
    """Stands for the options of the baseline that `kind` chooses."""

    variants = ("kind", BASELINES)

    kind: str | None = option(
        None, "Which baseline; plain BERT needs no fitting.", choices=BASELINES, required=True
    )


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A baseline that was read from a folder."""

    folder: pathlib.Path
    spec: BaselineSpec
    pooling: str | None  # of the encoder's token embeddings; None without an encoder
    fitted: Fitted

    def make(self, dim: int = 0) -> Any:
        """The function from texts to embeddings, or the Keras layer after the pooling of an encoder
        of `dim` dimensions. Raises InputError if a file is damaged, or fits other dimensions.
        """
        path, spec = self.folder / _TENSORS_FILE, self.spec
        try:
            if spec.make_layer:
                return spec.make_layer(self.fitted, dim)
            assert spec.make_encode
            return spec.make_encode(self.fitted)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        except (KeyError, TypeError, IndexError) as error:
            raise InputError(f"{path}: not a file of fit_baseline: {error!r}") from error


def is_baseline(folder: pathlib.Path) -> bool:
    return (folder / _DESCRIPTION_FILE).is_file()


def read_baseline(folder: pathlib.Path) -> Baseline:
    """Reads the baseline of a folder; raises InputError if a file is damaged, or its kind is not
    registered.
    """
    path = folder / _DESCRIPTION_FILE
    content = read_json_object(path, "a file of fit_baseline")
    load_plugins()
    kind, pooling, facts = (content.get(name) for name in ("kind", "pooling", "facts"))
    spec, problem = BASELINES.get(str(kind)), f"{path}: not a file of fit_baseline"
    if spec is None:
        raise InputError(f"{problem}: {kind!r:.40}, expected {', '.join(map(repr, BASELINES))}")
    if pooling not in (("mean", "cls") if spec.make_layer else (None,)):
        raise InputError(f"{problem}: pooling {pooling!r:.40}")
    if not isinstance(facts, dict):
        raise InputError(f"{problem}: expected an object of facts")
    return Baseline(folder, spec, pooling, Fitted(read_tensor_file(folder / _TENSORS_FILE), facts))


def write_baseline(
    folder: pathlib.Path, kind: str, fitted: Fitted, pooling: str | None = None, **record: Any
) -> None:
    """Writes the files that `read_baseline` reads; `record`, such as settings, is kept in them."""
    write_tensor_file(folder / _TENSORS_FILE, dict(fitted.tensors))
    description = {"kind": kind, "pooling": pooling, "facts": dict(fitted.facts)}
    write_json(folder / _DESCRIPTION_FILE, description | record, sort_keys=True)
