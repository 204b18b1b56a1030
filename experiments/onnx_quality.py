"""What an ONNX export scores, and so what int8 loses.

PYTHONPATH=. python experiments/onnx_quality.py --models float32 int8 --retrieval=select.txt \
    --response_selection=data/test.jsonl

The first folder is what the others are compared with: cosines of their embeddings, too.
"""

import argparse
import json
import pathlib

import numpy as np
import onnxruntime
import tokenizers

from dcse_tf.data.dialogue import Context
from dcse_tf.evaluation import response_selection
from dcse_tf.evaluation.bootstrap import score_names
from dcse_tf.evaluation.report import align, make_result, short_path
from dcse_tf.evaluation.response_selection import read_dialogues
from dcse_tf.evaluation.retrieval import evaluate_retrieval, read_retrieval_set

_BATCH = 64


class OnnxEncoder:
    """A folder that export --format=onnx wrote; needs nothing of the package."""

    def __init__(self, folder: pathlib.Path):
        settings = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.enable_truncation(settings["max_seq_length"])
        self._tokenizer.enable_padding()
        self._session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
        )

    def encode(self, sentences: list[str]) -> np.ndarray:
        """Embeds sentences, those of a length together; float32 `[n, dim]`."""
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        parts = [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]
        embeddings = np.concatenate([self._run([sentences[i] for i in part]) for part in parts])
        return embeddings[np.argsort(order)]

    def _run(self, sentences: list[str]) -> np.ndarray:
        encoded = self._tokenizer.encode_batch(sentences)
        inputs = {
            "input_ids": np.array([e.ids for e in encoded], np.int64),
            "attention_mask": np.array([e.attention_mask for e in encoded], np.int64),
        }
        return self._session.run(None, inputs)[0]


def compare(first: np.ndarray, second: np.ndarray) -> str:
    """Cosines of the embeddings of the same sentences, in words."""
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(axis=1) / norms
    return f"cosine of {len(first)} sentences min {cosines.min():.4f} mean {cosines.mean():.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--retrieval", type=pathlib.Path)
    parser.add_argument("--response_selection", type=pathlib.Path)
    parser.add_argument("--max_samples", type=int, default=400)
    args = parser.parse_args()
    encoders = {folder.name: OnnxEncoder(folder) for folder in args.models}
    rows = [("evaluation", "file", "model", "score", "value", "95% interval", "chance")]

    def add(task: str, source: pathlib.Path, name: str, found) -> None:
        result = make_result(task, str(source), "", found)
        for score in score_names(result.items):
            low, high = result.intervals[score]
            cells = (f"{result.scores[score]:.2f}", f"{low:.2f} to {high:.2f}")
            chance = f"{result.scores[f'chance_{score}']:.2f}"
            rows.append((task, short_path(str(source)), name, score, *cells, chance))

    if args.retrieval:
        retrieval = read_retrieval_set(args.retrieval)
        shown = retrieval.sentences[:1000]
        first = args.models[0].name
        embedded = {name: encoder.encode(shown) for name, encoder in encoders.items()}
        for name, encoder in encoders.items():
            if name != first:
                print(f"{name} beside {first}: {compare(embedded[first], embedded[name])}")
            found = evaluate_retrieval(retrieval, encoder.encode)
            add("retrieval", args.retrieval, name, found)
    if args.response_selection:
        samples = response_selection.make_samples(
            read_dialogues(args.response_selection),
            candidates=10,
            context=Context(3, "both"),
            max_samples=args.max_samples,
            seed=0,
        )
        for name, encoder in encoders.items():
            found = response_selection.evaluate_by_cosine(samples, encoder.encode)
            add("response (cosine)", args.response_selection, name, found)
    print(align(rows, text_columns=4))


if __name__ == "__main__":
    main()
