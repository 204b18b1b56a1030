"""The embedding projector of TensorBoard: sentences, their labels, their embeddings."""

import collections
import dataclasses
import pathlib

import numpy as np
from google.protobuf import text_format
from tensorboard.plugins import projector

from dcse_tf.atomic import atomic_file
from dcse_tf.data.corpora import jsonl
from dcse_tf.evaluation import Encode
from dcse_tf.evaluation.semantic_retrieval import RetrievalSet
from dcse_tf.input_files import BadLines

# What TensorBoard looks for in a run's folder.
CONFIG_FILE = "projector_config.pbtxt"
TENSORS, METADATA = "sentences.tsv", "sentences_metadata.tsv"
_COLORS = 50  # the page offers no colours by a column of more values
_OTHER = "(other)"
_NONE = "(none)"  # a field of the metadata may not be empty


@dataclasses.dataclass(frozen=True)
class Points:
    """Sentences to show, and the labels to colour them by, "" where there is none."""

    sentences: list[str]
    labels: list[str]


def choose_sentences(count: int, retrieval: RetrievalSet | None, dev: pathlib.Path) -> Points:
    """The sentences to show.

    Args:
        count: most of them.
        retrieval: taken evenly over the set, which may be sorted by intent; None for the dev
            split.
        dev: dev sessions in jsonl form, of which the first distinct utterances are taken.
    """
    labels: dict[str, str] = {}
    if retrieval:
        for sentence, intent in zip(retrieval.sentences, retrieval.intents, strict=True):
            labels.setdefault(sentence, intent)
        texts = list(labels)
        rows = np.linspace(0, len(texts) - 1, min(count, len(texts))).round().astype(int)
        chosen = [texts[row] for row in rows]
        return Points(chosen, [labels[text] for text in chosen])
    for _, turns in jsonl.read_sessions(dev, BadLines(0)):
        for turn in turns:
            labels.setdefault(turn.text, ", ".join(turn.intents))
        if len(labels) >= count:
            break
    chosen = list(labels)[:count]
    return Points(chosen, [labels[text] for text in chosen])


def write_projector(folder: pathlib.Path, points: Points, encode: Encode) -> None:
    """Writes the embeddings, their metadata and the file that names both into a run's folder."""
    embeddings = encode(points.sentences)
    with atomic_file(folder / TENSORS) as partial:
        np.savetxt(partial, embeddings, fmt="%.6g", delimiter="\t")
    with atomic_file(folder / METADATA) as partial:
        partial.write_text(_format_metadata(points), encoding="utf-8")
    config = projector.ProjectorConfig()
    shown = config.embeddings.add(
        tensor_name="dev_sentences", tensor_path=TENSORS, metadata_path=METADATA
    )
    shown.tensor_shape.extend(embeddings.shape)
    with atomic_file(folder / CONFIG_FILE) as partial:
        partial.write_text(text_format.MessageToString(config), encoding="utf-8")


def _format_metadata(points: Points) -> str:
    """A line a sentence; with a head only if there are several columns, as TensorBoard has it.

    Labels that are too many to colour by get a column in which the rare ones are one.
    """
    sentences = [_flatten(text) for text in points.sentences]
    if not any(points.labels):
        return "".join(f"{text}\n" for text in sentences)
    columns = {"sentence": sentences, "label": [_flatten(label) for label in points.labels]}
    counts = collections.Counter(columns["label"])
    if len(counts) > _COLORS:
        common = {label for label, _ in counts.most_common(_COLORS - 1)}
        columns["common label"] = [x if x in common else _OTHER for x in columns["label"]]
    lines = [columns, *zip(*columns.values(), strict=True)]
    return "".join("\t".join(fields) + "\n" for fields in lines)


def _flatten(text: str) -> str:
    return " ".join(text.split()) or _NONE
