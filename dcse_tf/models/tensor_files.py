"""Files of named arrays, in the safetensors format."""

import pathlib

import numpy as np
import safetensors
import safetensors.numpy

from dcse_tf.errors import OutputError


def write_tensor_file(
    path: pathlib.Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
    """Writes arrays, contiguous ones, into a file that others may read as the umask says.

    Raises:
        OutputError: it cannot be written.
    """
    # The library makes a file of its own, for the owner alone, that takes the name.
    path.touch()
    mode = path.stat().st_mode
    try:
        safetensors.numpy.save_file(tensors, path, metadata=metadata)
    except safetensors.SafetensorError as error:
        raise OutputError(f"{path}: cannot be written: {error}") from error
    path.chmod(mode)
