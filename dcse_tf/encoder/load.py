"""Loads the backend of a model that a user names, by what its folder holds.

TensorFlow is imported only for the models that need it.
"""

import functools
import pathlib

from dcse_tf.baselines.registry import is_baseline, read_baseline
from dcse_tf.bert.checkpoints import SAVED_MODEL_FILE, read_config, resolve_checkpoint
from dcse_tf.bert.encoder_options import ModelOptions
from dcse_tf.bert.sentence_modules import SentenceModules, read_modules
from dcse_tf.encoder import exported_models
from dcse_tf.encoder.backend import Backend, FunctionBackend, hash_arrays
from dcse_tf.errors import InputError, name_missing_tensorflow
from dcse_tf.input_files import read_json_object
from dcse_tf.reading.reranker_files import is_reranker


def load_backend(options: ModelOptions) -> Backend:
    """Loads an export, a run directory, a checkpoint or a baseline. Raises InputError if there is
    no such model; it is damaged; or it does not support a setting, such as another pooling than it
    was fitted with or more positions than it has.
    """
    folder = pathlib.Path(options.model)
    if (folder / SAVED_MODEL_FILE).is_file():
        _refuse_settings(options)
        with name_missing_tensorflow(f"`model`={options.model}: a SavedModel"):
            return exported_models.load_saved_model(folder, options.batch_tokens)
    if exported_models.is_onnx(folder):
        refuse_reranker(folder, options.model, "model")
        _refuse_settings(options)
        return exported_models.OnnxBackend(folder, options.batch_tokens)

    folder = find_folder(options.model, "model")
    refuse_reranker(folder, options.model, "model")
    config = read_json_object(folder / "config.json", optional=True)
    if config.get("model_type") == exported_models.STATIC_TYPE:
        _refuse_settings(options)
        return exported_models.load_static(folder)
    if is_baseline(folder) and (baseline := read_baseline(folder)).spec.make_encode:
        _refuse_settings(options)
        fingerprint = functools.partial(hash_arrays, baseline.fitted.tensors, baseline.fitted.facts)
        return FunctionBackend(baseline.make(), fingerprint, options.batch_tokens)
    with name_missing_tensorflow(f"`model`={options.model}: a checkpoint"):
        from dcse_tf.encoder.graph import load_graph
    return load_graph(folder, options, options.batch_tokens, options.compute_dtype)


def find_folder(name: str, option: str) -> pathlib.Path:
    """The folder of a baseline, or of a checkpoint, see `resolve_checkpoint`."""
    folder = pathlib.Path(name)
    return folder if is_baseline(folder) else resolve_checkpoint(name, option)


def resolve_transformer(
    name: str, option: str, keeps_dense: bool = False
) -> tuple[pathlib.Path, SentenceModules]:
    """The folder of a checkpoint, see `resolve_checkpoint`, and its modules. Raises InputError if
    what follows the pooling would be lost in what is made of the transformer: a baseline, and a
    Dense module, unless the caller keeps those that act on tokens as on their mean.
    """
    folder = resolve_checkpoint(name, option)
    if is_baseline(folder):
        raise InputError(f"`{option}`={folder}: is a fitted baseline; give its encoder")
    modules = read_modules(folder, read_config(folder)["hidden_size"])
    bent = any(step.activation or step.unit for step in modules.maps)
    if modules.maps and (bent or modules.pooling == "cls" or not keeps_dense):
        raise InputError(
            f"`{option}`={folder}: has a Dense module, which would be lost (a training of sentence "
            "embeddings keeps one without activation right behind the mean); to start without it, "
            "give a copy of the folder that has no modules.json"
        )
    return folder, modules


def refuse_reranker(folder: pathlib.Path, name: str, option: str) -> None:
    """Raises InputError for a re-ranker. Its BERT was trained to score a pair at [CLS], so
    embeddings computed with it would be meaningless.
    """
    if is_reranker(folder):
        raise InputError(
            f"`{option}`={name}: is a re-ranker, which scores responses and embeds no sentences; "
            "evaluate takes it, search as `reranker`, and Python as dcse_tf.Reranker"
        )


def _refuse_settings(options: ModelOptions) -> None:
    """Refuses settings that only a checkpoint supports."""
    names = "max_sequence_length", "pooling", "projection", "prefix", "compute_dtype"
    if given := [f"`{name}`" for name in names if options.is_given(name)]:
        raise InputError(
            f"`model`={options.model}: an export or a baseline without an encoder computes as it "
            f"was made; leave out {' and '.join(given)}, or name the run directory"
        )
