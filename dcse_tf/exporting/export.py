"""The export job."""

import pathlib

from dcse_tf.encoder.graph import load_graph
from dcse_tf.encoder.load import find_folder
from dcse_tf.errors import InputError
from dcse_tf.exporting.export_formats import FORMATS
from dcse_tf.exporting.export_options import ExportOptions
from dcse_tf.exporting.model_card import describe_encoder, describe_reranker, write_model_card
from dcse_tf.files import atomic_directory
from dcse_tf.reading.reranker_files import is_reranker
from dcse_tf.reranker.scorers import read_reranker

# What a re-ranker, which gives no embeddings, has no use for.
_OF_ENCODERS = "unit_norm", "pooling", "projection", "prefix", "max_sequence_length"


def export(config: ExportOptions) -> pathlib.Path:
    """Writes a trained encoder or re-ranker in the format asked for, with its model card.

    Returns:
        The output folder.

    Raises:
        InputError: there is nothing to export, the format cannot hold it, an option is for
            encoders alone, or a file for the card cannot be used.
        FileExistsError: the output exists and may not be replaced.
        LockedError: another process is writing it.
        OutputError: the export cannot be written, or its outputs differ from the model's.
    """
    output, form = pathlib.Path(config.output_dir), FORMATS[config.format]
    with atomic_directory(output, config.overwrite) as folder:
        of_reranker = is_reranker(find_folder(config.run_dir, "run_dir"))
        kind = "a re-ranker" if of_reranker else "an encoder"
        write = form.write_reranker if of_reranker else form.write_encoder
        for name in _OF_ENCODERS if of_reranker else ():
            if config.is_given(name):
                raise InputError(f"`run_dir`={config.run_dir}: is a re-ranker; leave out `{name}`")
        if write is None:
            raise InputError(f"`format`={form.name}: `run_dir`={config.run_dir} is {kind}")
        if of_reranker:
            model = read_reranker(config.run_dir, "run_dir")
            source, usage = model.path, form.reranker_usage
            facts = describe_reranker(model) | write(folder, model, config)
        else:
            encoder = load_graph(config.run_dir, "run_dir", config)
            assert encoder.source
            source, prefix = encoder.source, encoder.vocabulary.prefix
            facts = describe_encoder(encoder, config) | write(folder, encoder, config)
            usage = form.usage.replace("LENGTH", str(encoder.max_sequence_length))
            usage = usage.replace("PREFIX + ", f"{prefix!r} + " if prefix else "")
        write_model_card(folder / form.card, config, source, facts, usage, not of_reranker)
    return output
