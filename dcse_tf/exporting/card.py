"""Collects the content of an export's model card; the layout is in templates/."""

import dataclasses
import importlib.metadata
import os
import pathlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from absl import logging

import dcse_tf
from dcse_tf.bert.checkpoints import ENCODER_FOLDER, read_config
from dcse_tf.bert.families import is_relative
from dcse_tf.bert.vocabulary import SpecialTokens
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.errors import InputError
from dcse_tf.evaluation.bootstrap import score_names
from dcse_tf.evaluation.report import read_json, short_path
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.files import hash_file
from dcse_tf.input_files import read_json_object
from dcse_tf.matching.matching_files import has_matching
from dcse_tf.options import option
from dcse_tf.reading.reranker_files import RerankerSettings
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.training.best_encoder import UNTRAINED, Kept, read_kept
from dcse_tf.training.run_directory import CONFIG_FILE, CORPUS_FILE, INPUTS_FILE

_WEIGHTS = ("*.safetensors", "*/*.safetensors", "*.onnx", "saved_model.pb", "variables/*")


@dataclasses.dataclass(frozen=True)
class Score:
    """A score on a set in percent, with its 95% interval and chance level where known."""

    task: str
    source: str
    name: str
    value: float
    interval: tuple[float, float] | None
    chance: float | None


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """The content of a model card. Mappings are tables of name -> value.

    Attributes:
        name: the model's name.
        origin: a sentence about where the model comes from.
        form: the export's `format`.
        max_sequence_length: in tokens.
        facts: facts about the model.
        corpus: facts about the training corpus.
        report: what inspect_data found in the corpus.
        settings: the training's settings.
        scores: scores on evaluation sets.
        versions: versions of libraries.
        prefix: what the encoder puts before every text.
        task: the task it was trained by; empty if training here did not change it.
        reranker: the re-ranker's settings; None if the model is an encoder.
        special: the special entries of the re-ranker's vocabulary; None if it is an encoder.
    """

    name: str
    origin: str
    form: str
    max_sequence_length: int
    facts: Mapping[str, str]
    corpus: Mapping[str, str]
    report: Mapping[str, str]
    settings: Mapping[str, str]
    scores: Sequence[Score]
    versions: Mapping[str, str]
    prefix: str = ""
    task: str = ""
    reranker: RerankerSettings | None = None
    special: SpecialTokens | None = None

    def add_facts(self, facts: Mapping[str, str]) -> "ModelCard":
        return dataclasses.replace(self, facts={**self.facts, **facts})


def write_model_card(
    path: pathlib.Path, card: ModelCard, template: str = "model_card.md.j2"
) -> None:
    """Writes the card of an export, with the SHA-256 of its weights.

    Args:
        path: the file to write. It is in the export's folder, which must be otherwise complete.
        card: the content.
        template: the layout, a file in templates/.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dcse_tf.exporting"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cell": _escape_cell, "repr": repr}
    form = environment.get_template(template)
    text = form.render(card=card, form=card.form, hashes=_hash_weights(path.parent))
    path.write_text(text.rstrip() + "\n", encoding="utf-8")


def _escape_cell(text: str) -> str:
    """Escapes text for a Markdown table, where a bar or a line break would end the cell."""
    return " ".join(text.split()).replace("|", "\\|")


def _hash_weights(folder: pathlib.Path) -> dict[str, str]:
    found = {path for pattern in _WEIGHTS for path in folder.glob(pattern)}
    return {str(path.relative_to(folder)): hash_file(path) for path in sorted(found)}


_VERSIONS = ("tensorflow", "tensorflow-text", "keras", "keras-hub", "numpy")


@dataclasses.dataclass(frozen=True)
class Described:
    """What a run's files say about its training and scores; see `ModelCard`.

    Attributes:
        kept_step: which step's weights were kept; None for a model that was not trained here.
        kept: the same as a fact for the card.
    """

    kept_step: Kept | None
    kept: Mapping[str, str]
    corpus: Mapping[str, str]
    report: Mapping[str, str]
    settings: Mapping[str, str]
    scores: Sequence[Score]


def collect_training(config: ExportOptions, source: pathlib.Path) -> Described:
    """Collects a run's settings and corpus, if the checkpoint is a run's, and scores and reports.

    Args:
        config: the export's settings.
        source: the checkpoint folder that is exported.

    Raises:
        InputError: a file that was named for the card cannot be used.
    """
    run_dir = pathlib.Path(config.run_dir)
    trained = source == run_dir / ENCODER_FOLDER and (run_dir / CONFIG_FILE).is_file()
    settings = read_json_object(run_dir / CONFIG_FILE) if trained else {}
    kept = read_kept(source) if trained else None
    return Described(
        kept_step=kept,
        kept={"kept checkpoint": kept.describe()} if kept else {},
        corpus=_describe_corpus(run_dir) if trained else {},
        report=_describe_report(config.data_report) if config.data_report else {},
        settings=_describe_settings(settings),
        scores=[score for name in config.results for score in _read_scores(name, config.run_dir)],
    )


def collect_card(config: ExportOptions, source: pathlib.Path, encoder: EncoderGraph) -> ModelCard:
    """Collects the card of an export, except for what depends on the files still to be written.

    Args:
        config: the export's settings.
        source: the checkpoint folder that is exported.
        encoder: the encoder of this folder.

    Raises:
        InputError: a file that was named for the card cannot be used.
    """
    found = collect_training(config, source)
    task = found.settings.get("task", "") if found.kept_step and found.kept_step.step else ""
    return ModelCard(
        name=name_model(config.run_dir),
        form=config.format,
        max_sequence_length=encoder.max_sequence_length,
        origin=_describe_origin(found.kept_step, task),
        facts={**_describe_encoder(config, source, encoder), **found.kept},
        corpus=found.corpus,
        report=found.report,
        settings=found.settings,
        scores=found.scores,
        versions=list_versions(),
        prefix=encoder.vocabulary.prefix,
        task=task,
    )


def name_model(run_dir: str) -> str:
    """The model's name: that of its folder, of a package or on a hub."""
    return pathlib.Path(os.path.abspath(run_dir)).name


def _describe_origin(kept: Kept | None, task: str) -> str:
    if kept is None:
        return "A sentence encoder, exported by dcse_tf."
    if kept.step == 0:
        return (
            "A sentence encoder, exported by dcse_tf from a training that did not improve it: "
            f"{UNTRAINED}."
        )
    if task not in ("", "dialogue_cse"):
        return f"A sentence encoder trained by dcse_tf with the task {task}."
    return (
        "A sentence encoder trained on dialogues by dcse_tf (DialogueCSE, Liu et al., EMNLP 2021)."
    )


def _describe_encoder(
    config: ExportOptions, source: pathlib.Path, encoder: EncoderGraph
) -> dict[str, str]:
    shape = read_config(source)
    kind = "MPNet" if is_relative(shape) else "BERT"
    architecture = (
        f"{kind}, {shape['num_hidden_layers']} layers, {shape['hidden_size']} wide, a vocabulary "
        f"of {shape['vocab_size']} entries"
    )
    facts = {"architecture": architecture, "text": encoder.vocabulary.describe()}
    if config.format == "static":
        facts |= {
            "architecture": f"a table of token vectors in place of {architecture}",
            "longest sentence": "any, nothing is cut off",
            "pooling": "mean over all known tokens",
            "length": "unit",
        }
    else:
        facts |= {
            **({"prefix of every text": repr(p)} if (p := encoder.vocabulary.prefix) else {}),
            "longest sentence": f"{encoder.max_sequence_length} tokens, the rest is cut off",
            "pooling": {"mean": "mean over all tokens", "cls": "the [CLS] token"}[encoder.pooling],
            "length": "unit" if config.unit_norm else "not normalised: compare by cosine",
        }
    if encoder.postprocessing is not None:
        facts["postprocessing"] = encoder.postprocessing.name
    elif has_matching(source):
        where = (
            "the signature match"
            if config.format == "saved_model"
            else "not part of this format, which compares responses by cosine"
        )
        facts["matching of responses"] = f"turns by {encoder.matching.turns}: {where}"
    path = source / "merge.json"
    if path.is_file():
        share = read_json_object(path)["share"]
        facts["averaged weights"] = f"{1 - share:g} of the start, {share:g} of the trained encoder"
    return facts


def _describe_corpus(run_dir: pathlib.Path) -> dict[str, str]:
    """Facts that the run recorded; of an older run, those of its inputs."""
    path = run_dir / CORPUS_FILE
    if path.is_file():
        return {name: str(value) for name, value in read_json_object(path).items()}
    path = run_dir / INPUTS_FILE
    inputs = read_json_object(path) if path.is_file() else {}
    known = {
        "splits": inputs.get("the corpus' splits and lengths"),
        "fingerprint (SHA-256)": inputs.get("the corpus"),
    }
    told = {name: str(value) for name, value in known.items() if value}
    return told or {"corpus": "not known: the run has no record of it"}


def _describe_report(folder: str) -> dict[str, str]:
    path = pathlib.Path(folder) / "report.json"
    content = read_json_object(path)
    try:
        found = content["statistics"]
        facts = {
            "sessions": f"{found['sessions']:,}",
            "turns": f"{found['turns']:,}",
            "speakers": f"{len(found['speakers']):,}",
            "turns whose text another turn has": f"{found['repeated_utterances']:.1%}",
            "sessions all of whose texts another has": f"{found['repeated_sessions']:.1%}",
        }
        for leak in content["leaks"]:
            facts[f"sentences of {short_path(leak['source'])} in the corpus"] = (
                f"{leak['exact']:,} word for word and {leak['near']:,} nearly, of "
                f"{leak['sentences']:,}"
            )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a report of inspect_data: {error!r}") from error
    return facts


def _read_scores(name: str, run_dir: str) -> list[Score]:
    model, results, _ = read_json(pathlib.Path(name))
    if os.path.abspath(model) != os.path.abspath(run_dir):
        logging.warning("%s: scores of `model`=%s, not of %s", name, model, run_dir)
    scores = []
    for result in results:
        for score in score_names(result.items):
            scores.append(
                Score(
                    result.task,
                    short_path(result.source),
                    score,
                    result.scores[score],
                    result.intervals.get(score),
                    result.scores.get(f"chance_{score}"),
                )
            )
    return scores


def _describe_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings that training depends on, as text."""
    fields = TrainOptions.choose(settings.get("task")).fields()
    found = {}
    for name, value in sorted(settings.items()):
        rules = fields[name].metadata if name in fields else option(None, "").metadata
        free = rules["resume"] == "free" or rules["path"] == "resumes"
        if not free and value is not None and value != "":
            found[name] = _plain(value, rules)
    return found


def _plain(value: Any, rules: Mapping[str, Any]) -> str:
    """A setting as text, without the paths of the machine that the model was trained on."""
    if isinstance(value, str) and rules["path"]:
        return value if value.startswith("package:") else "/".join(value.split("/")[-2:])
    if isinstance(value, list):
        return ", ".join(value) or "none"
    words = {number: word for word, number in rules["words"].items()}
    return words.get(value, str(value))


def list_versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in _VERSIONS}
    return {"dcse_tf": dcse_tf.__version__, "Python": platform.python_version(), **found}
