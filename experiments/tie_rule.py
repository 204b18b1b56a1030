"""The rule for ties on real files: a constant encoder must score what random rankings score.

python experiments/tie_rule.py SELECT_FILE...
"""

import pathlib
import sys
import zlib

import numpy as np

from dcse_tf.evaluation.retrieval import evaluate_retrieval, read_retrieval_set

RANKINGS = 5


def constant(sentences: list[str]) -> np.ndarray:
    return np.ones([len(sentences), 8], np.float32)


def random(seed: int):
    """An encoder that gives every sentence a random direction."""

    def encode(sentences: list[str]) -> np.ndarray:
        seeds = [[seed, zlib.crc32(sentence.encode())] for sentence in sentences]
        return np.stack([np.random.default_rng(s).standard_normal(64) for s in seeds])

    return encode


def main() -> None:
    for name in sys.argv[1:]:
        retrieval = read_retrieval_set(pathlib.Path(name))
        tied = evaluate_retrieval(retrieval, constant).scores
        drawn = [evaluate_retrieval(retrieval, random(seed)).scores for seed in range(RANKINGS)]
        print(f"{name}: {tied['queries']:.0f} queries, {tied['tie_share']:.1f}% of scores tied")
        for metric in ("map", "mrr"):
            values = [scores[metric] for scores in drawn]
            print(
                f"  {metric}: constant encoder {tied[metric]:.2f}, random encoders "
                f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f}), "
                f"computed chance {tied[f'chance_{metric}']:.2f}"
            )


if __name__ == "__main__":
    main()
