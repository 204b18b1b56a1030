"""Compares an ONNX export in eight bits with one in float32: vectors, speed, other machines.

    python experiments/benchmarks/int8.py --models float32 int8 --texts=texts.txt
    python experiments/benchmarks/int8.py --models float32 int8 --ids=ids.npz --against=vectors.npz

Each model is an export's folder or its model.onnx; the first is the base. For every model: the
cosines of its vectors with the base's; the smallest cosine of a text's vector alone with that in a
batch of texts of other lengths; and texts per second, taking turns. --write saves the vectors, and
--against compares them with those saved elsewhere, such as on a processor with VNNI.

With --ids, written by --write_ids, it needs only numpy, onnxruntime and measure.py beside it.
"""

import argparse
import hashlib
import json
import os
import pathlib
import time
from functools import partial

import measure
import numpy as np
import onnxruntime

BATCH = 8
FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8")
Batch = tuple[list[int], dict[str, np.ndarray]]


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, path, count = parser.add_argument, pathlib.Path, measure.at_least_one
    add("--models", nargs="+", type=path, required=True, help="exports, float32 first")
    add("--texts", type=path, help="a text per line; tokenized by the first export's files")
    add("--ids", type=path, help="token ids that --write_ids wrote, instead of --texts")
    add("--write_ids", type=path, help="write the texts' token ids here, and end")
    add("--write", type=path, help=".npz to write the vectors to")
    add("--against", type=path, help=".npz that --write wrote elsewhere")
    add("--threads", nargs="+", type=count, default=[1, 2], help="default: 1 2")
    add("--rounds", type=count, default=5, help="default: %(default)s")
    add("--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a machine that is busy")
    args = parser.parse_args(arguments)
    if (args.texts is None) == (args.ids is None):
        parser.error("give either --texts or --ids")
    return args


def read_ids(args: argparse.Namespace) -> list[list[int]]:
    if args.ids:
        with np.load(args.ids) as saved:
            parts = np.split(saved["ids"], np.cumsum(saved["lengths"])[:-1])
        return [part.tolist() for part in parts]
    from tokenizers import Tokenizer

    folder = find_model(args.models[0]).parent
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
    tokenizer.enable_truncation(settings["max_seq_length"])
    texts = args.texts.read_text(encoding="utf-8").splitlines()
    return [each.ids for each in tokenizer.encode_batch(texts)]


def find_model(path: pathlib.Path) -> pathlib.Path:
    return path / "model.onnx" if path.is_dir() else path


def make_batches(ids: list[list[int]], size: int, mix: bool) -> list[Batch]:
    """Batches of sequences of similar lengths, or, to mix them, in random order."""
    order = np.argsort([len(each) for each in ids], kind="stable")
    order = np.random.default_rng(0).permutation(order) if mix else order
    batches = []
    for start in range(0, len(ids), size):
        rows = order[start : start + size].tolist()
        longest = max(len(ids[row]) for row in rows)
        padded = np.array([ids[row] + [0] * (longest - len(ids[row])) for row in rows], np.int64)
        lengths = np.array([[len(ids[row])] for row in rows])
        mask = (np.arange(longest) < lengths).astype(np.int64)
        batches.append((rows, {"input_ids": padded, "attention_mask": mask}))
    return batches


def open_model(path: pathlib.Path, threads: int) -> onnxruntime.InferenceSession:
    """As `dcse_tf` opens it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(
        str(find_model(path)),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["SkipLayerNormFusion"],
    )


def embed(session: onnxruntime.InferenceSession, batches: list[Batch]) -> np.ndarray:
    """The vectors in the order of the texts, float64 `[texts, dim]`."""
    vectors = {}
    for rows, inputs in batches:
        vectors.update(zip(rows, session.run(None, inputs)[0], strict=True))
    return np.array([vectors[row] for row in sorted(vectors)], np.float64)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


def compare_vectors(args: argparse.Namespace, ids: list[list[int]]) -> None:
    alone, mixed = make_batches(ids, 1, mix=False), make_batches(ids, BATCH, mix=True)
    lines = [["", "smallest cosine", "mean", "alone - batch", "- elsewhere", "apart", "SHA-256"]]
    found = {}
    saved = np.load(args.against) if args.against else {}
    for path in args.models:
        session, name = open_model(path, 2), str(path)
        vectors, base = embed(session, alone), found.get(str(args.models[0]))
        found[name] = vectors
        near = cosines(vectors, vectors if base is None else base)
        same = cosines(vectors, embed(session, mixed)).min()
        line = [name, f"{near.min():.5f}", f"{near.mean():.5f}", f"{same:.8f}", "", ""]
        if name in saved:
            other = saved[name]
            apart = np.linalg.norm(vectors - other, axis=1) / np.linalg.norm(other, axis=1)
            line[4:] = [f"{cosines(vectors, other).min():.8f}", f"{apart.max():.1e}"]
        lines.append([*line, hashlib.sha256(vectors.tobytes()).hexdigest()[:12]])
    print(measure.format_table(lines))
    if args.write:
        np.savez(args.write, **found)


def run_timed(
    session: onnxruntime.InferenceSession, batches: list[Batch], texts: int, clock: str
) -> measure.Round:
    clocks = {"wall": time.perf_counter, "cpu": time.process_time}
    started = {name: read() for name, read in clocks.items()}
    embed(session, batches)
    took = {name: read() - started[name] for name, read in clocks.items()}
    return measure.Round(
        took[clock], {"texts": texts}, {f"{k} seconds": v for k, v in took.items()}
    )


def main() -> None:
    args = parse_arguments()
    ids = read_ids(args)
    if args.write_ids:
        lengths = [len(each) for each in ids]
        np.savez(args.write_ids, ids=np.concatenate(ids), lengths=lengths)
        return
    info = pathlib.Path("/proc/cpuinfo")
    flags = set(info.read_text(encoding="utf-8").split()) if info.exists() else set()
    has = " ".join(flag for flag in FLAGS if flag in flags)
    print(f"{measure.cpu_model()}, {os.cpu_count()} cores: {has}; {onnxruntime.__version__=}")
    compare_vectors(args, ids)
    middle = float(np.median([len(each) for each in ids]))
    kinds = {
        "short": [each for each in ids if len(each) <= middle],
        "long": [each for each in ids if len(each) > middle],
    }
    for threads in args.threads:
        sessions = {str(path): open_model(path, threads) for path in args.models}
        for kind, some in kinds.items():
            for size in (1, 32):
                batches = make_batches(some, size, mix=False)
                cases = [
                    measure.Case(
                        name, "texts", partial(run_timed, each, batches, len(some), args.clock)
                    )
                    for name, each in sessions.items()
                ]
                rows = measure.run_rounds(cases, args.rounds, warm_up=1)
                print(f"{kind} texts, {threads} threads, batches of {size}, by {args.clock} time")
                print(measure.format_rows(rows), flush=True)


if __name__ == "__main__":
    main()
