"""What is told of each cluster, and the files of a report."""

import collections
import contextlib
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jinja2
import numpy as np

from dcse_tf.data.dialogue import make_splitter
from dcse_tf.discovery.clustering import place_in_plane
from dcse_tf.discovery.clusters import CENTRES_FILE, CLUSTERS_FILE, RECORD_FILE, Followed
from dcse_tf.errors import InputError
from dcse_tf.evaluation.retrieval import write_retrieval_set
from dcse_tf.files import write_record
from dcse_tf.sets.retrieval_set import build_retrieval_set, sample_balanced

_TYPICAL, _WORDS, _IN_NAME = 5, 6, 3  # of a cluster: sentences, words, and those of its name
_NEAREST = 200  # texts of a cluster that typical sentences and words are chosen from
_FREQUENT = 0.1  # of a cluster's texts that have a word
_NEWS = 1e-4  # of a cosine, in the mean: what one more typical sentence must add
_LEFT_OUT = 1.0  # percent of a cluster's texts that are too far from its centre to be labelled
_SENTENCES = 4000  # of the retrieval set


class Found(NamedTuple):
    """Distinct texts, their clusters, and the turns that have them."""

    texts: list[str]
    counts: np.ndarray  # turns that have each text, int [texts]
    rows: np.ndarray  # float32 [texts, dim], of length 1
    labels: np.ndarray  # int [texts]
    centres: np.ndarray  # float32 [clusters, dim], of length 1
    similarity: np.ndarray  # the cosine with the own centre, float [texts]
    sharpness: np.ndarray  # float [texts], see measure_sharpness
    sessions: np.ndarray  # the session of each turn, int [turns]
    turn_texts: np.ndarray  # which text each turn has, int [turns]
    answers: list[list[dict[str, Any]]]  # typical ones of each cluster


def describe_clusters(found: Found, followed: Followed) -> list[dict[str, Any]]:
    """The lines of clusters.jsonl, one a cluster, the largest first."""
    numbers, turns = followed.ids, int(found.counts.sum())
    order = np.lexsort([-found.similarity, found.labels])
    ends = np.searchsorted(found.labels[order], np.arange(len(numbers) + 1))
    members = [order[begin:end] for begin, end in itertools.pairwise(ends)]
    texts = [[found.texts[place] for place in each[:_NEAREST]] for each in members]
    words = _find_words(texts, make_splitter("auto"))
    pairs = np.unique(np.stack([found.labels[found.turn_texts], found.sessions]), axis=1)
    sessions = np.bincount(pairs[0], minlength=len(numbers))
    records = []
    for place, own in enumerate(members):
        weights, near = found.counts[own], own[:_NEAREST]
        record = {
            "id": numbers[place],
            "name": ", ".join(words[place][:_IN_NAME]) or texts[place][0],
            "turns": int(weights.sum()),
            "of_turns": turns,
            "share": round(100 * weights.sum() / turns, 2),
            "sessions": int(sessions[place]),
            "texts": len(own),
            "sharpness": round(float(np.average(found.sharpness[own], weights=weights)), 3),
            "words": words[place],
            "typical": choose_typical(texts[place], weights[:_NEAREST], found.rows[near], _TYPICAL),
            "answers": found.answers[place],
            "least_similarity": float(np.percentile(found.similarity[own], _LEFT_OUT)) - 1e-6,
        }
        records.append(record | followed.changes[place])
    return records


def _find_words(
    texts: Sequence[Sequence[str]], split_words: Callable[[str], list[str]]
) -> list[list[str]]:
    """For each cluster's texts the words that distinguish it: a word counts for the share of its
    texts that have it, times the squared logarithm of how many times as many as over all clusters.
    Those that are frequent in over a quarter of clusters, such as "the", come after all others.
    """
    having = [collections.Counter(x for text in own for x in {*split_words(text)}) for own in texts]
    whole = collections.Counter(word for own in having for word in own.elements())
    size = sum(map(len, texts))
    pairs = list(zip(having, texts, strict=True))
    frequent = ({x for x, n in own.items() if n >= _FREQUENT * len(each)} for own, each in pairs)
    spread, most = collections.Counter(itertools.chain(*frequent)), max(2, len(texts) / 4)
    found = []
    for own, each in pairs:
        ranks = {}
        for word, count in own.items():
            ratio = count / len(each) * size / whole[word]
            if any(map(str.isalpha, word)) and (ratio > 1 or len(texts) == 1):
                score = count * (math.log(ratio) ** 2 if len(texts) > 1 else 1)
                # Of words that count for the same, long ones tell more.
                ranks[word] = (spread[word] > most, -score, -len(word), word)
        found.append(sorted(ranks, key=ranks.__getitem__)[:_WORDS])
    return found


def choose_typical(
    texts: Sequence[str], counts: np.ndarray, rows: np.ndarray, number: int
) -> list[dict[str, Any]]:
    """The texts that say most of what all do, with how often: {"text", "turns"}. Each is the one
    that brings all turns nearest, in the mean, to the nearest text chosen.
    """
    cosines, chosen, nearest = rows @ rows.T, list[int](), np.full((len(rows), 1), -1.0)
    while len(chosen) < min(number, len(rows)):
        gains = counts @ np.maximum(cosines - nearest, 0)
        if gains.max() < _NEWS * counts.sum():
            break
        chosen.append(int(gains.argmax()))
        nearest = np.maximum(nearest, cosines[:, chosen[-1:]])
    return [{"text": texts[place], "turns": int(counts[place])} for place in chosen]


def write_report(
    folder: pathlib.Path, found: Found, records: Sequence[dict[str, Any]], summary: dict[str, Any]
) -> None:
    """Writes the files of a report. Its retrieval set has a balanced part of the texts, labelled by
    the clusters, "ID NAME"; there is none if none can be built, see `build_retrieval_set`.
    """
    write_record(folder / RECORD_FILE, summary, sort_keys=False)
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    (folder / CLUSTERS_FILE).write_text("".join(lines), encoding="utf-8")
    np.save(folder / CENTRES_FILE, found.centres)
    names = [f"{record['id']} {record['name']}" for record in records]
    labelled = [(text, names[label]) for text, label in zip(found.texts, found.labels, strict=True)]
    drawn, _ = sample_balanced(labelled, _SENTENCES, seed=0, min_label_sentences=2)
    with contextlib.suppress(InputError):
        sentences, _ = build_retrieval_set(drawn, make_splitter("auto"))
        write_retrieval_set(folder / "retrieval.txt", sentences)

    places = place_in_plane(found.centres).tolist()
    circles = [{"x": x, "y": y, **record} for (x, y), record in zip(places, records, strict=True)]
    loader = jinja2.PackageLoader("dcse_tf.discovery")
    pages = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    page = pages.get_template("clusters.html.j2").render(summary=summary, circles=circles)
    (folder / "report.html").write_text(page, encoding="utf-8")
