"""How cost grows: what one step of training takes as each of its sizes doubles.

    python experiments/benchmarks/growth.py

Vocabulary, utterance length, batch, turns and negatives double in turn, the others stay as they
are: seconds of a training step on drawn utterances, 2 layers 128 wide from random weights, nothing
frozen unless said. Then the corpus: seconds to the first batch of an epoch, and to the first batch
of a training that goes on in the middle of one. About 5 minutes on 2 cores.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import dataclasses
import itertools
import json
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import measure
import numpy as np
import tensorflow as tf

from dcse_tf.data.batch import make_batches, turns_of_samples
from dcse_tf.data.dialogue import Context
from dcse_tf.data.manifest import Corpus, read_manifest
from dcse_tf.data.options import PrepareOptions
from dcse_tf.data.prepare import prepare
from dcse_tf.data.stream import PADDED, BatchForm, Stream, make_contrastive_dataset
from dcse_tf.model import bert
from dcse_tf.model.dialogue_cse import Objective, build_dialogue_cse
from dcse_tf.tasks import TASKS
from dcse_tf.training.trainer import Trainer, WarmupDecay, build_optimizer, make_strategy

LAYERS, DIM = 2, 128
DOUBLINGS = 4
SESSIONS, SESSION_TURNS = 2_500, 6


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a training step: `turns` are the context turns of a sample."""

    vocabulary: int = 8_000
    length: int = 16
    batch: int = 64
    turns: int = 6
    negatives: int = 9
    frozen_embeddings: bool = False


# What grows, from where, and how the others stand.
ROWS: dict[str, tuple[str, Sizes]] = {
    "vocabulary": ("vocabulary", Sizes()),
    "vocabulary, embeddings frozen": ("vocabulary", Sizes(frozen_embeddings=True)),
    "utterance length": ("length", Sizes(batch=32, length=8)),
    "batch": ("batch", Sizes(batch=16)),
    "turns": ("turns", Sizes(turns=2)),
    "negatives": ("negatives", Sizes(batch=128, negatives=4)),
}


def draw_batch(sizes: Sizes) -> dict[str, tf.Tensor]:
    """A batch as the form "unique" makes it, of distinct utterances of one length."""
    rng = np.random.default_rng(0)
    places = sizes.turns + 1
    shape = (sizes.batch, places, sizes.length)
    samples = {
        "session": tf.range(sizes.batch, dtype=tf.int64),
        "token_ids": tf.constant(rng.integers(1, sizes.vocabulary, shape), tf.int32),
        "utterances": tf.reshape(tf.range(sizes.batch * places, dtype=tf.int64), [-1, places]),
        "turn_mask": tf.ones([sizes.batch, sizes.turns], tf.bool),
    }
    return make_batches(
        turns_of_samples(samples, 1), sizes.negatives, tf.constant([0, 0]), 1, PADDED
    )[0]


def make_step(sizes: Sizes) -> Callable[[], Any]:
    """Two steps of training."""
    config = bert.make_bert_config(LAYERS, DIM, sizes.vocabulary)
    task, strategy = TASKS["dialogue_cse"], make_strategy(1, False)
    with strategy.scope():
        backbone = bert.build_backbone(config, dropout=0.1)
        bert.initialize_weights(backbone.trainable_variables, seed=0)
        bert.freeze(backbone, 0, sizes.frozen_embeddings)
        model = build_dialogue_cse(backbone, PADDED, Objective(0.1))
        optimizer = build_optimizer(WarmupDecay(1e-5, 0, "constant", 1000), 0.01)
    trainer = Trainer(strategy, model, optimizer, task.compute_loss, task.metrics, clip_norm=3.0)
    batch = draw_batch(sizes)
    iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
    return lambda: trainer.train(iterator, 2)


def step_case(name: str, sizes: Sizes) -> measure.Case:
    return measure.Case(name, measure.timed(make_step(sizes), steps=2), "steps")


def write_corpus(folder: pathlib.Path, sessions: int) -> pathlib.Path:
    """Sessions of drawn words, prepared."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("abcdefghilmnoprstu"), 5)) for _ in range(2_000)])
    file = folder / f"{sessions}.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for number in range(sessions):
            texts = rng.choice(words, (SESSION_TURNS, 6))
            turns = [
                {"role": ("customer", "agent")[i % 2], "text": " ".join(text)}
                for i, text in enumerate(texts)
            ]
            lines.write(json.dumps({"session_id": str(number), "turns": turns}) + "\n")
    data = folder / f"data{sessions}"
    config = PrepareOptions(
        format="jsonl", input=(str(file),), output_dir=str(data), vocab_size=4_000, shards=8,
        dev_fraction=0.0, test_fraction=0.0,
    )  # fmt: skip
    prepare(config, None)
    return data


def first_batch_case(name: str, data: pathlib.Path, part: float) -> measure.Case:
    """From building the pipeline to its first batch, after that part of an epoch."""
    manifest, batch_size = read_manifest(data), 64
    first_step = int(part * (manifest.splits["train"].sessions // batch_size))

    def run() -> None:
        dataset = make_contrastive_dataset(
            Corpus(data, manifest),
            BatchForm("unique", negatives=9),
            Context(3, "both"),
            Stream(batch_size, seed=0, first_step=first_step),
        )
        next(iter(dataset))

    return measure.Case(name, measure.timed(run, batches=1), "batches")


def measure_growth(
    values: Sequence[int], cases: Sequence[measure.Case], rounds: int
) -> dict[str, Any]:
    """Seconds at each size, and the factor by which each doubling multiplies them."""
    results = list(measure.run_rounds(cases, rounds).values())
    seconds = [
        [r.seconds / r.counts[case.unit] for r in own]
        for case, own in zip(cases, results, strict=True)
    ]
    pairs = itertools.pairwise(seconds)
    factors = [measure.median_ratio(large, small) for small, large in pairs]
    return {"values": list(values), "seconds": seconds, "factors": factors}


def format_growth(name: str, growth: dict[str, Any]) -> list[list[str]]:
    """Two lines of the table: seconds at each size, and the factors between them."""
    medians = [statistics.median(own) for own in growth["seconds"]]
    sizes = [f"{v:,}: {s:.4f}" for v, s in zip(growth["values"], medians, strict=True)]
    return [[name, *sizes], ["  times", "", *(f"{f:.2f}" for f in growth["factors"])]]


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = measure.make_parser(__doc__)
    parser.add_argument(
        "--doublings", type=measure.at_least_one, default=DOUBLINGS, help="default: %(default)s"
    )
    return parser.parse_args(arguments)


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    results: dict[str, Any] = {}

    def take(name: str, values: list[int], cases: list[measure.Case]) -> None:
        results[name] = measure_growth(values, cases, args.rounds)
        print(measure.format_table(format_growth(name, results[name])), flush=True)

    for name, (field, base) in ROWS.items():
        values = [getattr(base, field) << i for i in range(args.doublings + 1)]
        sizes = [dataclasses.replace(base, **{field: value}) for value in values]
        take(name, values, [step_case(str(getattr(s, field)), s) for s in sizes])
    with tempfile.TemporaryDirectory() as folder:
        values = [SESSIONS << i for i in range(args.doublings + 1)]
        corpora = [write_corpus(pathlib.Path(folder), sessions) for sessions in values]
        for name, part in (("sessions, first batch", 0.0), ("sessions, resumed half-way", 0.5)):
            cases = [
                first_batch_case(str(v), d, part) for v, d in zip(values, corpora, strict=True)
            ]
            take(name, values, cases)
    measure.write_json(args.output, results)


if __name__ == "__main__":
    main()
