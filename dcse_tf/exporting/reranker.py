"""Exports re-rankers: chooses the format, and writes the one that sentence-transformers loads."""

import pathlib
from typing import Any

import numpy as np

from dcse_tf.bert.checkpoints import hash_files, read_config
from dcse_tf.bert.weights import CLASSIFIER, write_tensors
from dcse_tf.errors import InputError, require
from dcse_tf.exporting.card import (
    ModelCard,
    collect_training,
    list_versions,
    name_model,
    write_model_card,
)
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.exporting.sentence_transformers import true_config
from dcse_tf.files import write_json
from dcse_tf.input_files import read_json_object
from dcse_tf.reading.matchers import read_matcher_settings
from dcse_tf.reading.reranker_files import write_reranker_settings
from dcse_tf.reranker.checkpoint import fingerprint, load_graph
from dcse_tf.reranker.cross_encoder import CrossEncoder, read_tensors
from dcse_tf.reranker.graph import RerankerGraph

_OF_ENCODERS = (
    *("unit_norm", "truncate_dim", "pooling", "projection", "prefix", "max_sequence_length"),
)
# The library applies this to the logits; its default is the sigmoid.
_IDENTITY = "torch.nn.modules.linear.Identity"


def export_reranker(config: ExportOptions, folder: pathlib.Path) -> None:
    """Writes a re-ranker in the format asked for, with its model card.

    Args:
        config: the settings; `run_dir` names a re-ranker.
        folder: an existing folder to write to.

    Raises:
        InputError: an option applies only to encoders, or the format does not support this model.
        OutputError: the export cannot be written, or its scores differ from the re-ranker's.
    """
    given = [f"`{name}`" for name in _OF_ENCODERS if config.is_given(name)]
    if given:
        raise InputError(f"`run_dir`={config.run_dir}: is a re-ranker; leave out {given[0]}")
    if config.format == "static":
        raise InputError(f"`format`=static: `run_dir`={config.run_dir} is a re-ranker")
    graph = load_graph(config.run_dir, "run_dir", variables=True)
    card = collect_reranker_card(config, graph)
    card_file = "model_card.md"
    if config.format == "saved_model":
        _write_saved_model(config, folder, graph)
    elif not isinstance(graph.model, CrossEncoder):
        raise InputError(
            f"`format`={config.format}: cannot hold a re-ranker of the architecture "
            f"{graph.settings.architecture}; `format`=saved_model can"
        )
    elif config.format == "onnx":
        for package in ("onnx", "onnxruntime"):
            require(package, extra="onnx", why="`format`=onnx")
        from dcse_tf.exporting.reranker_onnx import write_reranker as write_onnx

        agreement = write_onnx(folder, graph.model, graph, config.quantize)
        card = card.add_facts(agreement.describe())
    else:
        write_cross_encoder(folder, graph)
        card_file = "README.md"
    write_model_card(folder / card_file, card, "reranker_card.md.j2")


def _write_saved_model(config: ExportOptions, folder: pathlib.Path, graph: RerankerGraph) -> None:
    from dcse_tf.exporting.reranker_saved_model import write_reranker

    settings = {
        **config.to_dict(),
        **vars(graph.settings),
        "sha256": hash_files(graph.source),
        "fingerprint": fingerprint(graph),
    }
    write_reranker(folder, graph, settings, config.warmup)


def write_cross_encoder(folder: pathlib.Path, graph: RerankerGraph) -> None:
    """Writes a folder that sentence-transformers' CrossEncoder and transformers load.

    The library has one limit for the tokens of a pair and truncates on the left; here context and
    response have a limit each. Scores are equal as long as neither exceeds its own limit.

    Args:
        folder: an existing folder to write to.
        graph: the re-ranker.

    Raises:
        InputError: the library has no such model.
    """
    form = "sentence_transformers"
    settings = graph.settings
    if settings.speakers:
        raise InputError(
            f"`format`={form}: this re-ranker knows who speaks, which that library's BERT cannot; "
            "`format`=saved_model and `format`=onnx can"
        )
    config: dict[str, Any] = {
        **true_config(graph.source),
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "sentence_transformers": {"activation_fn": _IDENTITY},
        "sbert_ce_default_activation_function": _IDENTITY,  # before version 4
    }
    write_json(folder / "config.json", config, sort_keys=True)
    tensors = {
        name if name.startswith(CLASSIFIER) else f"bert.{name}": np.ascontiguousarray(value)
        for name, value in read_tensors(graph.source, settings).items()
    }
    write_tensors(folder, tensors)
    graph.vocabulary.write_tokenizer(folder, settings.first_tokens + settings.second_tokens)
    path = folder / "tokenizer_config.json"
    content = {**read_json_object(path), "truncation_side": "left"}
    write_json(path, content, sort_keys=True)
    write_reranker_settings(folder, settings)  # so that `Reranker.load` can read the folder too


def _describe_sizes(graph: RerankerGraph) -> str:
    if isinstance(graph.model, CrossEncoder):
        config = read_config(graph.source)
        return f"{config['num_hidden_layers']} layers, {config['hidden_size']} wide"
    sizes = read_matcher_settings(graph.source)
    return f"LSTMs of {sizes['hidden_dim']} units, embeddings of {sizes['embedding_dim']}"


def collect_reranker_card(config: ExportOptions, graph: RerankerGraph) -> ModelCard:
    """Collects a re-ranker's card, except for what depends on the files still to be written."""
    settings, described = graph.settings, collect_training(config, graph.source)
    special = graph.vocabulary.special
    facts = {
        "architecture": f"{settings.architecture}: {_describe_sizes(graph)}, a vocabulary of "
        f"{len(graph.vocabulary.tokens)} entries",
        "text": graph.vocabulary.describe(),
        "longest context": f"{settings.first_tokens} tokens with {special.cls} and {special.sep}; "
        "longer ones are cut at the start",
        "longest response": f"{settings.second_tokens} tokens with {special.sep}; longer ones are "
        "cut at the end",
        "speakers": "an input of the model" if settings.speakers else "not an input of the model",
    }
    task, base = (str(described.settings.get(name, "")) for name in ("task", "encoder"))
    facts |= {"trained by": task} if task else {}
    facts |= {"trained from": base} if base else {}
    return ModelCard(
        name=name_model(config.run_dir),
        form=config.format,
        max_sequence_length=settings.first_tokens + settings.second_tokens,
        origin=f"A re-ranker of responses{' trained on dialogues' if task else ''}, exported by "
        "dcse_tf.",
        facts={**facts, **described.kept},
        corpus=described.corpus,
        report=described.report,
        settings=described.settings,
        scores=described.scores,
        versions=list_versions(),
        reranker=settings,
        special=special,
    )
