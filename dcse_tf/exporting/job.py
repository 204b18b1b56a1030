"""The export job."""

import pathlib

from dcse_tf.encoder.graph import load_graph
from dcse_tf.encoder.load import find_folder
from dcse_tf.errors import InputError
from dcse_tf.exporting.export_formats import ExportFormat, find_format
from dcse_tf.exporting.export_options import ExportOptions
from dcse_tf.exporting.model_card import describe_encoder, describe_reranker, write_model_card
from dcse_tf.files import atomic_directory
from dcse_tf.reading.reranker_files import is_reranker
from dcse_tf.reranker.scorers import read_reranker


def export(config: ExportOptions) -> pathlib.Path:
    """Writes a trained encoder or re-ranker in the format asked for, with its model card.

    Returns:
        The folder written.

    Raises:
        InputError: there is nothing to export, the format cannot hold it, an option is for
            encoders alone, or a file for the card cannot be used.
        FileExistsError: the output exists and may not be replaced.
        LockedError: another process is writing it.
        OutputError: the export cannot be written, or its outputs differ from the model's.
    """
    output, form = pathlib.Path(config.output_dir), find_format(config.format)
    with atomic_directory(output, config.overwrite) as folder:
        if is_reranker(find_folder(config.run_dir, "run_dir")):
            _export_reranker(config, form, folder)
        else:
            _export_encoder(config, form, folder)
    return output


def _export_encoder(config: ExportOptions, form: ExportFormat, folder: pathlib.Path) -> None:
    if form.write_encoder is None:
        raise InputError(f"`format`={form.name}: `run_dir`={config.run_dir} is an encoder")
    encoder = load_graph(config.run_dir, "run_dir", config)
    facts = describe_encoder(encoder, config) | form.write_encoder(folder, encoder, config)
    prefix = encoder.vocabulary.prefix
    usage = form.usage.replace("LENGTH", str(encoder.max_sequence_length))
    usage = usage.replace("PREFIX + ", f"{prefix!r} + " if prefix else "")
    assert encoder.source
    write_model_card(folder / form.card, config, encoder.source, facts, usage, is_encoder=True)


def _export_reranker(config: ExportOptions, form: ExportFormat, folder: pathlib.Path) -> None:
    for name in _OF_ENCODERS:
        if config.is_given(name):
            raise InputError(f"`run_dir`={config.run_dir}: is a re-ranker; leave out `{name}`")
    if form.write_reranker is None:
        raise InputError(f"`format`={form.name}: `run_dir`={config.run_dir} is a re-ranker")
    model = read_reranker(config.run_dir, "run_dir")
    facts = describe_reranker(model) | form.write_reranker(folder, model, config)
    write_model_card(
        folder / form.card, config, model.path, facts, form.reranker_usage, is_encoder=False
    )


# What a re-ranker, which gives no embeddings, has no use for.
_OF_ENCODERS = "unit_norm", "pooling", "projection", "prefix", "max_sequence_length"
