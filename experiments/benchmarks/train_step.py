"""The training step by what a batch is made of, beside PyTorch on the paper's procedure.

    python experiments/benchmarks/train_step.py

Samples a second and real tokens a second; the ratio to the plain PyTorch training of the same run;
and the share of the arithmetic limit: the machine's matrix rate divided by what a sample takes if
only the real tokens of distinct utterances are encoded, each once (forward in all layers, backward
in the trained ones; the bottom half is frozen). About 5 minutes on 2 cores.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import contextlib
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

import dialogues
import measure
import numpy as np
import peer_process

from dcse_tf.model.checkpoints import read_config, resolve_checkpoint
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.training.build import build_training

# Options of `train`; a setting more is a word more. 20 sessions are some 250 samples.
_DENSE = {"batch_form": "dense", "global_batch_size": 20}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"batch_form": "plain", "global_batch_size": 16},
    "unique": {"batch_form": "unique", "global_batch_size": 64},
    "dense, padded": {**_DENSE, "layout": "padded"},
    "dense, bucketed": {**_DENSE, "layout": "bucketed"},
    "dense, packed": _DENSE,
    "dense, packed in rows of 128": {**_DENSE, "row_length": 128},
    "dense, no dropout": {**_DENSE, "dropout": 0.0},
    "dense, all negatives": {**_DENSE, "negatives": 0},
    "dense, bfloat16": {**_DENSE, "compute_dtype": "bfloat16"},
    "dense, packed, XLA": {**_DENSE, "jit_compile": True},
    "dense, packed, XLA, bfloat16": {**_DENSE, "jit_compile": True, "compute_dtype": "bfloat16"},
}
# What runs in five minutes beside the peers; compiling alone takes a minute a case.
DEFAULT = [
    "plain",
    "unique",
    "dense, packed",
    "dense, bfloat16",
]
PLAIN_PEER, PAIRS_PEER = "PyTorch plain", "CachedMNRL"
# A response and the turn before it: the shortest context, the cheapest for the peer.
BATCHES, PAIRS, PAIR_TURNS = 4, 64, 1
# Of the mean losses of one batch, ours and PyTorch's: their GELUs differ, see BUILD_NOTES.md.
TOLERANCE = 0.01

Batch = dict[str, np.ndarray]


class Step:
    """One training as the job sets it up, and its batches.

    Args:
        data_dir: the prepared dialogues.
        encoder: as --encoder of train.
        settings: options of `train`.
    """

    def __init__(self, data_dir: pathlib.Path, encoder: str, settings: dict[str, Any]):
        values = {
            "data_dir": str(data_dir),
            "encoder": encoder,
            "run_dir": "none",
            "learning_rate": 1e-5,
            **settings,
        }
        self.training = build_training(TrainOptions.from_dict(values))
        self.config = self.training.options
        self.iterator = self.training.batches()

    def run(self) -> measure.Round:
        """One step, its input included."""
        counts: dict[str, float] = {}
        run = measure.timed(lambda: counts.update(self.training.trainer.train(self.iterator, 1)))
        seconds = run().seconds
        return measure.Round(seconds, {name: counts[name] for name in ("samples", "tokens")})

    def batches(self, count: int) -> list[Batch]:
        """The batches of the first steps."""
        return list(self.training.dataset().take(count).as_numpy_iterator())

    def flops_per_sample(self, count: int) -> float:
        """What cannot be saved, over the first batches."""
        config = read_config(resolve_checkpoint(self.config.encoder, "encoder"))
        layers = self.training.setup.backbone.num_layers
        frozen = self.config.freeze_layers
        trained = layers - (layers // 2 if frozen < 0 else frozen)
        batches = self.batches(count)
        flops = sum(
            measure.bert_flops(config, lengths, trained)
            for lengths in (
                distinct_lengths(batch, self.training.setup.vocabulary.index("[CLS]"))
                for batch in batches
            )
        )
        return flops / sum(int(batch["candidate_mask"][:, 0].sum()) for batch in batches)


def distinct_lengths(batch: Batch, first_id: int) -> list[int]:
    """Tokens of every distinct utterance of a table, however it is laid out.

    Args:
        batch: with token_ids and perhaps token_ids_0, ...: rows of one or more utterances, each
            beginning with `first_id`; 0 = no token.
        first_id: of [CLS].
    """
    utterances = set()
    for name, rows in batch.items():
        if name.startswith("token_ids"):
            ids = rows[rows != 0]
            starts = np.flatnonzero(ids == first_id)
            utterances |= {tuple(part.tolist()) for part in np.split(ids, starts)[1:]}
    return [len(utterance) for utterance in utterances]


def write_plain_batches(path: pathlib.Path, batches: Iterable[Batch]) -> None:
    """The batches of the form "plain", each use of an utterance in its place, for the peer."""
    parts = [
        {
            "context_ids": batch["token_ids"][batch["context_index"]].astype(np.int64),
            "candidate_ids": batch["token_ids"][batch["candidate_index"]].astype(np.int64),
            "turn_mask": batch["turn_mask"],
            "candidate_mask": batch["candidate_mask"],
        }
        for batch in batches
    ]
    np.savez(path, **{name: np.stack([part[name] for part in parts]) for name in parts[0]})


def start_peers(
    stack: contextlib.ExitStack, python: pathlib.Path, plain: Step, rounds: int
) -> tuple[list[measure.Case], dict[str, Any]]:
    """The peers as cases on batches of the same dialogues, and what they found out.

    The plain one computes what our form "plain" computes: its loss is held against ours.
    """
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    batches = plain.batches(BATCHES)
    write_plain_batches(folder / "plain.npz", batches)
    pairs = dialogues.make_pairs(plain.training.setup.data_dir, PAIR_TURNS, PAIRS * BATCHES)
    text = json.dumps([pairs[i : i + PAIRS] for i in range(0, len(pairs), PAIRS)])
    (folder / "pairs.json").write_text(text, encoding="utf-8")
    common = {
        "model": str(resolve_checkpoint(plain.config.encoder, "encoder")),
        "frozen_layers": plain.training.setup.backbone.num_layers // 2,
    }
    settings = {
        "batches": str(folder / "plain.npz"),
        "batch_sizes": [8, 16],
        "temperature": plain.config.temperature,
    }
    peer = stack.enter_context(peer_process.Peer(python, "plain", {**common, **settings}))
    loss = float(np.mean(plain.training.model(batches[0], training=False)["loss"]))
    print(f"loss of the first plain batch: here {loss:.4f}, in PyTorch {peer.found['loss']:.4f}")
    if abs(loss - peer.found["loss"]) > TOLERANCE:
        sys.exit("error: the peer does not compute what the form plain computes")
    longest = plain.training.setup.manifest.max_sequence_length
    settings = {
        "batches": str(folder / "pairs.json"),
        "longest": [PAIR_TURNS * longest, longest],
    }
    cached = stack.enter_context(peer_process.Peer(python, "cached_mnrl", {**common, **settings}))
    flops = plain.flops_per_sample(rounds)
    cases = [
        peer.case(PLAIN_PEER, "plain", "samples", flops),
        cached.case(PAIRS_PEER, "cached_mnrl", "samples"),
    ]
    return cases, {PLAIN_PEER: peer.found, PAIRS_PEER: cached.found}


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = measure.make_parser(__doc__)
    dialogues.add_arguments(parser)
    peer_process.add_arguments(parser)
    parser.add_argument(
        "--cases",
        help=f"those to run, separated by semicolons, of {'; '.join(CASES)}; default: "
        f"{'; '.join(DEFAULT)}",
    )
    args = parser.parse_args(arguments)
    args.cases = [name.strip() for name in args.cases.split(";")] if args.cases else DEFAULT
    unknown = [name for name in args.cases if name not in CASES]
    if unknown:
        parser.error(f"--cases: no case {unknown[0]!r}; there are {'; '.join(CASES)}")
    return args


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    peers: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        data_dir = stack.enter_context(dialogues.prepared(args.data_dir, args.encoder))
        matrix = measure.matrix_case()
        # The peer's batches are those of the form "plain".
        names = args.cases if args.no_peers else list(dict.fromkeys(["plain", *args.cases]))
        steps = {name: Step(data_dir, args.encoder, CASES[name]) for name in names}
        cases = [matrix]
        if not args.no_peers:
            python = peer_process.build_environment(args.peer_env)
            peer_cases, peers = start_peers(stack, python, steps["plain"], args.rounds)
            cases += peer_cases
            print(json.dumps(peers, indent=2), flush=True)
        cases += [
            measure.Case(name, step.run, "samples", step.flops_per_sample(args.rounds))
            for name, step in steps.items()
        ]
        base = names[0] if args.no_peers else PLAIN_PEER
        results = measure.run_rounds(cases, args.rounds)
    rows = measure.summarize(cases, results, base, matrix.name)
    print(measure.format_rows(rows, base))
    settings = {name: steps[name].config.to_dict() for name in names}
    measure.write_json(args.output, rows, base=base, settings=settings, peers=peers)


if __name__ == "__main__":
    main()
