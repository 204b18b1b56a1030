"""The clusters that `dcse discover` found: labels for new texts, and identities across time."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import scipy

from dcse_tf.bert.encoder_options import ModelOptions
from dcse_tf.encoder.backend import normalize
from dcse_tf.encoder.sentence_encoder import SentenceEncoder, read_texts
from dcse_tf.errors import name_input
from dcse_tf.files import require_same
from dcse_tf.input_files import UNREADABLE_ARRAY, read_json_object

CLUSTERS_FILE, CENTRES_FILE, RECORD_FILE = "clusters.jsonl", "centres.npy", "report.json"
_MODEL = "contents of `model`"
SHARES_OF = ("turns", "role", "min_words")  # settings that say which turns are counted
_ROWS = 8192  # whose similarities to all centres are held at a time
_MAJORITY = 0.5  # of the turns of a cluster
_CERTAIN = 0.05  # the p-value below which a share has changed, over all clusters


class Label(NamedTuple):
    """The cluster of a text; None if no cluster is near enough."""

    cluster: int | None
    name: str
    similarity: float  # the cosine with the nearest cluster's centre


@dataclasses.dataclass(frozen=True)
class Clusters:
    """The clusters of a report, nearest to which new texts are labelled.

        clusters = dcse_tf.Clusters.load("report")
        clusters.predict(["where is my parcel"])

    Attributes:
        records: the lines of clusters.jsonl.
        centres: float32 `[clusters, dim]`, of length 1.
        encoder: the encoder that the report was made with.
        next_id: an id that no cluster has had.
        shares_of: the settings that say which turns their shares are of, by name.
    """

    records: Sequence[dict[str, Any]]
    centres: np.ndarray
    encoder: SentenceEncoder
    next_id: int
    shares_of: Mapping[str, Any]

    @classmethod
    def load(cls, folder: str | os.PathLike[str], encoder: SentenceEncoder | None = None) -> Self:
        """Reads a report, with its encoder unless one is given.

        Raises:
            InputError: the folder is no report, or the encoder is another than the report's.
            TypeError: the encoder is a name.
        """
        if not isinstance(encoder, SentenceEncoder | None):
            raise TypeError("expected an encoder; SentenceEncoder.load takes the name of a model")
        path = pathlib.Path(folder).expanduser()
        record = read_json_object(path / RECORD_FILE, "a report of discover")
        with name_input(f"{path}: not a report of discover", UNREADABLE_ARRAY):
            settings = {name: record["settings"][name] for name in ModelOptions.fields()}
            lines = (path / CLUSTERS_FILE).read_text(encoding="utf-8").splitlines()
            records, centres = list(map(json.loads, lines)), np.load(path / CENTRES_FILE)
            made_from, next_id = {_MODEL: record["model"]}, int(record["next_id"])
            shares_of = {f"`{name}`": record["settings"][name] for name in SHARES_OF}
            if len(records) != len(centres):
                raise ValueError(f"{len(records)} clusters, but {len(centres)} centres")
        encoder = encoder or SentenceEncoder.from_options(ModelOptions(**settings))
        problem = f"{path}: was made with another encoder"
        require_same(made_from, {_MODEL: encoder.fingerprint()}, problem, "give the same")
        return cls(records, centres, encoder, next_id, shares_of)

    def predict(self, texts: Sequence[str], show_progress: bool = False) -> list[Label]:
        """Labels texts by the nearest centre, or by None where 99 of 100 texts of that cluster are
        nearer to it.
        """
        texts = read_texts(texts, "texts")
        return self.label(self.encoder.encode(texts, show_progress=show_progress))

    def label(self, embeddings: np.ndarray) -> list[Label]:
        """`predict` for texts that the encoder has embedded, float `[n, dim]`."""
        parts = np.split(normalize(embeddings), range(_ROWS, len(embeddings), _ROWS))
        cosines = (part @ self.centres.T for part in parts)
        found = [(each.argmax(axis=1), each.max(axis=1)) for each in cosines]
        nearest, best = map(np.concatenate, zip(*found, strict=True))
        chosen = [self.records[place] for place in nearest]
        near = best >= np.array([record["least_similarity"] for record in chosen])
        return [
            Label(record["id"], record["name"], value) if found else Label(None, "", value)
            for record, value, found in zip(chosen, best.tolist(), near.tolist(), strict=True)
        ]


class Followed(NamedTuple):
    """What became of the clusters of an earlier report.

    Attributes:
        ids: of each cluster of today, that of the earlier one or a new one.
        changes: of each cluster of today: "change" is same, grown, shrunk, merged, split or new,
            "from" the earlier ids, "share_before" in percent; empty without an earlier report.
        gone: the earlier clusters that are gone.
        next_id: an id that no cluster has had.
    """

    ids: list[int]
    changes: list[dict[str, Any]]
    gone: list[dict[str, Any]]
    next_id: int


def follow(
    previous: Clusters | None, embeddings: np.ndarray, turns: np.ndarray, labels: np.ndarray
) -> Followed:
    """Finds what became of earlier clusters, by which today's texts are labelled.

    A cluster comes from the earlier one that gave it most turns, if these are most of its own or
    most of that one's. It is that one if no other got more of its turns, else split off; it is
    merged if most turns of further ones came into it too. Else it is new.

    Args:
        previous: the earlier clusters; None if there are none, as yet.
        embeddings: of the distinct texts, float `[texts, dim]`.
        turns: how many turns have each text, int `[texts]`.
        labels: the cluster of each text, int `[texts]`.
    """
    count = int(labels.max()) + 1
    if previous is None:
        return Followed(list(range(1, count + 1)), [{}] * count, [], count + 1)
    places = {record["id"]: place for place, record in enumerate(previous.records)}
    nearest = [places.get(found.cluster, len(places)) for found in previous.label(embeddings)]
    flows = np.zeros((count, len(places) + 1))
    np.add.at(flows, (labels, np.array(nearest)), turns)
    sizes, flows = flows.sum(axis=1), flows[:, :-1]
    whole = flows > _MAJORITY * flows.sum(axis=0)  # most of the earlier cluster came into this one
    free, ids, changes, kept = previous.next_id, [], [], set()
    for place, before in enumerate(flows.argmax(axis=1).tolist()):
        record, change = previous.records[before], {"change": "new", "from": list[int]()}
        if flows[place, before] > _MAJORITY * sizes[place] or whole[place, before]:
            came = {before, *np.flatnonzero(whole[place]).tolist()}
            change = {"change": "split", "from": [record["id"]], "share_before": record["share"]}
            if flows[:, before].argmax() == place:
                now = (sizes[place], sizes.sum())
                change["change"] = _compare(now, (record["turns"], record["of_turns"]), len(sizes))
                kept |= came
                if len(came) > 1:
                    change["change"] = "merged"
                    change["from"] = sorted(previous.records[each]["id"] for each in came)
        own = change["change"] not in ("new", "split")
        ids.append(record["id"] if own else free)
        free += not own
        changes.append(change)
    gone = [
        {"id": record["id"], "name": record["name"], "turns": int(flows[:, place].sum())}
        for place, record in enumerate(previous.records)
        if place not in kept
    ]
    return Followed(ids, changes, gone, free)


def _compare(now: tuple[float, float], before: tuple[float, float], comparisons: int) -> str:
    """Whether a share (turns, of turns) has changed, by a corrected chi-squared test."""
    table = np.array([[part, whole - part] for part, whole in (now, before)])
    p_value = scipy.stats.chi2_contingency(table + 0.5)[1]
    if p_value * comparisons >= _CERTAIN:
        return "same"
    return "grown" if now[0] / now[1] > before[0] / before[1] else "shrunk"
