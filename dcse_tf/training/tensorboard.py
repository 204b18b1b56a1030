"""What TensorBoard shows of a run besides its scalars."""

import collections
import dataclasses
import functools
import json
import pathlib

import numpy as np
from absl import logging
from google.protobuf import text_format
from tensorboard.plugins import projector

from dcse_tf.data.formats.messages import read_jsonl
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.evaluation.metrics import Encode
from dcse_tf.evaluation.response_selection import read_dialogues
from dcse_tf.evaluation.retrieval import RetrievalSet
from dcse_tf.files import atomic_file
from dcse_tf.input_files import BadLines
from dcse_tf.inspecting.explanation import Explanation, explain_response
from dcse_tf.inspecting.heatmap import MAPS, draw_heatmap
from dcse_tf.options import show
from dcse_tf.tasks import TASKS
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.tasks.spec import Scores, Setup
from dcse_tf.training.controller import Hook
from dcse_tf.training.dev_evaluation import DevEvaluation
from dcse_tf.training.summaries import Setting, SummaryWriter

# The file that TensorBoard looks for in a run's folder, and the files that it names.
CONFIG_FILE = "projector_config.pbtxt"
TENSORS, METADATA = "sentences.tsv", "sentences_metadata.tsv"
_COLORS = 50  # the page does not offer to colour by a column with more values
_OTHER = "(other)"
_NONE = "(none)"  # stands for an empty field, which the metadata may not have


@dataclasses.dataclass(frozen=True)
class Points:
    """Sentences to show, and the labels to colour them by; a missing label is ""."""

    sentences: list[str]
    labels: list[str]


def choose_sentences(count: int, retrieval: RetrievalSet | None, dev: pathlib.Path) -> Points:
    """Chooses the sentences to show in the projector.

    Args:
        count: maximum number of sentences.
        retrieval: the retrieval set to take sentences from, at even intervals, because it may be
            sorted by intent; None to use `dev`.
        dev: file of dev sessions in jsonl form; the first distinct utterances are taken.
    """
    labels: dict[str, str] = {}
    if retrieval:
        for sentence, intent in zip(retrieval.sentences, retrieval.intents, strict=True):
            labels.setdefault(sentence, intent)
        texts = list(labels)
        rows = np.linspace(0, len(texts) - 1, min(count, len(texts))).round().astype(int)
        chosen = [texts[row] for row in rows]
        return Points(chosen, [labels[text] for text in chosen])
    for _, turns in read_jsonl(dev, BadLines(0)):
        for turn in turns:
            labels.setdefault(turn.text, ", ".join(turn.intents))
        if len(labels) >= count:
            break
    chosen = list(labels)[:count]
    return Points(chosen, [labels[text] for text in chosen])


def write_projector(folder: pathlib.Path, points: Points, encode: Encode) -> None:
    """Writes the embeddings, their metadata and a configuration that names both to a folder."""
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
    """Formats one line per sentence. Only several columns have a header, as TensorBoard requires.

    If there are too many labels to colour by, another column merges the rare ones.
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


# Groups of options on which no result depends, or only which one is kept.
_UNTOLD = {"evaluation", "log and checkpoints", "devices and speed"}
# Scores by which runs are compared. By default the table of hyperparameters shows only the first
# five metrics by name. These scores are named "best/...", which sorts before "eval/..." and
# "train/...", and no task has more than five of them.
HEADLINES = (
    *("dev/accuracy", "dev/cosine_r1", "dev/map", "dev/mrr", "dev/matching_r1", "dev/spearman"),
    *("dev/masked_lm_accuracy", "dev/pairs_accuracy", "dev/reranker_r1", "dev/reranker_mrr"),
)
_LONGEST = 80  # preferred maximum length of a turn in a heatmap, in characters


class TensorBoardShowcase(Hook):
    """Writes hyperparameters, the kept encoder's scores, the geometry of dev embeddings, heatmaps
    of a dev session, and the projector.

    Args:
        setup: the setup of the run.
        evaluation: the dev evaluation, with its scorer, retrieval set and geometry.
        summaries: where everything is written.
    """

    def __init__(self, setup: Setup, evaluation: DevEvaluation, summaries: SummaryWriter):
        self._setup = setup
        self._evaluation = evaluation
        self._summaries = summaries
        # Chosen now, so that an error in a file is found before training, not after it.
        self._points = self._choose_points()

    def begin(self, step: int, resumed: bool) -> None:
        options = self._setup.options
        text = json.dumps(options.to_dict(), indent=2, sort_keys=True)
        self._summaries.text("configuration", f"```\n{text}\n```", step)
        # Includes the names of parent folders, because every run's own folder may be called "run".
        name = "/".join(pathlib.Path(options.run_dir).absolute().parts[-3:])
        self._summaries.begin_session(list_settings(options), name)

    def after_evaluation(self, step: int, scores: Scores, kept: bool) -> None:
        """Shows an evaluation's results; `kept` says whether the encoder is the best so far."""
        if kept:
            names = {*HEADLINES, self._setup.options.best_metric}
            found = {name: value for name, value in scores.items() if name in names}
            self._summaries.scalars("best", found, step)
        self._summaries.scalars("eval/geometry", self._evaluation.geometry, step)
        if explanation := self._explain():
            self._draw(explanation, step)

    def _draw(self, explanation: Explanation, step: int) -> None:
        try:
            for name in MAPS:
                self._summaries.image(f"explain/{name}", draw_heatmap(explanation, name), step)
        except InputError as error:  # training does not require matplotlib
            logging.log_first_n(logging.INFO, "TensorBoard has no heatmaps: %s", 1, error)

    def end(self, step: int) -> None:
        if self._points.sentences:
            # The kept encoder, not the last step's.
            encoder = SentenceEncoder.load(self._setup.options.run_dir)
            write_projector(self._summaries.folder, self._points, encoder.encode)
        self._summaries.end_session()

    def _choose_points(self) -> Points:
        count, retrieval = self._setup.options.projector_sentences, self._evaluation.retrieval
        if not count or TASKS[self._setup.options.task].make_scorer:  # or no embeddings
            return Points([], [])
        points = choose_sentences(count, retrieval, self._setup.data_dir / "dev.jsonl")
        if not points.sentences:
            logging.warning("no dev sentences for the projector")
        return points

    @functools.cached_property
    def _session(self) -> tuple[str, list[str]]:
        turns = self._setup.options.context.slots + 1
        return choose_session(read_dialogues(self._setup.data_dir / "dev.jsonl"), turns)

    def _explain(self) -> Explanation | None:
        """Explains a response of the dev session by the current encoder; None without a scorer."""
        scorer = self._evaluation.scorer
        if scorer is None:
            return None
        context, turns = self._setup.options.context, len(self._session[1])
        # The first response with a full context, if the session is long enough.
        response = min(context.turns, turns - 1)
        tokens = self._setup.vocabulary.tokens
        return explain_response(
            scorer, tokens, self._session, response, context.of(turns, response)
        )


def list_settings(options: TrainOptions) -> dict[str, Setting]:
    """The settings to show in the table of hyperparameters."""
    found: dict[str, Setting] = {}
    for field in dataclasses.fields(options):
        rules, value = field.metadata, getattr(options, field.name)
        if (
            rules["group"] not in _UNTOLD
            and rules["resume"] != "free"
            and rules["path"] != "resumes"
        ):
            found[field.name] = show(value) if isinstance(value, tuple) else value
            found[field.name] = "none" if value == "" else found[field.name]
    return found


def choose_session(sessions: list[tuple[str, list[str]]], turns: int) -> tuple[str, list[str]]:
    """Chooses a session to draw, as (id, texts).

    It is the first one whose first `turns` turns are all short; or else the first one with at least
    `turns` turns; or else the one with the most turns.
    """
    enough = [session for session in sessions if len(session[1]) >= turns]
    short = [s for s in enough if max(len(text) for text in s[1][:turns]) <= _LONGEST]
    return [*short, *enough, *sorted(sessions, key=lambda session: -len(session[1]))][0]
