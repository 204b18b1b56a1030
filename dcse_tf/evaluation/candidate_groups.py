"""Response selection on files of grouped candidates: each context has its own candidates."""

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Sequence

import numpy as np

from dcse_tf.data.formats import read_groups
from dcse_tf.data.formats.candidates import CandidateGroup
from dcse_tf.errors import InputError
from dcse_tf.evaluation import metrics
from dcse_tf.evaluation.metrics import Evaluation
from dcse_tf.evaluation.names import RECALLS, group_scores
from dcse_tf.evaluation.options import EvaluateOptions
from dcse_tf.evaluation.response_selection import Sample, SampleScore
from dcse_tf.files import hash_bytes
from dcse_tf.input_files import BadLines


@dataclasses.dataclass(frozen=True)
class CandidateSet:
    """The samples of a file of groups.

    Attributes:
        samples: one per group.
        fingerprint: a hash of the groups as they are in the file, with whole contexts and the
            order of candidates.
    """

    samples: list[Sample]
    fingerprint: str


def read_candidate_set(path: pathlib.Path, config: EvaluateOptions) -> CandidateSet:
    """Reads a file of groups in the format that the options name.

    Raises:
        InputError: the file cannot be used, or has no group.
    """
    samples, prints = [], []
    groups = read_groups(
        path,
        config.candidates_format,
        BadLines(config.max_bad_lines),
        several_positives=config.several_positives,
        lines=config.candidates_lines,
    )
    for group in groups:
        samples.append(make_sample(group, config.candidates_turns))
        texts = [turn.text for turn in group.context]
        prints.append(hash_bytes(repr((texts, group.candidates, group.labels)).encode()))
    if not samples:
        raise InputError(f"{path}: no group of candidates")
    return CandidateSet(samples, hash_bytes("".join(prints).encode()))


def make_sample(group: CandidateGroup, turns: int = 0) -> Sample:
    """Turns a group into a sample: true responses first, otherwise in the file's order.

    Args:
        group: the group.
        turns: how many turns of the context to keep, the last ones; 0 for all.
    """
    order = sorted(range(len(group.labels)), key=lambda place: -group.labels[place])
    context = group.context[-turns:]
    return Sample(
        [turn.text for turn in context],
        [group.candidates[place] for place in order],
        positives=sum(group.labels),
        roles=[turn.role for turn in context],
        responder=group.responder,
    )


def evaluate_groups(samples: Sequence[Sample], score: SampleScore, similarity: str) -> Evaluation:
    """R@k, MAP and MRR in percent; ties count as the mean over all orders.

    R@k, the share of the true responses that are among the first k, cannot be compared between
    different numbers of candidates. It is computed over the groups of the most frequent size, the
    larger one in a tie. R@1 of 2 ranks the first true response in the file's order against the
    first other candidate. R@1 of 2, MAP and MRR are computed over all groups.

    Args:
        samples: one per group, each with at least one candidate that is not a true response.
        score: computes a similarity of contexts and candidates.
        similarity: its name, the prefix of the scores' names.

    Returns:
        Scores: those of `names.group_scores`, and the same with "chance_" for a random ranking;
        tie_share, the percentage of candidates with the same score as another one of their group;
        groups, the number of groups; groups_of_N, the number of groups with N candidates; and
        candidates, the N of R@k. Items: one per group; for R@k, one per group of N candidates.
    """
    sizes = collections.Counter(len(sample.candidates) for sample in samples)
    size = max(sizes, key=lambda length: (sizes[length], length))
    names = [*group_scores(similarity, size), "tie_share"]
    items: dict[str, list[float]] = {name: [] for name in names}
    chances: dict[str, list[float]] = {name: [] for name in names}
    for sample, row in zip(samples, score(samples), strict=True):
        found = _score_group(np.asarray(row), sample.positives, similarity)
        chance = _chance(len(sample.candidates), sample.positives, similarity)
        for name in names:
            if len(sample.candidates) == size or name not in _recall_names(similarity):
                items[name].append(found[name])
                chances[name].append(chance[name])
    arrays = {name: 100.0 * np.array(values) for name, values in items.items()}
    return Evaluation(
        {
            **{name: float(np.mean(values)) for name, values in arrays.items()},
            **{
                f"chance_{name}": 100.0 * float(np.mean(values))
                for name, values in chances.items()
                if name != "tie_share"
            },
            "groups": float(len(samples)),
            "candidates": float(size),
            **{f"groups_of_{length}": float(sizes[length]) for length in sorted(sizes)},
        },
        arrays,
    )


def _recall_names(similarity: str) -> list[str]:
    return [f"{similarity}_r{k}" for k in RECALLS]


def _score_group(scores: np.ndarray, positives: int, similarity: str) -> dict[str, float]:
    relevant = np.arange(len(scores)) < positives
    recalls = (metrics.recall_at(k, scores, relevant) for k in RECALLS)
    return {
        **dict(zip(_recall_names(similarity), recalls, strict=True)),
        f"{similarity}_r1_of_2": metrics.recall_at(1, scores[[0, positives]]),
        f"{similarity}_map": metrics.average_precision(scores, relevant),
        f"{similarity}_mrr": metrics.reciprocal_rank(scores, relevant),
        "tie_share": metrics.tied_share(scores),
    }


@functools.cache
def _chance(candidates: int, positives: int, similarity: str) -> dict[str, float]:
    return _score_group(np.zeros(candidates), positives, similarity)
