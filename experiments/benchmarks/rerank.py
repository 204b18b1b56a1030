"""Measures how long a re-ranker takes for 10 and 100 candidates, beside sentence-transformers.

    python experiments/benchmarks/rerank.py

The re-ranker is one of all-MiniLM's size after a few steps; contexts have four turns of 30 words
and candidates 4 to 24, of random words. CrossEncoder scores the same pairs with an export of the
re-ranker, in turns with ours; the scores must agree.
"""

import contextlib
import functools
import json
import pathlib
import sys
import tempfile

import jobs
import measure
import numpy as np
import peers
from runs import ROOT

import dcse_tf

SIZES = (10, 100)
TOLERANCE = 1e-4


def draw_pairs(size: int) -> tuple[list[str], list[str]]:
    """The turns of a context, and `size` candidates, of random words."""
    rng = np.random.default_rng(size)

    def draw(length: int) -> str:
        return " ".join(f"w{number}" for number in rng.integers(5000, size=length))

    return [draw(30) for _ in range(4)], [draw(int(n)) for n in rng.integers(4, 25, size=size)]


def time_ours(reranker: dcse_tf.Reranker, size: int) -> measure.Round:
    """Ranks a list of candidates once."""
    turns, candidates = draw_pairs(size)
    return measure.timed(lambda: reranker.score([turns], [candidates], show_progress=False))


def start_peer(args, run: pathlib.Path, work: pathlib.Path, reranker) -> peers.Peer:
    """The peer, whose scores of all pairs agree with ours; exits if they do not."""
    dcse_tf.export(run_dir=run, output_dir=work / "exported", format="sentence_transformers")
    pairs = {}
    for size in SIZES:
        turns, candidates = draw_pairs(size)
        context = " ".join(f"{turn} [EOT]" for turn in turns)
        pairs[str(size)] = [[context, candidate] for candidate in candidates]
    (work / "pairs.json").write_text(json.dumps(pairs))
    files = {"pairs": str(work / "pairs.json"), "output": str(work / "scores.npz")}
    peer = peers.Peer(args, "rerank", model=str(work / "exported"), **files)
    theirs = np.load(work / "scores.npz")
    for size in SIZES:
        turns, candidates = draw_pairs(size)
        (ours,) = reranker.score([turns], [candidates], show_progress=False)
        difference = float(np.abs(ours - theirs[str(size)]).max())
        print(f"{size} candidates: scores differ by {difference:.1e}")
        if not difference <= TOLERANCE:
            sys.exit(f"error: expected at most {TOLERANCE}")
    return peer


def main() -> None:
    parser = jobs.make_parser(__doc__, rounds=9)
    args = parser.parse_args()
    tables = []
    with contextlib.ExitStack() as stack:
        work = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        checkout = jobs.Checkout(ROOT, work / "here", args.encoder)
        run = checkout.train_reranker(jobs.write_inputs(work))
        rerankers = {
            "dcse_tf": dcse_tf.Reranker.load(run),
            "dcse_tf, bfloat16": dcse_tf.Reranker.load(run, compute_dtype="bfloat16"),
        }
        peer = None
        if not args.no_peers:
            peer = stack.enter_context(start_peer(args, run, work, rerankers["dcse_tf"]))
        for size in SIZES:
            cases = [
                measure.Case(name, functools.partial(time_ours, reranker, size))
                for name, reranker in rerankers.items()
            ]
            if peer:
                cases.append(measure.Case("CrossEncoder", functools.partial(peer.run, str(size))))
            rows = measure.run_rounds(cases, args.rounds, warm_up=2)
            tables.append(measure.make_table(f"{size} candidates", "lists", rows))
    measure.tell(args.output, "Re-ranking", tables)


if __name__ == "__main__":
    main()
