"""Chooses the share of a merge on held-out dialogues, without labels."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from dcse_tf.errors import InputError
from dcse_tf.evaluation.bootstrap import Difference, difference
from dcse_tf.evaluation.metrics import Encode, Evaluation
from dcse_tf.evaluation.report import align, short_path
from dcse_tf.evaluation.response_selection import (
    Sample,
    cosine_score,
    embed_groups,
    evaluate_response_selection,
    make_samples,
    read_sessions,
)
from dcse_tf.evaluation.retrieval import RetrievalSet, evaluate_retrieval, read_retrieval_set
from dcse_tf.input_files import resolve_inputs
from dcse_tf.inspecting.changes import compare_embeddings
from dcse_tf.inspecting.changes_job import draw_sentences
from dcse_tf.matching.head_files import HeadMaps
from dcse_tf.training.merge_options import MergeOptions

_R1, _MRR = "cosine_r1", "cosine_mrr"
_SENTENCES = 1000  # sentences whose nearest neighbours are compared


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measurements of the start or of a share.

    Attributes:
        selection: scores of response selection by cosine, behind the projection heads if any.
        maps: MAP on each guard, in percent.
        embeddings: float `[sentences, dim]`, of the sentences whose neighbours are compared.
    """

    selection: Evaluation
    maps: tuple[float, ...]
    embeddings: np.ndarray


@dataclasses.dataclass(frozen=True)
class Row:
    """The start or a share, compared with the start.

    Gains are over share 0, the start's weights, centred and behind the projection heads if the
    shares are; `kept`, `cosine` and `passes` compare with the original start.

    Attributes:
        name: "start" or the share.
        r1, mrr: R@1 and MRR of response selection, in percent.
        gain: the gain in MRR over share 0; None for share 0 itself.
        kept: percentage of the nearest neighbours that are also those of the original start.
        cosine: mean raw cosine between a sentence's embedding and that of the original start.
        maps: MAP on each guard, in percent.
        passes: whether no guard's MAP is below the original start's by more than the tolerance.
    """

    name: str
    r1: float
    mrr: float
    gain: Difference | None
    kept: float
    cosine: float
    maps: tuple[float, ...]
    passes: bool


@dataclasses.dataclass(frozen=True)
class Choice:
    """The choice of a share.

    Attributes:
        share: the chosen share; 0 for the start's weights.
        reason: why it was chosen, in one sentence.
        rows: the start and all shares.
        guards: the files of the guards.
    """

    share: float
    reason: str
    rows: tuple[Row, ...]
    guards: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def format_table(self) -> str:
        head = ["share", "R@1", "MRR", "gain in MRR (95%)", "p", "neighbours kept", "cosine"]
        rows = [[*head, *(f"MAP {short_path(name)}" for name in self.guards), ""]]
        for row in self.rows:
            gain = row.gain
            remark = "" if row.passes else "below a guard"
            rows.append(
                [
                    *(row.name, f"{row.r1:.1f}", f"{row.mrr:.2f}"),
                    f"{gain.value:+.2f} ({gain.low:+.2f} to {gain.high:+.2f})" if gain else "",
                    f"{gain.p_value:.2g}" if gain else "",
                    *(f"{row.kept:.1f}%", f"{row.cosine:.3f}"),
                    *(f"{value:.2f}" for value in row.maps),
                    "chosen" if row.name == f"{self.share:g}" else remark,
                ]
            )
        return align(rows, text_columns=1)


class Judge:
    """Measures shares on dev dialogues and guards.

    Args:
        samples: response selection samples of dev sessions.
        guards: file -> semantic retrieval set.
        seed: seed for drawing the sentences whose neighbours are compared.

    Attributes:
        texts: all distinct texts to embed.
        sentences: the sentences whose neighbours are compared.
        guards: the files of the guards.
    """

    def __init__(self, samples: list[Sample], guards: Mapping[str, RetrievalSet], seed: int):
        said = [text for sample in samples for text in (*sample.context, *sample.candidates)]
        asked = [text for guard in guards.values() for text in guard.sentences]
        self.texts = sorted({*said, *asked})
        self.sentences = draw_sentences(said, _SENTENCES, seed)
        self.guards = tuple(guards)
        self._samples = samples
        self._sets = list(guards.values())

    def embed(self, encode: Encode) -> Encode:
        """Embeds all `texts` with an encoder; the result finds their embeddings again."""
        return embed_groups([self.texts], encode)

    def measure(self, look_up: Encode, heads: HeadMaps | None = None) -> Measured:
        """Measures an encoder.

        Args:
            look_up: finds the encoder's embeddings of `texts`; see `embed`.
            heads: projection heads, behind which responses are ranked; None for none.
        """
        return Measured(
            evaluate_response_selection(self._samples, cosine_score(look_up, heads), "cosine"),
            tuple(evaluate_retrieval(guard, look_up).scores["map"] for guard in self._sets),
            look_up(self.sentences),
        )


def read_judge(options: MergeOptions) -> Judge:
    """Reads the dev dialogues and guards that shares are measured on.

    Raises:
        InputError: there are too few dev sessions, or a guard cannot be read.
    """
    path = pathlib.Path(options.data_dir) / "dev.jsonl"
    samples = make_samples(
        read_sessions(path),
        candidates=options.candidates,
        context_turns=options.context_turns,
        max_samples=options.max_samples,
        seed=options.seed,
        same_role=options.same_role,
    )
    if not samples:
        raise InputError(
            f"{path}: too few sessions to choose by: expected {options.candidates} different "
            "responses (`candidates`)"
        )
    guards = {str(p): read_retrieval_set(p) for p in resolve_inputs(options.guard, "guard")}
    return Judge(samples, guards, options.seed)


def compare_shares(
    judge: Judge,
    start: Measured,
    base: Measured,
    shares: Mapping[float, Measured],
    keep: float,
    tolerance: float,
) -> Choice:
    """Compares the shares with the start, and chooses one; see `pick_share`.

    Args:
        judge: the judge that measured them.
        start: measurements of the original start, which guards are compared with.
        base: measurements of share 0, which gains are relative to: of the start's weights, centred
            and behind the projection heads if the shares are; else the same as `start`.
        shares: share -> its measurements.
        keep: see `pick_share`.
        tolerance: points of MAP by which a guard may fall.
    """

    def make_row(name: str, found: Measured) -> Row:
        gain = None
        if found is not base:
            gain = difference(base.selection.items, found.selection.items, _MRR)
        drift = compare_embeddings(judge.sentences, start.embeddings, found.embeddings)
        assert drift.cosine is not None
        return Row(
            name,
            found.selection.scores[_R1],
            found.selection.scores[_MRR],
            gain,
            drift.kept,
            drift.cosine,
            found.maps,
            all(now >= was - tolerance for now, was in zip(found.maps, start.maps, strict=True)),
        )

    rows = {share: make_row(f"{share:g}", found) for share, found in shares.items()}
    gains = {share: row.gain.value for share, row in rows.items() if row.passes and row.gain}
    share = pick_share(gains, keep)
    first = [make_row("start", start)] if base is not start else []
    listed = (*first, make_row("0", base), *rows.values())
    return Choice(share, _explain(share, gains, rows, keep), listed, judge.guards)


def pick_share(gains: Mapping[float, float], keep: float) -> float:
    """The smallest share with at least a fraction `keep` of the largest gain; 0 if none gains.

    With a growing share, the gain rises steeply at first and then flattens, while the start's
    abilities are lost ever faster (WiSE-FT, figure 1). So the smallest share with most of the gain
    loses the least for it.

    Args:
        gains: share -> gain over the start, of the shares that may be chosen.
        keep: the fraction, from 0 to 1.
    """
    largest = max(gains.values(), default=0.0)
    if largest <= 0.0:
        return 0.0
    return min(share for share, gain in gains.items() if gain > 0.0 and gain >= keep * largest)


def _explain(
    share: float, gains: Mapping[float, float], rows: Mapping[float, Row], keep: float
) -> str:
    refused = [f"{other:g}" for other, row in rows.items() if not row.passes]
    guarded = f"; a guard refuses {', '.join(refused)}" if refused else ""
    if not share:
        why = f"no share beats the start in response selection{guarded}: the start's weights stay"
        logging.warning("%s", why)
        return why
    best = max(gains, key=lambda other: gains[other])
    return (
        f"share {share:g}: the smallest with {keep:.0%} of the largest gain in MRR, "
        f"{gains[share]:+.2f} of {gains[best]:+.2f} (at {best:g}){guarded}"
    )


def describe_measured(found: Measured) -> str:
    """Formats the scores as one line."""
    scores = found.selection.scores
    maps = "".join(f", MAP {value:.2f}" for value in found.maps)
    return f"R@1 {scores[_R1]:.1f}, MRR {scores[_MRR]:.2f}{maps}"
