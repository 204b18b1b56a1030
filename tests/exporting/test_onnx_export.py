"""ONNX: the files compute what the models compute, for any batch and length, in eight bits too."""

import json
import shutil
import sys
import textwrap

import numpy as np
import pytest
import reference
from tiny_bert import DIM

import dcse_tf
from dcse_tf.bert import bert as bert_encoder
from dcse_tf.bert import weights
from dcse_tf.bert.sentence_modules import AffineMap
from dcse_tf.errors import InputError, OutputError

pytestmark = pytest.mark.slow

LENGTH, EPSILON = 12, 0.02  # as conftest's encoder has them
TEXTS = ["where is my parcel", "ok", "i want a refund for the blue cup . thanks", "", "ok"]
CONTEXTS = [["i want a refund for the blue cup", "ok", "where is my parcel it left"], ["ok"]]
CANDIDATES = [["it left today", "thanks", "the blue cup it left today thanks"], []]
ROLES = [["a", "b", "b"], ["b"]], ["a", "b"]


def write(model, folder, **settings):
    return dcse_tf.export(run_dir=model, output_dir=folder, format="onnx", **settings)


@pytest.fixture(scope="module")
def exports(bert, tmp_path_factory):
    """Of the encoder, in float32 and in eight bits."""
    folder = tmp_path_factory.mktemp("exports")
    return [write(bert, folder / name, quantize=name) for name in ("none", "int8")]


@pytest.fixture(scope="module")
def of_rerankers(rerankers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    return {known: write(run, folder / str(known)) for known, run in rerankers.items()}


@pytest.mark.parametrize(
    ("name", "activation"), [("gelu", reference.exact_gelu), ("gelu_pytorch_tanh", reference.gelu)]
)
def test_the_graph_is_the_float64_bert_with_maps_and_unit_norm(bert, name, activation):
    import onnxruntime

    from dcse_tf.exporting.onnx_graph import build_encoder

    tensors = weights.to_tensors(weights.backbone_weights(bert_encoder.load_backbone(bert)))
    rng = np.random.default_rng(0)
    maps = [
        AffineMap(rng.normal(size=DIM), rng.normal(size=(DIM, 4)), np.zeros(4), "relu"),
        AffineMap(*(rng.normal(size=shape).astype(np.float32) for shape in (4, (4, 3), 3))),
        AffineMap(rng.normal(size=3), rng.normal(size=(3, 3)), rng.normal(size=3), "tanh", True),
    ]
    config = {"num_attention_heads": 1, "layer_norm_eps": EPSILON, "hidden_act": name}
    model = build_encoder(tensors, config, "mean", maps, unit_norm=True)
    ids = [2, 7, 9, 30, 3]
    inputs = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, 5), np.int64)}
    found = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)[0][0]
    exact = {name: np.float64(value) for name, value in tensors.items()}
    expected = reference.mean_of_rows(
        reference.bert(ids, exact, 1, EPSILON, None, None, activation)
    )
    functions = {"": np.array, "relu": lambda rows: np.maximum(rows, 0.0), "tanh": np.tanh}
    for step in maps:
        expected = expected / np.linalg.norm(expected) if step.unit else expected
        expected = functions[step.activation]((expected - step.shift) @ step.matrix + step.bias)
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-6)


def test_an_export_embeds_as_its_checkpoint_and_says_how(bert, exports):
    checkpoint = dcse_tf.SentenceEncoder.load(bert)
    expected = checkpoint.encode(TEXTS)
    whole, int8 = (dcse_tf.SentenceEncoder.load(folder, batch_tokens=16) for folder in exports)
    np.testing.assert_allclose(whole.encode(TEXTS), expected, atol=1e-4)
    found = int8.encode(TEXTS)
    cosines = [reference.cosine(a, b) for a, b in zip(found, expected)]
    assert 0.9 < min(cosines) < 1 - 1e-6
    # In eight bits too a text has one vector, alone and in any batch.
    for text, row in zip(TEXTS, found):
        np.testing.assert_allclose(int8.encode(text), row, atol=1e-5)

    for encoder, computes_in in ((whole, "float32"), (int8, "int8")):
        settings = {"max_sequence_length": LENGTH, "pooling": "mean", "compute_dtype": computes_in}
        assert encoder.settings == settings
    assert whole.fingerprint() == checkpoint.fingerprint() != int8.fingerprint()
    sizes = [(folder / "model.onnx").stat().st_size for folder in exports]
    assert sizes[1] < 0.7 * sizes[0]
    assert "| weights | int8 |" in (exports[1] / "model_card.md").read_text()


def test_options_reach_the_file_and_its_card_says_how_to_use_it(bert, tmp_path):
    options = {"pooling": "cls", "prefix": "today i ", "unit_norm": True}
    folder = write(bert, tmp_path / "out", **options)
    checkpoint = dcse_tf.SentenceEncoder.load(bert, pooling="cls", prefix="today i ")
    expected = checkpoint.encode(TEXTS, normalize_embeddings=True)
    found = dcse_tf.SentenceEncoder.load(folder)
    np.testing.assert_allclose(found.encode(TEXTS), expected, atol=1e-5)
    assert found.settings.items() >= options.items()

    code = (folder / "model_card.md").read_text().split("## Use")[1].split("## Limits")[0]
    names = {}
    exec(textwrap.dedent(code).replace("FOLDER", str(folder)), names)
    expected = checkpoint.encode(["where is my parcel?"], normalize_embeddings=True)
    np.testing.assert_allclose(names["embeddings"], expected, atol=1e-5)


@pytest.mark.parametrize("known", [False, True])
def test_a_reranker_scores_as_its_run(rerankers, of_rerankers, known):
    """In batches of several pairs, with and without padding."""
    run = dcse_tf.Reranker.load(rerankers[known])
    exported = dcse_tf.Reranker.load(of_rerankers[known], batch_tokens=40)
    for who in ((), ROLES):
        expected = run.score(CONTEXTS, CANDIDATES, *who)
        found = exported.score(CONTEXTS, CANDIDATES, *who)
        np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), atol=1e-4)
    assert exported.fingerprint() == run.fingerprint()
    assert exported.settings == {**run.settings, "compute_dtype": "float32"}


def test_a_reranker_in_eight_bits_is_near(rerankers, of_rerankers, tmp_path):
    folder = write(rerankers[True], tmp_path / "int8", quantize="int8")
    rough, exact = (dcse_tf.Reranker.load(each) for each in (folder, of_rerankers[True]))
    scores = [each.score(CONTEXTS, CANDIDATES)[0] for each in (rough, exact)]
    assert 1e-4 < np.abs(scores[0] - scores[1]).max() < 0.5
    rough.batch_tokens = 1
    np.testing.assert_allclose(rough.score(CONTEXTS, CANDIDATES)[0], scores[0], atol=1e-5)
    assert rough.settings["compute_dtype"] == "int8"
    assert rough.fingerprint() != exact.fingerprint()


def multiply(x, kernel, magnitudes=None):
    """x, int64, times a kernel, in eight bits."""
    import onnxruntime

    from dcse_tf.exporting.onnx_graph import Graph, quantize_model

    graph = Graph({"encoder.kernel": kernel}, {})
    rows = graph.add("Cast", "x", to=1)
    graph.add("MatMul", rows, "encoder.kernel", name="y")
    model = quantize_model(graph.build(["x"], "y", None), {rows: magnitudes})
    assert "MatMulInteger" in {node.op_type for node in model.graph.node}
    return onnxruntime.InferenceSession(model.SerializeToString()).run(["y"], {"x": x})[0]


@pytest.mark.parametrize("rows", [63, 64])
def test_products_of_integers_are_exact_on_every_processor(rows):
    """Even for the activations that bring each column's sums of 16 bits nearest to their limits."""
    from dcse_tf.exporting.onnx_graph import quantize_kernel

    kernel = np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)
    kernel[:, 0] = 1  # all of one sign: the worst case
    kernel[5, 1] = -20
    kernel[:, 2] = 0
    weights, scale = quantize_kernel(kernel)
    assert weights.dtype == np.int8
    np.testing.assert_allclose(weights * scale, kernel, atol=scale.max() / 2 * 1.001)
    # Without VNNI, two products are added in signed 16 bits, which hold no 255 * 129.
    pairs = np.concatenate([weights, weights[:0], np.zeros((rows % 2, 8), np.int8)])
    pairs = pairs.astype(int).reshape(-1, 2, 8)
    largest = [np.maximum(sign * pairs, 0).sum(1).max(0) for sign in (1, -1)]
    assert np.max(largest) == 128
    # What the model multiplies by: as wide as the widest rows, in either direction.
    x = np.concatenate([np.sign(weights.T), -np.sign(weights.T)]).astype(np.int64)
    exact = x @ weights.astype(int) * scale.astype(np.float64)
    np.testing.assert_allclose(multiply(x, kernel), exact, rtol=1e-6, atol=1e-6)


def test_loud_channels_leave_the_others_their_precision():
    """A trained encoder has some; without this its embeddings were off by twice as much."""
    rng = np.random.default_rng(1)
    kernel = rng.normal(size=(64, 16)).astype(np.float32)
    x = rng.integers(-50, 50, (32, 64))
    x[:, 7] *= 100
    every = None, np.sqrt(np.square(x).mean(0)).astype(np.float32)
    errors = [np.abs(multiply(x, kernel, of_one) - x @ kernel).mean() for of_one in every]
    assert errors[1] < 0.3 * errors[0]


def one_scale_for_a_batch(graph, x, magnitudes, after_gelu):
    from onnx import helper

    names = [f"{x}.{part}" for part in ("rows", "scale", "zero")]
    graph.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], names))
    return names[0], names[2], names[1], np.ones(1, np.float32)


def test_files_that_compute_something_else_do_not_appear(bert, rerankers, tmp_path, monkeypatch):
    from dcse_tf.exporting import onnx_export, onnx_graph

    def refuse(model, what, **settings):
        with pytest.raises(OutputError, match=rf"model\.onnx: the export is refused: {what}"):
            write(model, tmp_path / "out", **settings)
        assert list(tmp_path.iterdir()) == []

    def spoil(name):
        build = getattr(onnx_graph, name)
        # Not the same for all: a layer norm follows, which would remove it.
        bias, change = "encoder.layer.1.output.dense.bias", 0.01 * np.eye(DIM, dtype=np.float32)[0]
        return lambda tensors, *rest: build({**tensors, bias: tensors[bias] + change}, *rest)

    with monkeypatch.context() as patch:
        for name in ("build_encoder", "build_cross_encoder"):
            patch.setattr(onnx_graph, name, spoil(name))
        refuse(bert, "difference of an embedding")
        refuse(rerankers[False], "difference of a score")
    with monkeypatch.context() as patch:
        patch.setattr(onnx_graph, "LARGEST_SUM", 2)
        refuse(bert, "eight bits: difference of an embedding", quantize="int8")
        refuse(rerankers[False], "eight bits: difference of a score", quantize="int8")
    with monkeypatch.context() as patch:
        # A random encoder has no loud channels, so a batch's scale is much like a token's.
        patch.setattr(onnx_export, "MOST_APART", 1e-4)
        patch.setattr(onnx_graph, "quantize_rows", one_scale_for_a_batch)
        refuse(bert, "eight bits: an embedding alone and in a batch", quantize="int8")


def test_what_cannot_be_written_is_refused(bert, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        # Protobuf's limit is two gigabytes, which this one does not reach.
        patch.setattr("dcse_tf.exporting.onnx_graph._LARGEST", 10_000)
        with pytest.raises(InputError, match=r"^`format`=onnx"):
            write(bert, tmp_path / "out")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"needs onnxruntime.*: pip install onnx onnxruntime"):
        write(bert, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_export_refuses_what_it_cannot_do(exports, of_rerankers, tmp_path):
    with pytest.raises(InputError, match="leave out `pooling` and `compute_dtype`"):
        dcse_tf.SentenceEncoder.load(exports[0], pooling="cls", compute_dtype="bfloat16")
    with pytest.raises(ValueError, match="has only sentence embeddings"):
        dcse_tf.SentenceEncoder.load(exports[0]).similarity(["ok"], ["ok"])
    with pytest.raises(InputError, match=r"^`path`=.*leave out `compute_dtype`"):
        dcse_tf.Reranker.load(of_rerankers[False], compute_dtype="bfloat16")
    with pytest.raises(InputError, match="is a re-ranker, which scores responses"):
        dcse_tf.SentenceEncoder.load(of_rerankers[False])
    with pytest.raises(InputError, match="is a sentence encoder, not a re-ranker"):
        dcse_tf.Reranker.load(exports[0])

    # A model that was changed is another: the files alone count, and what they read and give.
    folder = shutil.copytree(exports[0], tmp_path / "changed")
    shutil.copy(exports[1] / "model.onnx", folder)
    changed = dcse_tf.SentenceEncoder.load(folder)
    assert changed.settings["compute_dtype"] is None
    assert changed.fingerprint() == dcse_tf.SentenceEncoder.load(exports[1]).fingerprint()
    shutil.copy(of_rerankers[False] / "model.onnx", folder)
    with pytest.raises(InputError, match=r"token_type_ids and gives scores; expected an encoder"):
        dcse_tf.SentenceEncoder.load(folder)
    (folder / "model.onnx").write_bytes(b"no model")
    with pytest.raises(InputError, match=r"model\.onnx: onnxruntime cannot read it"):
        dcse_tf.SentenceEncoder.load(folder)
    assert json.loads((of_rerankers[True] / "reranker.json").read_text())["speakers"]
