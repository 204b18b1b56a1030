"""The export job."""

import contextlib
import pathlib

from dcse_tf.bert.checkpoints import hash_files
from dcse_tf.encoder.checkpoint import load_graph, truncate
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.encoder.load import find_folder
from dcse_tf.errors import require
from dcse_tf.exporting.card import collect_card, write_model_card
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.exporting.reranker import export_reranker
from dcse_tf.exporting.saved_model import write_saved_model
from dcse_tf.exporting.sentence_transformers import write_sentence_transformers
from dcse_tf.files import atomic_directory, atomic_version, complete_path
from dcse_tf.reading.reranker_files import is_reranker


def export(config: ExportOptions) -> pathlib.Path:
    """Writes a trained encoder or re-ranker in the format asked for, with its model card.

    Returns:
        The folder written: the output folder, or its new version.

    Raises:
        InputError: there is nothing to export, or a file for the card cannot be used.
        FileExistsError: the output exists and may not be replaced.
        LockedError: another process writes a version.
        OutputError: the export cannot be written, or its outputs differ from the model's.
    """
    output = pathlib.Path(config.output_dir)
    with _open(config, output) as folder:
        if is_reranker(find_folder(config.run_dir, "run_dir")):
            export_reranker(config, folder)
        else:
            _export_encoder(config, folder)
    return complete_path(folder)


def _export_encoder(config: ExportOptions, folder: pathlib.Path) -> None:
    encoder = load_graph(config.run_dir, "run_dir", config)
    if config.truncate_dim:
        truncate(encoder, config.truncate_dim)
    source = encoder.source
    assert source
    card = collect_card(config, source, encoder)
    card_file = "model_card.md"
    if config.format == "sentence_transformers":
        write_sentence_transformers(folder, encoder, config.unit_norm)
        card_file = "README.md"
    elif config.format == "onnx":
        for package in ("onnx", "onnxruntime"):
            require(package, extra="onnx", why="`format`=onnx")
        from dcse_tf.exporting.onnx import write_onnx

        further = {"projection": config.projection, "truncate_dim": config.truncate_dim}
        agreement = write_onnx(folder, encoder, config.unit_norm, config.quantize, **further)
        card = card.add_facts(agreement.describe())
    elif config.format == "static":
        from dcse_tf.exporting.static import write_static

        card = card.add_facts(write_static(folder, encoder, config).describe())
    else:
        _write_saved_model(config, folder, source, encoder)
    write_model_card(folder / card_file, card)


def _open(
    config: ExportOptions, output: pathlib.Path
) -> contextlib.AbstractContextManager[pathlib.Path]:
    if config.versioned:
        return atomic_version(output)
    return atomic_directory(output, config.overwrite)


def _write_saved_model(
    config: ExportOptions, folder: pathlib.Path, source: pathlib.Path, encoder: EncoderGraph
) -> None:
    settings = {
        **config.to_dict(),
        "max_sequence_length": encoder.max_sequence_length,
        "pooling": encoder.pooling,
        "prefix": encoder.vocabulary.prefix,
        "sha256": hash_files(source),
    }
    if encoder.postprocessing is None:
        settings["matching"] = encoder.matching.turns
    write_saved_model(
        folder,
        encoder,
        settings,
        unit_norm=config.unit_norm,
        warmup=config.warmup,
    )
