"""What to do with a trained encoder, by held-out dialogues without labels."""

import dataclasses
import pathlib
import tempfile

import numpy as np
from absl import logging

from dcse_tf.bert.checkpoints import ENCODER_FOLDER
from dcse_tf.encoder.backend import normalize
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.evaluation import bootstrap, retrieval
from dcse_tf.evaluation.metrics import Evaluation
from dcse_tf.evaluation.response_selection import read_dialogues
from dcse_tf.evaluation.surroundings import build_surroundings_set
from dcse_tf.files import MARK
from dcse_tf.reading.reranker_files import is_reranker
from dcse_tf.tasks.spec import Setup
from dcse_tf.training.merge import MergeOptions, merge

SET_FILE = "surroundings.txt"
_FEWEST = 200  # queries for a verdict
# A merge that keeps so much of the gain costs other domains less for next to nothing.
_ENOUGH = 0.95
# An encoder that keeps less of its start's effective dimensions finds less among all turns.
_NARROW = 0.5


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How an encoder finds turns in similar surroundings, see `build_surroundings_set`.

    Attributes:
        advice: "train", "merge" or "keep".
        start: MAP of the encoder that training started from, in percent.
        trained, merged: what training adds, and what is left of it after a merge at 0.7, or what
            the average with a second training adds.
        queries: held-out turns.
        dimensions: effective ones of their embeddings by each encoder (Del Giudice 2021, n1).
        average: the folder of that average, if it is what was compared.
    """

    start: float
    trained: bootstrap.Difference
    merged: bootstrap.Difference
    queries: int
    dimensions: tuple[float, ...]
    average: str = ""

    @property
    def advice(self) -> str:
        corrected = bootstrap.holm([self.trained.p_value, self.merged.p_value])
        found = zip((self.trained, self.merged), corrected, strict=True)
        trained, merged = (each.value if p < 0.05 else 0.0 for each, p in found)
        if max(trained, merged) <= 0.0:
            return "keep"
        enough = _ENOUGH * trained if self.dimensions[1] >= _NARROW * self.dimensions[0] else 0.0
        return "merge" if merged > 0.0 and merged >= enough else "train"

    def describe(self) -> str:
        """The advice and its reasons, in two sentences."""
        name, how = "merged", f"merge it with the start (`dcse merge --share={MergeOptions.share}`)"
        if self.average:
            name, how = "averaged", f"use {self.average}"
        told = {
            "train": f"use the trained encoder, or, if other domains matter, {how}",
            "merge": how,
            "keep": "keep the encoder that training started from",
        }
        trained, both = (
            f"{each.value:+.1f} ({each.low:+.1f} to {each.high:+.1f}) in {left:.0f}"
            for each, left in zip((self.trained, self.merged), self.dimensions[1:], strict=True)
        )
        return (
            f"{told[self.advice]}. {self.queries} held-out turns find those in similar "
            f"surroundings with MAP {self.start:.1f} at the start, in {self.dimensions[0]:.0f} "
            f"effective dimensions; trained {trained}; {name} {both}"
        )


def give_verdict(setup: Setup, run_dir: pathlib.Path, average: str = "") -> Verdict | None:
    """Compares a run's encoder with its start, and with a merge of both or the average of two
    trainings in the folder `average`, on the dev dialogues.

    The start compares the surroundings. Writes the set to the run's surroundings.txt, by which
    `dcse evaluate --retrieval` scores any other encoder. None without a start, from a re-ranker, or
    with too few dev dialogues.
    """
    options, source, trained = setup.options, setup.source, str(run_dir / ENCODER_FOLDER)
    if not (source and options.dev_samples) or options.end_of_turn or is_reranker(source):
        return None
    # Both read as many tokens as the training did, after its prefix.
    length, prefix = setup.manifest.max_sequence_length, setup.vocabulary.prefix
    start = SentenceEncoder.load(options.encoder, max_sequence_length=length, prefix=prefix)
    sessions = read_dialogues(setup.data_dir / "dev.jsonl")
    # Without a warning of cut texts each time.
    turns = build_surroundings_set(sessions, lambda x: start.encode_and_mark(x)[0], options.seed)
    if len(turns.queries) < _FEWEST:
        few = "no verdict without labels: %d dev turns have turns around them and rivals, of %d"
        logging.info(few, len(turns.queries), _FEWEST)
        return None
    retrieval.write_retrieval_set(run_dir / SET_FILE, turns)

    with tempfile.TemporaryDirectory(prefix=MARK, dir=run_dir) as folder:  # where there is room
        both = MergeOptions(start=str(source), trained=trained, output_dir=folder, overwrite=True)
        merged = SentenceEncoder.load(average or merge(both))

    def score(encoder: SentenceEncoder) -> tuple[Evaluation, float]:
        import scipy.stats  # takes half a second

        found = normalize(encoder.encode_and_mark(turns.sentences)[0])
        variances = np.linalg.svd(found - found.mean(axis=0), compute_uv=False) ** 2
        evaluation = retrieval.evaluate_retrieval(turns, lambda _: found)
        return evaluation, float(np.exp(scipy.stats.entropy(variances)))

    encoders = start, SentenceEncoder.load(trained), merged
    (before, *after), dimensions = zip(*map(score, encoders), strict=True)
    gain, kept = (bootstrap.difference(before.items, each.items, "map") for each in after)
    return Verdict(before.scores["map"], gain, kept, len(turns.queries), dimensions, average)
