"""Compares two ways to compute all similarities of a batch: the fast one and the equations' layers.

    python experiments/benchmarks/similarity.py                     # by Gram matrices
    python experiments/benchmarks/similarity.py --matching=maxsim   # another form of the matching

Measures values and gradients, with as many candidates as contexts, 6 turns, utterances of 4 to 36
tokens, and 384 dimensions. The direct layers process a few rows at a time, because all at once
would need tens of GB. Takes about 1 minute on 2 cores.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import sys
from collections.abc import Callable

import measure
import numpy as np
import tensorflow as tf

from dcse_tf.bert.options import MATCHINGS
from dcse_tf.matching.dialogue_cse import build_matching, build_pair_similarity
from dcse_tf.matching.matching_files import MatchingForm, make_matching_form

TURNS, LONGEST, DIM, ROWS = 6, 36, 384, 2
# For float32, relative to the largest value; the values are cosines, the gradients sums over rows.
TOLERANCE = 1e-4

Run = Callable[[], tuple[tf.Tensor, tf.Tensor]]


class Pairs:
    """A random problem: token embeddings of utterances, contexts of them, and weights of the pairs.

    Args:
        contexts: number of contexts, and of candidates.
        form: the form of matching.
    """

    def __init__(self, contexts: int, form: MatchingForm):
        rng = np.random.default_rng(0)
        self.contexts, self.form = contexts, form
        self.table = tf.constant(rng.normal(size=(contexts, LONGEST, DIM)), tf.float32)
        self.mask = tf.sequence_mask(rng.integers(4, LONGEST + 1, contexts), LONGEST)
        self.index = tf.constant(rng.integers(0, contexts, (contexts, TURNS)), tf.int32)
        self.turn_mask = tf.ones([contexts, TURNS], tf.bool)
        self.weights = tf.constant(rng.normal(size=(contexts, contexts)), tf.float32)

    def _differentiate(self, compute: Callable, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(self.table)
            values = compute()
            total = tf.reduce_sum(values * weights)
        return values, tf.convert_to_tensor(tape.gradient(total, self.table))

    def short(self) -> Run:
        """The fast way: similarities `[contexts, contexts]` and the table's gradient."""
        layer = build_pair_similarity(self.form, dtype="float32")
        return tf.function(
            lambda: self._differentiate(
                lambda: layer(self.table, self.mask, self.index, self.turn_mask), self.weights
            )
        )

    def direct(self) -> Run:
        """The same, by the layers that follow the equations."""
        matching = build_matching(DIM, self.form)

        @tf.function
        def run_rows(start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            rows = tf.range(start, tf.minimum(start + ROWS, self.contexts))
            candidates = tf.tile(tf.range(self.contexts)[None, :], [tf.size(rows), 1])
            inputs = {
                "padding_mask": self.mask,
                "context_index": tf.gather(self.index, rows),
                "turn_mask": tf.gather(self.turn_mask, rows),
                "candidate_index": candidates,
            }
            return self._differentiate(
                lambda: matching({"token_embeddings": self.table, **inputs}),
                tf.gather(self.weights, rows),
            )

        def run() -> tuple[tf.Tensor, tf.Tensor]:
            parts = [run_rows(tf.constant(start)) for start in range(0, self.contexts, ROWS)]
            return tf.concat([v for v, _ in parts], axis=0), tf.add_n([g for _, g in parts])

        return run


def check_equal(one: Run, two: Run) -> None:
    """Prints the largest differences; exits if they exceed rounding errors."""
    for what, a, b in zip(("value", "gradient"), one(), two(), strict=True):
        difference = float(np.abs(a.numpy() - b.numpy()).max())
        scale = float(np.abs(b.numpy()).max())
        print(f"largest {what} {scale:.2g}, largest difference {difference:.1e}")
        if difference > TOLERANCE * scale:
            sys.exit(f"error: the two ways differ in a {what}")


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = measure.make_parser(__doc__)
    parser.add_argument(
        "--contexts", type=measure.at_least_one, default=256, help="default: %(default)s"
    )
    parser.add_argument("--matching", choices=MATCHINGS, default="paper")
    return parser.parse_args(arguments)


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    contexts, pairs = args.contexts, Pairs(args.contexts, make_matching_form(args.matching))
    runs = {"direct": pairs.direct(), "short": pairs.short()}
    check_equal(runs["short"], runs["direct"])
    cases = [
        measure.Case(
            name, "pairs", measure.timed(lambda run=run: run()[0].numpy(), pairs=contexts**2)
        )
        for name, run in runs.items()
    ]
    rows = measure.run_rounds(cases, args.rounds, warm_up=1)
    print(f"{contexts} x {contexts} pairs, values and gradients")
    print(measure.format_rows(rows))
    measure.write_json(args.output, rows)


if __name__ == "__main__":
    main()
