"""The export job, with the model card that it writes; templates/model_card.md.j2 is its layout."""

import contextlib
import importlib.metadata
import os
import pathlib
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import jinja2
import tensorflow as tf
from absl import logging

from dcse_tf.baselines.registry import is_baseline, read_baseline
from dcse_tf.bert.checkpoints import ENCODER_FOLDER, read_config
from dcse_tf.bert.encoder_options import EncoderOptions
from dcse_tf.bert.families import is_relative
from dcse_tf.encoder.graph import EncoderGraph, load_graph
from dcse_tf.encoder.load import find_folder
from dcse_tf.errors import InputError
from dcse_tf.exporting.export_formats import FORMATS, ExportOptions
from dcse_tf.files import atomic_directory
from dcse_tf.input_files import read_json_object
from dcse_tf.matching.equations import has_matching
from dcse_tf.options import option
from dcse_tf.reading.reranker_files import is_reranker
from dcse_tf.reranker.scorers import BERT, RerankerFolder, read_reranker
from dcse_tf.tasks.train_options import TrainOptions

# What a re-ranker, which gives no embeddings, has no use for.
_OF_ENCODERS = "unit_norm", *EncoderOptions.fields()
_PACKAGES = "dcse_tf", "tensorflow", "tensorflow-text", "keras", "keras-hub", "numpy"


def export(config: ExportOptions) -> pathlib.Path:
    """Writes a trained encoder or re-ranker in the format asked for, with its model card; returns
    the output folder. For errors see `dcse_tf.export`. InputError is also raised if an option is
    for encoders alone, or a file for the card cannot be used.
    """
    output, form, name = pathlib.Path(config.output_dir), FORMATS[config.format], config.run_dir
    with atomic_directory(output, config.overwrite) as folder:
        source = find_folder(name, "run_dir")
        is_encoder = not is_reranker(source)
        given = [f"`{name}`" for name in _OF_ENCODERS if config.is_given(name)]
        if given and not is_encoder:
            raise InputError(f"`run_dir`={name}: is a re-ranker; leave out {' and '.join(given)}")
        write = form.write_encoder if is_encoder else form.write_reranker
        kind = "an encoder" if is_encoder else "a re-ranker"
        if is_baseline(source) and read_baseline(source).spec.make_encode:
            write, kind = None, "a baseline without an encoder"
        if write is None:
            raise InputError(
                f"`format`={form.name}: `run_dir`={name} is {kind}, which cannot be exported so"
            )
        model: Any
        if is_encoder:
            # Variables, because a SavedModel's graph holds at most two gigabytes of constants.
            model = load_graph(source, config, hold=lambda v, t: tf.Variable(v, False, dtype=t))
            facts, prefix = _describe_encoder(model, config), model.vocabulary.prefix
            usage = form.usage.replace("LENGTH", str(model.max_sequence_length))
            usage = usage.replace("PREFIX + ", f"{prefix!r} + " if prefix else "")
        else:
            model = read_reranker(name, "run_dir")
            facts, usage = _describe_reranker(model), form.reranker_usage
        facts |= write(folder, model, config)
        write_model_card(folder / form.card, config, source, facts, usage, is_encoder)
    logging.info("%s: %s", output, "; ".join(f"{name} {value}" for name, value in facts.items()))
    return output


def write_model_card(
    path: pathlib.Path,
    config: ExportOptions,
    source: pathlib.Path,
    facts: Mapping[str, str],
    usage: str,
    is_encoder: bool,
) -> None:
    """Writes the card of what is exported from the checkpoint folder `source`: facts by name, and
    Markdown that says how it is used. Raises InputError if a file of the run cannot be used.
    """
    run_dir = pathlib.Path(config.run_dir)
    # See `dcse_tf.training`; a folder without them was made elsewhere.
    paths = run_dir / "config.json", source / "training.json", run_dir / "corpus.json"
    trained = source == run_dir / ENCODER_FOLDER and paths[0].is_file()
    settings, kept, corpus = (read_json_object(x, optional=True) if trained else {} for x in paths)
    if merged := read_json_object(source / "merge.json", optional=True):
        start, last = ("/".join(merged[x]["name"].split("/")[-2:]) for x in ("start", "trained"))
        told = f"{1 - merged['share']:g} of {start}, {merged['share']:g} of {last}"
        facts = {**facts, "averaged weights": told}
    versions = [f"python {platform.python_version()}"]
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dcse_tf.exporting"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # A bar or a line break would end a cell of a table.
    environment.filters["cell"] = lambda text: " ".join(str(text).split()).replace("|", "\\|")
    text = environment.get_template("model_card.md.j2").render(
        name=pathlib.Path(os.path.abspath(config.run_dir)).name,
        form=config.format,
        is_encoder=is_encoder,
        task=settings.get("task", "") if kept.get("step") else "",
        unchanged=kept.get("step") == 0,
        usage=usage,
        facts=facts,
        training=dict(_describe_training(kept, settings)) | corpus,
        scores=kept.get("scores", {}),
        versions=", ".join(versions),
    )
    path.write_text(text.rstrip() + "\n", encoding="utf-8")


def _describe_encoder(encoder: EncoderGraph, config: ExportOptions) -> dict[str, str]:
    """Facts about an encoder for the card; the format may replace some."""
    assert encoder.source
    shape, prefix = read_config(encoder.source), encoder.vocabulary.prefix
    kind = "MPNet" if is_relative(shape) else "BERT"
    facts = {
        "architecture": f"{kind}, {_describe_sizes(shape)}",
        "longest sentence": f"{encoder.max_sequence_length} tokens, the rest is cut off",
        "pooling": {"mean": "mean over all tokens", "cls": "the [CLS] token"}[encoder.pooling],
        "length": "unit" if config.unit_norm else "not normalised: compare by cosine",
    }
    if prefix and config.format != "static":
        facts["prefix of every text"] = repr(prefix)
    if encoder.postprocessing is not None:
        facts["postprocessing"] = encoder.postprocessing.name
    elif has_matching(encoder.source):
        by_cosine = "not part of this export, which compares responses by cosine"
        told = "the signature match" if config.format == "saved_model" else by_cosine
        turns = getattr(encoder.attention, "kind", "mean")
        facts["matching of responses"] = f"turns by {turns}: {told}"
    return facts


def _describe_reranker(folder: RerankerFolder) -> dict[str, str]:
    settings, config = folder.settings, read_json_object(folder.path / "config.json")
    sizes = f", {_describe_sizes(config)}" if settings.architecture == BERT else ""
    return {
        "architecture": f"{settings.architecture}{sizes}",
        "longest context": f"{settings.first_tokens} tokens; longer ones are cut at the start",
        "longest response": f"{settings.second_tokens} tokens; longer ones are cut at the end",
        "speakers": f"{'an' if settings.speakers else 'not an'} input of the model",
    }


def _describe_sizes(config: Mapping[str, Any]) -> str:
    layers, dim = config["num_hidden_layers"], config["hidden_size"]
    return f"{layers} layers, {dim} wide, a vocabulary of {config['vocab_size']} entries"


def _describe_training(
    kept: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """The step that was kept, and the settings that differ from their defaults."""
    if kept:
        yield "kept checkpoint", f"step {kept['step']} of {kept.get('last_step') or 'a halted run'}"
    task = TrainOptions.choice()[1].get(str(settings.get("task")))
    fields = task.options.fields() if task else {}
    for name, value in sorted(settings.items()):
        field = fields.get(name) or option(None, "")  # of a plug-in that is not installed
        rules = field.metadata
        value = tuple(value) if isinstance(value, list) else value
        writes = rules["path"] in ("writes", "renews", "resumes")
        if value == field.default or rules["resume"] == "free" or writes:
            continue
        told = {number: word for word, number in rules["words"].items()}.get(value, value)
        if rules["path"] and not str(value).startswith("package:"):
            # Without the folders of the machine that it was trained on.
            told = "/".join(str(value).split("/")[-2:])
        yield name, ", ".join(told) if isinstance(told, tuple) else str(told)
