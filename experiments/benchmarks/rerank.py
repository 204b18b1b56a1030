"""Measures how long the choice of a response takes, beside sentence-transformers.

    python experiments/benchmarks/rerank.py

The re-ranker is one of all-MiniLM's size after a few steps; contexts have four turns of 30 words
and candidates 4 to 24, of random words. CrossEncoder scores the same pairs with an export, in turns
with ours; the scores must agree. The paper's matching reads the candidates' tokens anew. By
embeddings, those of the candidates are stored: a query is the mean of its turns'.
"""

import contextlib
import functools
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import jobs
import measure
import numpy as np
import peers
from runs import ROOT

import dcse_tf

SIZES = {10: 9, 100: 9, 1000: 3}  # candidates -> most rounds
TOLERANCE = 1e-4
# A token each, so that nothing is cut: CrossEncoder does not cut contexts and responses apart.
_WORDS = "where is my parcel it left today i want a change for the blue cup thanks when will"


def draw_pairs(size: int) -> tuple[list[str], list[str]]:
    """The turns of a context, and `size` candidates, of random words."""
    rng = np.random.default_rng(size)

    def draw(length: int) -> str:
        return " ".join(rng.choice(_WORDS.split(), size=length))

    return [draw(30) for _ in range(4)], [draw(int(n)) for n in rng.integers(4, 25, size=size)]


def make_cases(rerankers, encoder: dcse_tf.SentenceEncoder, size: int) -> list[measure.Case]:
    """Each orders one list of candidates; the last two by embeddings, the last by stored ones."""
    turns, candidates = draw_pairs(size)
    stored = encoder.encode(candidates)
    ways: dict[str, Callable[[], Any]] = {
        name: functools.partial(reranker.score, [turns], [candidates], show_progress=False)
        for name, reranker in rerankers.items()
    }
    ways["matching"] = functools.partial(encoder.similarity, turns, candidates)
    ways["embeddings"] = lambda: np.argsort(stored @ encoder.encode(turns).mean(axis=0))
    return [measure.Case(name, functools.partial(measure.timed, ways[name])) for name in ways]


def start_peer(args, run: pathlib.Path, work: pathlib.Path, rerankers) -> peers.Peer:
    """The peer, whose scores of all pairs agree with ours; exits if they do not."""
    dcse_tf.export(run_dir=run, output_dir=work / "exported", format="sentence_transformers")
    pairs, scores = {}, {}
    for size in SIZES:
        turns, candidates = draw_pairs(size)
        context = " ".join(f"{turn} [EOT]" for turn in turns)
        pairs[str(size)] = [[context, candidate] for candidate in candidates]
        (scores[str(size)],) = rerankers["dcse_tf"].score([turns], [candidates])
    (work / "pairs.json").write_text(json.dumps(pairs))
    files = {"pairs": str(work / "pairs.json"), "output": str(work / "scores.npz")}
    peer = peers.Peer(args, "rerank", model=str(work / "exported"), **files)
    for name, theirs in np.load(work / "scores.npz").items():
        difference = float(np.abs(scores[name] - theirs).max())
        print(f"{name} candidates: scores differ by {difference:.1e}")
        if not difference <= TOLERANCE:
            sys.exit(f"error: expected at most {TOLERANCE}")
    return peer


def main() -> None:
    args = jobs.make_parser(__doc__, rounds=9).parse_args()
    tables = []
    with contextlib.ExitStack() as stack:
        work = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        checkout = jobs.Checkout(ROOT, work / "here", args.encoder)
        run = checkout.train_reranker(jobs.write_inputs(work))
        ours = {
            "dcse_tf": dcse_tf.Reranker.load(run),
            "dcse_tf, bfloat16": dcse_tf.Reranker.load(run, compute_dtype="bfloat16"),
        }
        encoder = dcse_tf.SentenceEncoder.load(args.encoder)
        peer = None if args.no_peers else stack.enter_context(start_peer(args, run, work, ours))
        for size, rounds in SIZES.items():
            cases = make_cases(ours, encoder, size)
            if peer:
                cases.append(measure.Case("CrossEncoder", functools.partial(peer.run, str(size))))
            rows = measure.run_rounds(cases, min(args.rounds, rounds), warm_up=1)
            tables.append(measure.make_table(f"{size} candidates", "lists", rows))
    measure.tell(args.output, "Re-ranking", tables)


if __name__ == "__main__":
    main()
