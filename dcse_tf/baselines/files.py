"""Reads and writes the two files of a baseline, beside those of the encoder it was fitted on."""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from dcse_tf.baselines.registry import BASELINES, BaselineOptions, BaselineSpec, Fitted
from dcse_tf.bert.tensor_files import read_tensor_file, write_tensor_file
from dcse_tf.errors import InputError
from dcse_tf.input_files import read_json_object
from dcse_tf.plugins import load_plugins

_DESCRIPTION_FILE = "baseline.json"
_TENSORS_FILE = "baseline.safetensors"


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A baseline that was read from a folder.

    Attributes:
        folder: the folder.
        spec: its kind.
        pooling: the pooling of the encoder's token embeddings; None without an encoder.
        fitted: the fitted values.
    """

    folder: pathlib.Path
    spec: BaselineSpec
    pooling: str | None
    fitted: Fitted

    def make_layer(self, dim: int) -> Any:
        """Builds the Keras layer after the pooling, from embeddings `[n, dim]` to `[n, k]`.

        Raises:
            InputError: a file is damaged, or was fitted to embeddings of another dimension.
        """
        assert self.spec.make_layer
        return self._make(self.spec.make_layer, self.fitted, dim)

    def make_encode(self) -> Callable[[list[str]], np.ndarray]:
        """Makes the function from texts to embeddings, float32 `[n, k]`, if there is no encoder.

        Raises:
            InputError: a file is damaged.
        """
        assert self.spec.make_encode
        return self._make(self.spec.make_encode, self.fitted)

    def _make(self, make: Callable[..., Any], *arguments: Any) -> Any:
        path = self.folder / _TENSORS_FILE
        try:
            return make(*arguments)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        except (KeyError, TypeError, IndexError) as error:
            raise InputError(f"{path}: not a file of fit_baseline: {error!r}") from error


def is_baseline(folder: pathlib.Path) -> bool:
    return (folder / _DESCRIPTION_FILE).is_file()


def refuse_baseline(folder: pathlib.Path, name: str) -> None:
    """Raises InputError if the folder is a baseline, whose fitted part would be lost."""
    if is_baseline(folder):
        raise InputError(f"`{name}`={folder}: is a fitted baseline; give the encoder it is made of")


def read_baseline(folder: pathlib.Path) -> Baseline:
    """Reads the baseline of a folder that has one.

    Raises:
        InputError: a file is damaged, or the baseline's kind is not registered.
    """
    path = folder / _DESCRIPTION_FILE
    content = read_json_object(path, "a file of fit_baseline")
    load_plugins()
    kind, pooling, facts = (content.get(name) for name in ("kind", "pooling", "facts"))
    spec = BASELINES.get(str(kind))
    if spec is None:
        known = ", ".join(map(repr, BASELINES))
        raise InputError(f"{path}: not a file of fit_baseline: {kind!r:.40}, expected {known}")
    if pooling not in (("mean", "cls") if spec.make_layer else (None,)):
        raise InputError(f"{path}: not a file of fit_baseline: pooling {pooling!r:.40}")
    if not isinstance(facts, dict):
        raise InputError(f"{path}: not a file of fit_baseline: expected an object of facts")
    tensors = read_tensor_file(folder / _TENSORS_FILE)
    return Baseline(folder, spec, pooling, Fitted(tensors, facts))


def write_baseline(
    folder: pathlib.Path,
    kind: str,
    fitted: Fitted,
    pooling: str | None = None,
    options: BaselineOptions | None = None,
) -> None:
    """Writes the files that `read_baseline` reads.

    Args:
        folder: the folder to write to; the caller copies the encoder's files there.
        kind: the name of the baseline.
        fitted: the fitted values.
        pooling: the pooling of the encoder; None without an encoder.
        options: the settings of the fit, for the record.
    """
    write_tensor_file(folder / _TENSORS_FILE, dict(fitted.tensors))
    description = {"kind": kind, "pooling": pooling, "facts": dict(fitted.facts)}
    if options:
        description["settings"] = options.to_dict()
    text = json.dumps(description, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / _DESCRIPTION_FILE).write_text(text + "\n", encoding="utf-8")
