"""The calibrate job: how two stages are added up, and which answers are good enough to be given.

Both are learnt from held-out dialogues without labels. Each gives a context, its true response and
others, of other dialogues or an index. The first stage's cosine gets the weight with which true
responses are likeliest. What the best of the others scores is what an answer can score although
none is right: so a query has no answer if its best one scores no more than most of these.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np
import scipy

from dcse_tf.bert.encoder_options import EncoderOptions, ModelOptions
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.evaluation.bootstrap import difference, holm
from dcse_tf.evaluation.evaluate import check_drawing, draw_samples
from dcse_tf.evaluation.metrics import PROJECTED, RERANKER, recall_at
from dcse_tf.evaluation.response_selection import Sample, score_by_embeddings, score_by_reranker
from dcse_tf.files import atomic_file, write_json
from dcse_tf.input_files import resolve_inputs
from dcse_tf.options import option
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.search import searcher as search
from dcse_tf.search.calibration import Calibration


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
        0, "Responses to rank, one true. 0: 10, of an `index` 101.", minimum=2, or_zero=True
    )
    index: str = option(
        "", "Of search; what it finds is wrong. Default: other dialogues' responses.", path="reads"
    )
    context_turns: int = option(3, "Turns before a response in its context, at most.", minimum=1)
    max_samples: int = option(1000, "Dialogues of a file, at most. 0: all.", minimum=0)
    output: str = option("", "JSON file to write.", required=True, path="renews")

    def __post_init__(self) -> None:
        super().__post_init__()
        search.check_first_stage(self)
        if self.find == "similar":  # without `reranker`, `model` is one, which gives no embeddings
            self.check_needed("reranker", *EncoderOptions.fields(), "truncate_dim", "index")


def calibrate(options: CalibrateOptions) -> str:
    """Writes the calibration to `output`, and returns what it does as a table. Raises InputError if
    a model or a file of dialogues cannot be used, OutputError if the output cannot be written.
    """
    with atomic_file(pathlib.Path(options.output)) as partial:  # before anything long is done
        files = resolve_inputs([options.dialogues, *options.check_dialogues], "check_dialogues")
        count = options.candidates or (search.RERANK_TOP + 1 if options.index else 10)
        to_draw = options.replace(candidates=2 if options.index else count)
        check_drawing(to_draw)
        drawn = [draw_samples(path, to_draw, seed=0) for path in files]
        encoder = reranker = None
        if options.index:
            same = {x: getattr(options, x) for x in (*ModelOptions.fields(), "find", "index")}
            with search.open_searcher(search.SearchOptions(**same)) as searcher:
                drawn = [_find_rivals(of_file, searcher, count) for of_file in drawn]
            encoder = searcher.encoder
        elif options.reranker or options.find == "responses":
            encoder = search.load_first_stage(options, options.find)
        if options.reranker or not encoder:
            reranker = Reranker.from_options(options, "reranker" if encoder else "model")
        parts = [_score(of_file, options.find, encoder, reranker) for of_file in drawn]

        ways = {" by the re-ranker": (0.0, 1.0), " by the cosine": (1.0, 0.0)}
        alone = ways if encoder and reranker else {}
        weight = fit_weight(parts[0]) if alone else float(not reranker)
        wrong = sorted((parts[0] @ (weight, 1.0))[:, 1:].max(axis=1).tolist())
        stages = search.describe_stages(options.find, encoder, reranker)
        found = Calibration(stages, weight, wrong, bool(options.index))
        write_json(partial, dataclasses.asdict(found), sort_keys=True)

    lines = [f"weight of the cosine {weight:g}, likeliest on {options.dialogues}"] * bool(alone)
    for path, part in zip(files, parts, strict=True):
        sums = [part @ shares for shares in ((weight, 1.0), *alone.values())]
        together, *each = [{"r1": 100 * np.array([recall_at(1, row) for row in x])} for x in sums]
        lines.append(f"{path}: R@1 of {count} {together['r1'].mean():.1f}")
        p_values = holm([difference(recall, together, "r1").p_value for recall in each])
        for way, recall, p_value in zip(alone, each, p_values, strict=True):
            lines[-1] += f", {recall['r1'].mean():.1f}{way} (p {p_value:.2g})"
        lines.append("  at most   score above   wrong answers given   right answers given")
        true, best = sums[0][:, 0], sums[0][:, 1:].max(axis=1)
        for rate in (1.0, 5.0, 10.0, 20.0):  # percent
            least = found.threshold(rate)
            # A true response counts as given if no other candidate scores higher.
            right = (true > least) & (true >= best)
            given = f"{np.mean(best > least):19.1%}   {np.mean(right):19.1%}"
            lines.append(f"  {rate:6g}%   {least:11.3f}   {given}")
    return "\n".join(lines)


def _find_rivals(samples: list[Sample], searcher: search.Searcher, count: int) -> list[Sample]:
    """Samples whose wrong candidates are what the searcher finds first, `count` with the true."""
    found = []
    for x, hits in zip(samples, searcher.find([x.context for x in samples], count), strict=True):
        true = x.candidates[0].casefold()
        wrong = [hit.text for hit in hits if " ".join(hit.text.split()).casefold() != true]
        if (few := len(wrong)) < count - 1:
            told = f"{few} texts beside the true response; give `candidates`={few + 1}, not {count}"
            raise InputError(f"`index`={searcher.config.index}: has {told}")
        found.append(dataclasses.replace(x, candidates=[*x.candidates[:1], *wrong[: count - 1]]))
    return found


def fit_weight(rows: np.ndarray) -> float:
    """The cosine's weight beside the re-ranker's score, from rows as of `_score`; three digits.

    It is b / a, where softmaxes of a score + b cosine over the candidates give the true responses
    the highest likelihood (a conditional logit, McFadden 1974). Every sample has its say in it;
    the weight with the best ranks, which few samples decide, varies twice as much.
    """

    def lose(shares: np.ndarray) -> float:
        sums = rows @ shares
        return float(np.mean(scipy.special.logsumexp(sums, axis=1) - sums[:, 0]))

    # A re-ranker that only harms keeps a thousandth, as the weight is of the cosine.
    found = scipy.optimize.minimize(lose, [1.0, 1.0], bounds=[(0.0, None), (1e-3, None)])
    return float(f"{found.x[0] / found.x[1]:.3g}")


def _score(
    drawn: Sequence[Sample], find: str, encoder: SentenceEncoder | None, reranker: Reranker | None
) -> np.ndarray:
    """The cosines and the re-ranker's scores of samples' candidates, the true response first, float
    `[samples, candidates, 2]`; 0 of a stage that there is not.
    """
    # Only what a query of `search` has: earlier turns, and not who said them.
    samples = [dataclasses.replace(x, later=(), roles=None, responder=None) for x in drawn]
    cosines = scores = np.zeros([len(samples), len(drawn[0].candidates)])
    if encoder:
        found = score_by_embeddings(samples, encoder.encode, encoder.heads)
        cosines = np.stack(found[PROJECTED if find == "responses" else "cosine"])
    if reranker:
        scores = np.stack(score_by_reranker(samples, reranker.score)[RERANKER])
    return np.stack([cosines, scores], axis=2)
