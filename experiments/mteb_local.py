"""Runs MTEB's own code on local evaluation sets: STS and the ranking of candidates.

python experiments/mteb_local.py --model=run --sts=sts.txt --retrieval=select.txt [--peer=FOLDER]

Prints the scores of `evaluate` beside MTEB's for the same encoder and, with --peer, MTEB's for a
folder that sentence-transformers loads, such as an export of the same weights.

MTEB needs PyTorch and is not a dependency of the package. The script installs both into a separate
environment and restarts itself there.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent / "benchmarks"))

import numpy as np
import peers

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONSTRAINTS = (
    ROOT / "constraints.txt",
    peers.CONSTRAINTS,
    ROOT / "experiments/mteb_constraints.txt",
)
SUBSET, SPLIT = "default", "test"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="what dcse_tf.SentenceEncoder.load takes")
    parser.add_argument("--pooling", default="mean", choices=("mean", "cls"))
    parser.add_argument("--sts", nargs="*", default=[], type=pathlib.Path, metavar="sts.txt")
    parser.add_argument(
        "--retrieval", nargs="*", default=[], type=pathlib.Path, metavar="select.txt"
    )
    parser.add_argument(
        "--max_queries",
        type=int,
        default=500,
        help="use only the first queries of a select.txt; 0: all. Default: 500",
    )
    parser.add_argument("--peer", type=pathlib.Path, help="a sentence-transformers folder")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file for the scores")
    parser.add_argument(
        "--env",
        type=pathlib.Path,
        default=ROOT / ".venv-mteb",
        help="virtual environment, built if missing (4.3 GB); default: .venv-mteb",
    )
    arguments = parser.parse_args()
    if not (arguments.sts or arguments.retrieval):
        parser.error("nothing to evaluate: give --sts or --retrieval")
    return arguments


def make_sts_task(path: pathlib.Path, sts_set: Any) -> Any:
    """Makes an STS task of MTEB from an sts.txt."""
    import datasets
    from mteb.abstasks import AbsTaskSTS

    pairs = {
        "sentence1": sts_set.first,
        "sentence2": sts_set.second,
        "score": sts_set.degrees.tolist(),
    }

    class LocalSts(AbsTaskSTS):
        metadata = describe(path, "STS", "cosine_spearman")
        min_score, max_score = 1, 5

        def load_data(self, **kwargs: Any) -> None:
            self.dataset = {SUBSET: {SPLIT: datasets.Dataset.from_dict(pairs)}}
            self.data_loaded = True

    return LocalSts()


def make_retrieval_task(path: pathlib.Path, sentences: list[str], queries: list[Any]) -> Any:
    """Makes a retrieval task of MTEB from a select.txt; each query ranks its own candidates."""
    import datasets
    from mteb.abstasks import AbsTaskRetrieval

    relevant, ranked = {}, {}
    for query in queries:
        name = f"q{query.sentence}"
        relevant[name] = {f"d{row}": 1 for row in query.positives.tolist()}
        ranked[name] = [*relevant[name], *(f"d{row}" for row in query.negatives.tolist())]
    corpus = {"id": [f"d{row}" for row in range(len(sentences))], "text": sentences}
    asked = {"id": list(ranked), "text": [sentences[query.sentence] for query in queries]}

    class LocalRetrieval(AbsTaskRetrieval):
        metadata = describe(path, "Reranking", "map_at_1000")

        def load_data(self, **kwargs: Any) -> None:
            split = {
                "corpus": datasets.Dataset.from_dict(corpus),
                "queries": datasets.Dataset.from_dict(asked),
                "relevant_docs": relevant,
                "top_ranked": ranked,
            }
            self.dataset = {SUBSET: {SPLIT: split}}
            self.data_loaded = True

    return LocalRetrieval()


def describe(path: pathlib.Path, kind: str, score: str) -> Any:
    """The metadata that MTEB needs for a task."""
    import mteb

    return mteb.TaskMetadata(
        dataset={"path": str(path), "revision": "local"},
        name=f"Local{kind}",
        description=f"{path}, a set of dcse_tf's evaluation",
        type=kind,
        category="t2t",
        modalities=["text"],
        eval_splits=[SPLIT],
        eval_langs=["eng-Latn"],
        main_score=score,
        domains=[],
        task_subtypes=[],
        annotations_creators="human-annotated",
        dialect=[],
        sample_creation="found",
        bibtex_citation="",
    )


def main() -> None:
    arguments = parse_arguments()
    if importlib.util.find_spec("mteb") is None:
        installed = ("-e", str(ROOT), "mteb", "torch")
        python = str(peers.build_environment(arguments.env, installed, CONSTRAINTS))
        os.execv(python, [python, *sys.argv])
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import dcse_tf
    from dcse_tf.evaluation.retrieval import evaluate_retrieval, read_retrieval_set
    from dcse_tf.evaluation.sts import evaluate_sts, read_sts_set

    encoder = dcse_tf.SentenceEncoder.load(arguments.model, pooling=arguments.pooling)
    # The file, the task, our name -> MTEB's name of each score, and our own scores.
    tasks: list[tuple[pathlib.Path, Any, dict[str, str], dict[str, float]]] = []
    for path in arguments.sts:
        sts_set = read_sts_set(path)
        own = evaluate_sts(sts_set, encoder.encode).scores
        tasks.append((path, make_sts_task(path, sts_set), {"spearman": "cosine_spearman"}, own))
    for path in arguments.retrieval:
        whole = read_retrieval_set(path)
        count = arguments.max_queries or len(whole.queries)
        items = evaluate_retrieval(whole, encoder.encode).items
        own = {name: float(np.mean(items[name][:count])) for name in ("map", "mrr")}
        task = make_retrieval_task(path, whole.sentences, whole.queries[:count])
        tasks.append((path, task, {"map": "map_at_1000", "mrr": "mrr_at_1000"}, own))
    models = {"mteb": encoder.as_mteb()}
    if arguments.peer:
        from sentence_transformers import SentenceTransformer

        models["mteb, peer"] = SentenceTransformer(str(arguments.peer), device="cpu")
    report(tasks, models, arguments.output)


def report(tasks: list[Any], models: dict[str, Any], output: pathlib.Path | None) -> None:
    """Evaluates the models on the tasks and prints the scores, in percent."""
    import mteb

    rows = []
    for path, task, names, own in tasks:
        scores = {}
        for model, encoder in models.items():
            found = mteb.evaluate(encoder, task, cache=None, show_progress_bar=False)
            scores[model] = found.task_results[0].scores[SPLIT][0]
        for name, theirs in names.items():
            row = {"set": str(path), "score": name, "evaluate": own[name]}
            rows.append(row | {model: 100 * found[theirs] for model, found in scores.items()})
    columns = ["evaluate", *models]
    print(f"\n{'set':<50}{'score':<10}" + "".join(f"{name:>14}" for name in columns))
    for row in rows:
        figures = "".join(f"{row[name]:>14.4f}" for name in columns)
        print(f"{row['set'][-48:]:<50}{row['score']:<10}{figures}")
    if output:
        output.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
