"""The model card: what an export is, what it learnt from, how it scored, and its limits."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from dcse_tf.input_files import hash_file

_WEIGHTS = ("*.safetensors", "*/*.safetensors", "*.onnx", "saved_model.pb", "variables/*")

_USAGE = {
    "sentence_transformers": """\
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer("FOLDER")
    embeddings = model.encode(["where is my parcel?"])
    similarity = model.similarity(embeddings, embeddings)  # cosine""",
    "saved_model": """\
    import tensorflow as tf, tensorflow_text

    serve = tf.saved_model.load("FOLDER").signatures["serving_default"]
    embeddings = serve(sentences=tf.constant(["where is my parcel?"]))["embeddings"]""",
    "onnx": """\
    import numpy as np, onnxruntime, tokenizers

    tokenizer = tokenizers.Tokenizer.from_file("FOLDER/tokenizer.json")
    tokenizer.encode_special_tokens = True
    tokenizer.enable_truncation({length})
    tokenizer.enable_padding()
    session = onnxruntime.InferenceSession("FOLDER/model.onnx")
    encoded = tokenizer.encode_batch(["where is my parcel?"])
    inputs = {{
        "input_ids": np.array([e.ids for e in encoded], np.int64),
        "attention_mask": np.array([e.attention_mask for e in encoded], np.int64),
    }}
    embeddings = session.run(None, inputs)[0]""",
}
_LIMITS = """\
Meant for comparing sentences of the domain that it was trained on by the cosine of their
embeddings: semantic retrieval, similarity, clustering, choosing a response.

- Other languages, domains and text far longer than the limit below were not part of the training;
  what is beyond the limit is cut.
- It reflects what was said in its corpus and in the texts of the encoder that it started from, with
  their biases; text of people can be in both. An embedding can give away what the sentence says.
- Scores hold for the sets they were measured on. Measure on your own before use."""

_LIMITS_OF_TRAINING = """
- It was trained on dialogues without labels. Sentences that are used alike in dialogues lie close,
  also where their meaning is opposed ("yes, please" and "no, thanks")."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A score on a set, percent, with its 95% interval and chance level where they are known."""

    task: str
    source: str
    name: str
    value: float
    interval: tuple[float, float] | None
    chance: float | None


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """What a card tells.

    Attributes:
        name: of the model.
        origin: a sentence on where it comes from.
        form: the export's --format.
        max_sequence_length: in tokens.
        facts: about the encoder, by what they are.
        corpus: about the corpus; so too `report`, what inspect_data found in it.
        settings: of the training.
        scores: on evaluation sets.
        versions: of libraries.
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

    def add_facts(self, facts: Mapping[str, str]) -> "ModelCard":
        return dataclasses.replace(self, facts={**self.facts, **facts})


def write_model_card(path: pathlib.Path, card: ModelCard) -> None:
    """Writes a card beside an export, whose weights' SHA-256 it names.

    Args:
        path: the file, in the export's folder, which is complete but for it.
        card: what it tells.
    """
    path.write_text(_render(card, _hash_weights(path.parent)), encoding="utf-8")


def _render(card: ModelCard, hashes: Mapping[str, str]) -> str:
    usage = _USAGE[card.form]
    if card.form == "onnx":
        usage = usage.format(length=card.max_sequence_length)
    parts = [
        _front_matter(card),
        f"# {card.name}",
        card.origin,
        f"## Use\n\n{usage}",
        f"## Intended use and limits\n\n{_LIMITS}{_LIMITS_OF_TRAINING if card.settings else ''}",
        _section("Encoder", card.facts),
        _section("Training corpus", card.corpus),
        _section("Data report", card.report),
        _section("Training settings", card.settings),
        _score_section(card.scores),
        _section("Weights (SHA-256)", hashes),
        _section("Versions", card.versions),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(card: ModelCard) -> str:
    tags = ["sentence-similarity", "feature-extraction", "dialogue", "dcse_tf"]
    lines = ["---", "pipeline_tag: sentence-similarity"]
    if card.form == "sentence_transformers":
        lines.append("library_name: sentence-transformers")
        tags = ["sentence-transformers", *tags]
    return "\n".join([*lines, "tags:", *(f"- {tag}" for tag in tags), "---"])


def _section(title: str, rows: Mapping[str, str]) -> str:
    if not rows:
        return ""
    table = [f"| {_cell(key)} | {_cell(value)} |" for key, value in rows.items()]
    return "\n".join([f"## {title}\n", "| | |", "|---|---|", *table])


def _score_section(scores: Sequence[Score]) -> str:
    if not scores:
        return ""
    lines = [
        "## Evaluation\n",
        "Percent, with the 95% interval by bootstrap, beside what a random ranking scores.\n",
        "| evaluation | set | score | value | 95% interval | chance |",
        "|---|---|---|---|---|---|",
    ]
    for score in scores:
        limits = f"{score.interval[0]:.2f} to {score.interval[1]:.2f}" if score.interval else ""
        chance = "" if score.chance is None else f"{score.chance:.2f}"
        cells = (score.task, score.source, score.name, f"{score.value:.2f}", limits, chance)
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text in a table: a bar or the end of a line would end the cell."""
    return " ".join(text.split()).replace("|", "\\|")


def _hash_weights(folder: pathlib.Path) -> dict[str, str]:
    found = {path for pattern in _WEIGHTS for path in folder.glob(pattern)}
    return {str(path.relative_to(folder)): hash_file(path) for path in sorted(found)}
