"""Jobs with an ONNX or a static export run where TensorFlow cannot be imported, and give the same.

Each job is a process that refuses the import; what it writes is compared with what the checkpoint
gives here, in the graph.
"""

import importlib.util
import json
import subprocess
import sys

import httpx
import numpy as np
import pytest
from texts_of_all_scripts import TEXTS
from tiny_bert import build_backbone, save_checkpoint
from tiny_checkpoints import prepare_for, train_byte_pairs, train_pieces, write_weights
from tiny_reranker import save_reranker

import dcse_tf
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.encoder.unit_length import normalize
from dcse_tf.evaluation.report import read_json
from dcse_tf.exporting.job import export
from dcse_tf.exporting.options import ExportOptions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime")),
        reason="needs onnx and onnxruntime",
    ),
]

REFUSE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "tensorflow_text", "keras", "keras_hub"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
"""
COMMAND = REFUSE + "from dcse_tf.cli.commands import main\nmain()"
# Without those that SentencePiece can split in two equally likely ways, such as "…" into dots.
LINES = [text for text in TEXTS if 0 < len(text) < 70 and not set(text) & set("\n\r…ⅷ")]
LINES += ["where is my parcel", "thanks for the blue cup " * 9, "hi [SEP] there <s>", "", "ok ok"]


_TRAINED = {"byte pairs": (train_byte_pairs, "roberta"), "pieces": (train_pieces, "xlm-roberta")}


def start(job, *, code=COMMAND, **flags):
    command = [sys.executable, "-c", code, job, *(f"--{name}={v}" for name, v in flags.items())]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(job, **flags):
    with start(job, **flags) as process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


@pytest.fixture(scope="module", params=["wordpiece", "byte pairs", "pieces"])
def models(request, dialogues_file, tmp_path_factory):
    """A checkpoint, and what was exported from it by format."""
    root = tmp_path_factory.mktemp("models")
    model = root / "model"
    if request.param == "wordpiece":
        save_checkpoint(model, build_backbone())
    else:
        model.mkdir()
        train, kind = _TRAINED[request.param]
        train(model, [*LINES, *dialogues_file.read_text().splitlines()] * 3, 400)
        write_weights(model, kind, entries=len(read_vocabulary(model).tokens))
    prepare_for(model, dialogues_file, root)
    formats = {
        "onnx": {"format": "onnx"},
        "static": {"format": "static", "data_dir": str(root / "data"), "static_dim": 8},
    }
    for name, options in formats.items():
        export(ExportOptions(run_dir=str(model), output_dir=str(root / name), **options))
    return root


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    path = tmp_path_factory.mktemp("lines") / "lines.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=["onnx", "static"])
def served(request, models):
    """An export, and the model whose embeddings it should have: as it is loaded here."""
    return models / request.param, models / ("model" if request.param == "onnx" else "static")


def test_lines_are_embedded_alike(served, lines, tmp_path):
    export, same = served
    output = tmp_path / "rows.npy"
    run("embed", model=export, input=lines, output=output)
    found = np.load(output)
    expected = dcse_tf.SentenceEncoder.load(same).encode(LINES, show_progress=False)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.ptp(expected, axis=0).min() > 1e-3
    code = """
import numpy as np, dcse_tf
encoder = dcse_tf.SentenceEncoder.load(sys.argv[1])
rows = encoder.encode(open(sys.argv[2], encoding="utf-8").read().split("\\n")[:-1])
np.save(sys.argv[3], rows)
"""
    again = tmp_path / "again.npy"
    subprocess.run([sys.executable, "-c", REFUSE + code, export, lines, again], check=True)
    np.testing.assert_allclose(np.load(again), expected, atol=2e-5)


def test_sets_are_evaluated_alike(served, models, tmp_path):
    export, same = served
    sts, select = tmp_path / "sts.txt", tmp_path / "select.txt"
    pairs = zip([5, 4, 2, 1], LINES[:4], LINES[4:8], strict=True)
    sts.write_text("".join("\t".join(map(str, pair)) + "\n" for pair in pairs))
    select.write_text("0\twhere is it\t\t1\t2\n1\ta parcel\t\t\t\n2\tit left\t\t\t\n")
    sets = {"sts": sts, "retrieval": select, "response_selection": models / "data/test.jsonl"}
    sets |= {"candidates": 4, "max_samples": 20}
    path = tmp_path / "found.json"
    run("evaluate", model=export, output=path, **sets)
    found, expected = (
        {(each.task, name): score for each in results for name, score in each.scores.items()}
        for results in (read_json(path)[1], dcse_tf.evaluate(model=same, **sets))
    )
    assert {task for task, _ in found} > {"sts", "retrieval", "response_cosine"}
    assert found == pytest.approx({key: expected[key] for key in found}, abs=1e-3)


def test_texts_are_searched_alike(served, lines, tmp_path):
    export, same = served
    flags = {"model": export, "corpus": lines, "queries": lines, "index": tmp_path / "index"}
    answers = [json.loads(line) for line in run("search", output="-", **flags).splitlines()]
    assert len(answers) == len(LINES) - 2  # a blank line is no query
    rows = normalize(dcse_tf.SentenceEncoder.load(same).encode(LINES, show_progress=False))
    for answer in answers:
        (query,) = rows[[LINES.index(answer["query"])]]
        for hit in answer["answers"]:
            assert hit["cosine"] == pytest.approx(rows[hit["line"] - 1] @ query, abs=1e-4)
        assert answer["answers"][0]["cosine"] == pytest.approx((rows @ query).max(), abs=1e-4)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "speakers"])
def rerankers(request, tmp_path_factory):
    """A re-ranker and its export."""
    root = tmp_path_factory.mktemp("rerankers")
    trained = save_reranker(root / "run", request.param)
    options = {"run_dir": str(trained), "output_dir": str(root / "onnx"), "format": "onnx"}
    return trained, export(ExportOptions(**options))


@pytest.mark.parametrize("models", ["wordpiece"], indirect=True)
def test_requests_are_answered_alike(served, rerankers):
    export, same = served
    trained, reranker = rerankers
    with start("serve", model=export, reranker=reranker, port=0) as process:
        url = process.stdout.readline().removeprefix("serving at ").strip()
        form = {"model": export.name, "input": LINES[:5]}
        embedded = httpx.post(f"{url}/v1/embeddings", json=form, timeout=60)
        query = "where is my parcel [EOT] it left today"
        form = {"model": export.name, "query": query, "documents": LINES[1:10]}
        ranked = httpx.post(f"{url}/v1/rerank", json=form, timeout=60)
        process.terminate()
        assert process.wait(60) == 0
    found = [each["embedding"] for each in embedded.json()["data"]]
    expected = dcse_tf.SentenceEncoder.load(same).encode(LINES[:5], show_progress=False)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    (logits,) = dcse_tf.Reranker.load(trained).score([query.split(" [EOT] ")], [LINES[1:10]])
    probability = {each["index"]: each["relevance_score"] for each in ranked.json()["results"]}
    expected = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose([probability[i] for i in range(9)], expected, atol=1e-4)
    assert np.ptp(expected) > 1e-2


@pytest.mark.parametrize("models", ["wordpiece"], indirect=True)
@pytest.mark.parametrize(
    ("job", "needs"),
    [("embed", "/model: a checkpoint needs TensorFlow"), ("export", "export needs TensorFlow")],
)
def test_what_needs_tensorflow_says_so_in_one_line(models, lines, tmp_path, job, needs):
    flags = {"embed": {"model": models / "model", "input": lines, "output": tmp_path / "rows.npy"}}
    flags["export"] = {"run_dir": models / "model", "output_dir": tmp_path / "export"}
    with start(job, **flags[job]) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    (line,) = errors.splitlines()
    assert needs in line
    assert "and keras is not installed: pip install tensorflow tensorflow-text keras-hub" in line
