"""How far build_retrieval rebuilds a published retrieval set from its sentences and intents.

python experiments/rebuild_retrieval.py select.txt
"""

import pathlib
import sys

import numpy as np

from dcse_tf.data.words import make_splitter
from dcse_tf.evaluation.report import align
from dcse_tf.evaluation.retrieval import read_retrieval_set
from dcse_tf.tools.retrieval_set import Bm25, Selection

SELECTIONS = {
    "top": Selection("top", candidates=100, max_positives=30),
    "hard": Selection("hard", max_positives=30, max_negatives=40),
}


def main() -> None:
    published = read_retrieval_set(pathlib.Path(sys.argv[1]))
    intents = np.array(published.intents)
    if not all(published.intents):
        sys.exit("error: the set has no intents to rebuild it by")
    sizes = np.unique(intents, return_counts=True)[1]
    print(f"{len(intents)} sentences, {len(sizes)} intents of {sizes.min()} to {sizes.max()}")
    rows = [("words", "selection", "positives", "negatives", "candidates")]
    for kind in ("jieba", "characters"):
        split = make_splitter(kind)
        words = [split(sentence) for sentence in published.sentences]
        index = Bm25(words)
        shares: dict[str, list[tuple[float, ...]]] = {name: [] for name in SELECTIONS}
        for query in published.queries:
            ranked = index.rank(words[query.sentence])
            ranked = ranked[ranked != query.sentence]
            relevant = intents[ranked] == intents[query.sentence]
            for name, selection in SELECTIONS.items():
                chosen = selection.choose(ranked, relevant)
                theirs = (query.positives, query.negatives)
                pairs = [*zip(theirs, chosen, strict=True)]
                pairs.append((np.concatenate(theirs), np.concatenate(chosen)))
                shares[name].append(tuple(np.isin(a, b).mean() for a, b in pairs))
        for name, values in shares.items():
            found = [f"{100 * share:.1f}%" for share in np.mean(values, axis=0)]
            rows.append((kind, name, *found))
    print("share of the published lists that the rebuilt ones have, mean over queries:")
    print(align(rows, text_columns=2))
    alike = np.array([np.sum(intents == intents[q.sentence]) - 1 for q in published.queries])
    print(
        f"30 sentences of the intent at random: {100 * np.mean(30 / alike):.1f}% of the positives"
    )


if __name__ == "__main__":
    main()
