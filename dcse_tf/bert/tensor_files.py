"""Arrays in safetensors files."""

import pathlib

import numpy as np
import safetensors
import safetensors.numpy

from dcse_tf.errors import InputError, name_input, name_output


def write_tensor_file(
    path: pathlib.Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
    """Writes contiguous arrays to a safetensors file with the permissions that the umask gives;
    raises OutputError if it cannot.
    """
    # The library writes a file that only its owner can read and renames it over `path`.
    path.touch()
    mode = path.stat().st_mode
    with name_output(path, safetensors.SafetensorError):
        safetensors.numpy.save_file(tensors, path, metadata=metadata)
    path.chmod(mode)


def read_tensor_file(path: pathlib.Path, finite: bool = True) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file; raises InputError if it cannot be read or, unless `finite`
    is False, holds a number that is not finite.
    """
    with name_input(f"{path}: cannot be read", OSError, TypeError, safetensors.SafetensorError):
        tensors = safetensors.numpy.load_file(path)
    for name, value in tensors.items() if finite else ():
        require_finite(value, name, str(path))
    return tensors


def require_finite(value: np.ndarray, name: str, source: str) -> None:
    """Raises InputError for an array with NaN or infinity, which would make every result NaN."""
    if broken := value.size - np.count_nonzero(np.isfinite(value)):
        raise InputError(
            f"{source}: {name} holds {broken} numbers that are not finite, of {value.size}; "
            "expected the weights of a training that did not diverge"
        )
