"""The calibrate job: how two stages are added up, and which answers are good enough to be given.

Both are learnt from held-out dialogues without labels. Each gives a context, its true response and
responses of other dialogues. The first stage's cosine gets the weight with which true responses
rank highest. What the best of the others scores is what an answer can score although none is
right: so a query has no answer if its best one scores no more than most of these.
"""

import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dcse_tf.bert.encoder_options import ModelOptions
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.evaluation.bootstrap import difference
from dcse_tf.evaluation.evaluate import draw_samples
from dcse_tf.evaluation.metrics import PROJECTED, RERANKER, recall_at, reciprocal_rank
from dcse_tf.evaluation.response_selection import Sample, score_by_embeddings, score_by_reranker
from dcse_tf.files import atomic_file, write_json
from dcse_tf.input_files import resolve_inputs
from dcse_tf.options import option
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.search.calibration import Calibration
from dcse_tf.search.searcher import describe_stages, load_first_stage

_WEIGHTS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
_RATES = (1.0, 5.0, 10.0, 20.0)  # percent, of the table that is shown


class CalibrateOptions(ModelOptions):
    """With `reranker` or `find`=responses, for search. Else `model` is a re-ranker, for serve."""

    dialogues: str = option(
        "",
        "Held-out dialogues, one a line, such as prepare_data's dev.jsonl: some hundred.",
        required=True,
        path="files",
    )
    check_dialogues: tuple[str, ...] = option(
        (), "Others, on which to measure what the calibration does.", path="files"
    )
    find: str = option("similar", "As in search.", choices=("similar", "responses"))
    reranker: str = option("", "Re-ranker, the second stage, as in search.", path="reads")
    candidates: int = option(
        10,
        "Responses to rank, one of them true; those of other dialogues are the wrong ones.",
        minimum=2,
    )
    context_turns: int = option(3, "Turns before a response in its context, at most.", minimum=1)
    max_samples: int = option(1000, "Dialogues of a file, at most. 0: all.", minimum=0)
    output: str = option("", "JSON file to write.", required=True, path="renews")


def calibrate(options: CalibrateOptions) -> str:
    """Writes the calibration to `output`, and returns what it does as a table.

    Raises:
        InputError: a model or a file of dialogues cannot be used.
        OutputError: the output cannot be written.
    """
    with atomic_file(pathlib.Path(options.output)) as partial:  # before anything long is done
        found, table = _calibrate(options)
        write_json(partial, dataclasses.asdict(found), sort_keys=True)
    return table


def _calibrate(options: CalibrateOptions) -> tuple[Calibration, str]:
    """The calibration, and the table."""
    others = resolve_inputs(options.check_dialogues, "check_dialogues")
    files = [pathlib.Path(options.dialogues), *others]
    drawn = [draw_samples(path, options, seed=0) for path in files]
    encoder = reranker = None
    if options.reranker or options.find == "responses":
        encoder = load_first_stage(options, options.find)
    if options.reranker or not encoder:
        reranker = Reranker.from_options(options, "reranker" if encoder else "model")
    parts = [_score(of_file, options.find, encoder, reranker) for of_file in drawn]

    def find_mrr(weight: float) -> float:
        rows = _add(parts[0], weight)
        return float(np.mean([reciprocal_rank(row, np.arange(len(row)) == 0) for row in rows]))

    both = bool(encoder and reranker)
    weight = max(_WEIGHTS if both else (float(not reranker),), key=find_mrr)
    wrong = sorted(float(row[1:].max()) for row in _add(parts[0], weight))
    found = Calibration(describe_stages(options.find, encoder, reranker), weight, wrong)

    # A weight of a million leaves the re-ranker nothing to say.
    ways = {"": weight} | ({" by the re-ranker": 0.0, " by the cosine": 1e6} if both else {})
    lines = [f"`cosine_weight`={weight:g}, of the highest MRR on {options.dialogues}"] * both
    for path, part in zip(files, parts, strict=True):
        recalls = {
            way: {"r1": 100 * np.array([recall_at(1, row) for row in _add(part, w)])}
            for way, w in ways.items()
        }
        told = f"{recalls['']['r1'].mean():.1f}"
        for way, recall in list(recalls.items())[1:]:
            p_value = difference(recall, recalls[""], "r1").p_value
            told += f", {recall['r1'].mean():.1f}{way} (p {p_value:.2g})"
        lines.append(f"{path}: R@1 of {options.candidates} {told}")
        lines.append("  at most   score above   wrong answers given   right answers given")
        best = np.array([row[1:].max() for row in _add(part, weight)])
        # A true response counts as given if no other candidate scores higher.
        true = np.array([x[0] if x[0] >= x.max() else -math.inf for x in _add(part, weight)])
        for rate in _RATES:
            least = found.threshold(rate)
            shares = f"{np.mean(best > least):19.1%}   {np.mean(true > least):19.1%}"
            lines.append(f"  {rate:6g}%   {least:11.3f}   {shares}")
    return found, "\n".join(lines)


def _add(rows: Sequence[np.ndarray], weight: float) -> list[np.ndarray]:
    return [row[1] + weight * row[0] for row in rows]


def _score(
    drawn: Sequence[Sample], find: str, encoder: SentenceEncoder | None, reranker: Reranker | None
) -> list[np.ndarray]:
    """Of each sample of a file the cosines and the re-ranker's scores of its candidates, the true
    response first, float `[2, candidates]`; 0 of a stage that there is not.
    """
    # Only what a query of `search` has: earlier turns, and not who said them.
    without: dict[str, Any] = {"later": (), "roles": None, "responder": None}
    samples = [dataclasses.replace(sample, **without) for sample in drawn]
    rows: list[Sequence[np.ndarray]] = [[np.zeros(len(x.candidates)) for x in samples]] * 2
    if encoder:
        found = score_by_embeddings(samples, encoder.encode, encoder.heads)
        rows[0] = found[PROJECTED if find == "responses" else "cosine"]
    if reranker:
        rows[1] = score_by_reranker(samples, reranker.score)[RERANKER]
    return [np.stack(each) for each in zip(*rows, strict=True)]
