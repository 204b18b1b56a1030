"""Arrays in safetensors files."""

import pathlib

import numpy as np
import safetensors
import safetensors.numpy

from dcse_tf.errors import InputError, OutputError


def write_tensor_file(
    path: pathlib.Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
    """Writes contiguous arrays to a safetensors file with the permissions that the umask gives.

    Raises:
        OutputError: it cannot be written.
    """
    # The library writes a file that only its owner can read and renames it over `path`.
    path.touch()
    mode = path.stat().st_mode
    try:
        safetensors.numpy.save_file(tensors, path, metadata=metadata)
    except safetensors.SafetensorError as error:
        raise OutputError(f"{path}: cannot be written: {error}") from error
    path.chmod(mode)


def read_tensor_file(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
