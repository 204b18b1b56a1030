"""ONNX and static exports run where TensorFlow cannot be imported, and give the same.

One process that refuses the import runs the jobs; what it finds is compared with what the
checkpoints give here, in the graph.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
from texts_of_all_scripts import TEXTS
from tiny_bert import build_backbone, save_checkpoint
from tiny_checkpoints import prepare_for, save_start
from tiny_reranker import save_reranker

import dcse_tf
from dcse_tf.evaluation.report import read_results

pytestmark = pytest.mark.slow

PROGRAM = """
import json, pathlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "tensorflow_text", "keras", "keras_hub"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())

import numpy as np
import dcse_tf

root = pathlib.Path(sys.argv[1])
lines = json.loads((root / "lines.json").read_text())
for kind in ("wordpiece", "byte pairs", "pieces"):
    for form in ("onnx", "static"):
        folder = root / kind / form
        rows = dcse_tf.SentenceEncoder.load(folder).encode(lines, show_progress=False)
        np.save(folder / "rows.npy", rows)
sets = json.loads((root / "sets.json").read_text())
dcse_tf.evaluate(model=root / "wordpiece/onnx", output=root / "found.json", **sets)
files = {"input": root / "lines.txt", "output": root / "embedded.npy"}
dcse_tf.embed(model=root / "wordpiece/onnx", **files)
for known in ("False", "True"):
    reranker = dcse_tf.Reranker.load(root / known / "onnx")
    scores = reranker.score([lines[:2]], [lines[2:9]], show_progress=False)
    np.save(root / known / "scores.npy", scores[0])
try:
    dcse_tf.SentenceEncoder.load(root / "wordpiece/model")
except dcse_tf.InputError as error:
    (root / "refused.txt").write_text(str(error))
"""
# Without those that SentencePiece can split in two equally likely ways, such as "…" into dots.
LINES = [text for text in TEXTS if 0 < len(text) < 70 and not set(text) & set("\n\r…ⅷ")]
LINES += ["where is my parcel", "thanks for the blue cup " * 9, "hi [SEP] there <s>", "ok ok"]
TRAINED = {"byte pairs": "roberta", "pieces": "xlm-roberta"}


@pytest.fixture(scope="module")
def root(dialogues_file, tmp_path_factory):
    """Exports, and what the process made of them."""
    root = tmp_path_factory.mktemp("root")
    for kind in ("wordpiece", *TRAINED):
        (root / kind).mkdir()
        model = root / kind / "model"
        if kind == "wordpiece":
            save_checkpoint(model, build_backbone())
        else:
            texts = [*LINES, *dialogues_file.read_text().splitlines()] * 3
            save_start(model, TRAINED[kind], texts)
        data_dir = prepare_for(model, dialogues_file, root / kind)
        for form, options in {"onnx": {}, "static": {"data_dir": data_dir}}.items():
            dcse_tf.export(run_dir=model, output_dir=root / kind / form, format=form, **options)
    for known in (False, True):
        run = save_reranker(root / str(known), known)
        dcse_tf.export(run_dir=run, output_dir=run / "onnx", format="onnx")

    pairs = zip([5, 4, 2, 1], LINES[:4], LINES[4:8], strict=True)
    (root / "sts.txt").write_text("".join("\t".join(map(str, pair)) + "\n" for pair in pairs))
    sets = {"sts": f"{root}/sts.txt", "candidates": 4, "max_samples": 20}
    sets["response_selection"] = f"{root}/wordpiece/data/test.jsonl"
    (root / "sets.json").write_text(json.dumps(sets))
    (root / "lines.json").write_text(json.dumps(LINES))
    (root / "lines.txt").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return root


@pytest.mark.parametrize("kind", ["wordpiece", *TRAINED])
def test_texts_are_embedded_alike(root, kind):
    for form, same in (("onnx", "model"), ("static", "static")):
        expected = dcse_tf.SentenceEncoder.load(root / kind / same).encode(LINES)
        np.testing.assert_allclose(np.load(root / kind / form / "rows.npy"), expected, atol=2e-5)
        # Of a table the dimensions are principal components, the last of which hardly vary.
        rows = expected[:, :8] if form == "static" else expected
        assert np.ptp(rows, axis=0).min() > 1e-3


def test_jobs_run_alike(root):
    sets = json.loads((root / "sets.json").read_text())
    model = root / "wordpiece/model"
    found, expected = (
        {(each.task, name): score for each in results for name, score in each.scores.items()}
        for results in (read_results(root / "found.json")[1], dcse_tf.evaluate(model=model, **sets))
    )
    assert {task for task, _ in found} > {"sts", "response_cosine"}
    assert found == pytest.approx({key: expected[key] for key in found}, abs=1e-3)
    rows = dcse_tf.SentenceEncoder.load(model).encode(LINES)
    np.testing.assert_allclose(np.load(root / "embedded.npy"), rows, atol=2e-5)


@pytest.mark.parametrize("known", [False, True])
def test_responses_are_scored_alike(root, known):
    folder = root / str(known)
    (expected,) = dcse_tf.Reranker.load(folder).score([LINES[:2]], [LINES[2:9]])
    np.testing.assert_allclose(np.load(folder / "scores.npy"), expected, atol=1e-4)
    assert np.ptp(expected) > 1e-2


def test_what_needs_tensorflow_says_so_in_one_sentence(root):
    (line,) = (root / "refused.txt").read_text().splitlines()
    assert "wordpiece/model: a checkpoint needs TensorFlow" in line
    assert "pip install tensorflow tensorflow-text keras-hub" in line
