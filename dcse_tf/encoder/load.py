"""Loads the backend for a model that a user names; only this module knows all kinds of models.

What needs TensorFlow, and the baselines, are imported for the models that need them.
"""

import pathlib

from dcse_tf.bert.checkpoints import resolve_checkpoint
from dcse_tf.encoder.batching import Backend
from dcse_tf.encoder.functions import FunctionBackend
from dcse_tf.encoder.onnx import OnnxBackend, is_onnx
from dcse_tf.encoder.options import ModelOptions
from dcse_tf.encoder.saved_model import SavedModelBackend, is_saved_model
from dcse_tf.encoder.static import is_static, load_static
from dcse_tf.errors import InputError, name_missing_tensorflow
from dcse_tf.reading.reranker_files import is_reranker

_FIXED = "an export computes as it was exported; {}, or name the run directory"


def load_backend(options: ModelOptions, option: str = "model") -> Backend:
    """Loads an export, a run directory, a checkpoint or a baseline, to embed many sentences.

    Args:
        options: the model and its settings.
        option: the option that names the model, for messages.

    Raises:
        InputError: there is no such model; it is damaged; or it does not support a setting, such
            as another pooling than it was fitted with or more positions than it has.
    """
    folder = pathlib.Path(options.model)
    if is_saved_model(folder):
        _refuse_settings(options, _FIXED)
        with name_missing_tensorflow(f"`{option}`={options.model}: a SavedModel"):
            return SavedModelBackend(folder, options.batch_tokens)
    if is_onnx(folder):
        refuse_reranker(folder, options.model, option)
        _refuse_settings(options, _FIXED)
        return OnnxBackend(folder, options.batch_tokens)

    from dcse_tf.baselines.files import is_baseline, read_baseline

    folder = find_folder(options.model, option)
    refuse_reranker(folder, options.model, option)
    if is_static(folder):
        _refuse_settings(options, _FIXED)
        return load_static(folder)
    baseline = read_baseline(folder) if is_baseline(folder) else None
    if baseline and baseline.spec.make_encode:
        _refuse_settings(options, "is a baseline without an encoder; {}")
        encode, fitted = baseline.make_encode(), baseline.fitted
        return FunctionBackend(encode, fitted.facts, fitted.tensors, options.batch_tokens)

    with name_missing_tensorflow(f"`{option}`={options.model}: a checkpoint"):
        from dcse_tf.encoder.checkpoint import load_checkpoint
    return load_checkpoint(folder, options)


def find_folder(name: str, option: str) -> pathlib.Path:
    """The folder of a baseline, or of a checkpoint, see `resolve_checkpoint`."""
    from dcse_tf.baselines.files import is_baseline

    folder = pathlib.Path(name)
    return folder if is_baseline(folder) else resolve_checkpoint(name, option)


def refuse_reranker(folder: pathlib.Path, name: str, option: str) -> None:
    """Raises InputError for a re-ranker. Its BERT was trained to score a pair at [CLS], so
    embeddings computed with it would be meaningless.
    """
    if is_reranker(folder):
        raise InputError(
            f"`{option}`={name}: is a re-ranker, which scores responses and embeds no sentences; "
            "evaluate takes it, search as `reranker`, and Python as dcse_tf.Reranker"
        )


def _refuse_settings(options: ModelOptions, reason: str) -> None:
    """Refuses settings that only a checkpoint supports; {} in the reason is what to do instead."""
    names = (
        *("max_sequence_length", "pooling", "projection", "prefix", "compute_dtype"),
        "jit_compile",
    )
    given = [f"`{name}`" for name in names if options.is_given(name)]
    if given:
        remedy = reason.format(f"leave out {' and '.join(given)}")
        raise InputError(f"`model`={options.model}: {remedy}")
