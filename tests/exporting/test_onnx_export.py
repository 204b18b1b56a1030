"""ONNX: the graph computes what the encoder computes, for any batch and length."""

import importlib.util
import json
import shutil
import sys
import textwrap

import numpy as np
import pytest
import reference
import tensorflow as tf
import tokenizers
from tiny_bert import DIM, VOCABULARY, build_backbone

from dcse_tf.bert import bert as bert_encoder
from dcse_tf.bert import checkpoints, weights
from dcse_tf.bert.options import EncoderOptions
from dcse_tf.encoder.checkpoint import load_graph
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError, OutputError
from dcse_tf.exporting.job import export
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.matching.affine import AffineMap
from dcse_tf.search import embed
from dcse_tf.search.search_options import EmbedOptions

LENGTH = 12
EPSILON = 0.02  # other than BERT's own, and large enough to be seen
SENTENCES = ["where is my parcel", "ok", "i want a refund for the blue cup . thanks", ""]

needs_onnx = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime")),
    reason="needs onnx and onnxruntime",
)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert") / "bert"
    folder.mkdir()
    backbone = build_backbone()
    config = bert_encoder.make_bert_config(
        backbone.num_layers, backbone.hidden_dim, len(VOCABULARY.tokens)
    )
    config["layer_norm_eps"] = EPSILON
    bert_encoder.save_backbone(folder, backbone, config)
    VOCABULARY.write(folder)
    checkpoints.write_max_sequence_length(folder, LENGTH)
    return folder


@pytest.fixture(scope="module")
def tensors(bert):
    backbone = bert_encoder.load_backbone(bert)
    return weights.to_tensors(weights.backbone_weights(backbone))


def write(bert, tmp_path, **settings):
    folder = tmp_path / "onnx"
    export(ExportOptions(run_dir=str(bert), output_dir=str(folder), format="onnx", **settings))
    return folder


def run(model, sentences, folder):
    """By the written files alone, as one batch."""
    import onnxruntime

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "sentence_bert_config.json").read_text())
    tokenizer.enable_truncation(settings["max_seq_length"])
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(sentences)
    inputs = {
        "input_ids": np.array([e.ids for e in encoded], np.int64),
        "attention_mask": np.array([e.attention_mask for e in encoded], np.int64),
    }
    return onnxruntime.InferenceSession(model).run(["embeddings"], inputs)[0]


@needs_onnx
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_written_files_embed_as_the_encoder_does(bert, tmp_path, pooling):
    folder = write(bert, tmp_path, pooling=pooling)
    encoder = load_graph(str(bert), "run_dir", EncoderOptions(pooling=pooling))
    expected = encoder.pool_tokens(encoder.tokenize(tf.constant(SENTENCES)).to_tensor()).numpy()
    model = str(folder / "model.onnx")
    np.testing.assert_allclose(run(model, SENTENCES, folder), expected, atol=1e-5)
    for sentence, row in zip(SENTENCES, expected):
        np.testing.assert_allclose(run(model, [sentence], folder)[0], row, atol=1e-5)
    assert np.ptp(expected, axis=0).min() > 1e-3


@needs_onnx
@pytest.mark.parametrize(
    ("name", "activation"),
    [("gelu", reference.exact_gelu), ("gelu_pytorch_tanh", reference.gelu)],
)
def test_the_graph_is_the_float64_bert_with_maps_and_unit_norm(tensors, name, activation):
    import onnxruntime

    from dcse_tf.exporting.onnx_graph import build_onnx_graph

    rng = np.random.default_rng(0)
    maps = [
        AffineMap(rng.normal(size=DIM), rng.normal(size=(DIM, 4)), np.zeros(4), relu=True),
        AffineMap(*(rng.normal(size=shape).astype(np.float32) for shape in (4, (4, 3), 3))),
    ]
    # Activations of some size: GELU has two forms.
    wide = {k: 10 * v if k.endswith("intermediate.dense.weight") else v for k, v in tensors.items()}
    config = {"num_attention_heads": 1, "layer_norm_eps": EPSILON, "hidden_act": name}
    model = build_onnx_graph(wide, config, "mean", maps, unit_norm=True)
    ids = [2, 7, 9, 30, 3]
    inputs = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, 5), np.int64)}
    found = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)[0][0]
    exact = {name: np.float64(value) for name, value in wide.items()}
    expected = reference.mean_of_rows(
        reference.bert(ids, exact, 1, EPSILON, None, None, activation)
    )
    for step in maps:
        expected = (expected - step.shift) @ step.matrix + step.bias
        expected = np.maximum(expected, 0.0) if step.relu else expected
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-6)


@pytest.fixture(scope="module")
def exports(bert, tmp_path_factory):
    """In float32 and in eight bits."""
    folder = tmp_path_factory.mktemp("exports")
    return [write(bert, folder / name, quantize=name) for name in ("none", "int8")]


@needs_onnx
def test_int8_is_smaller_and_close(exports):
    whole, folder = exports
    sizes = [(f / "model.onnx").stat().st_size for f in (whole, folder)]
    assert sizes[1] < 0.7 * sizes[0]
    first, second = (run(str(f / "model.onnx"), SENTENCES, f) for f in (whole, folder))
    cosines = [reference.cosine(a, b) for a, b in zip(first, second)]
    assert 0.9 < min(cosines) < 1 - 1e-6
    assert "int8; on 32 sentences smallest cosine" in (folder / "model_card.md").read_text()


@needs_onnx
def test_in_eight_bits_a_text_has_one_vector_alone_and_in_any_batch(exports):
    folder = exports[1]
    model = str(folder / "model.onnx")
    together = run(model, SENTENCES, folder)
    for sentence, row in zip(SENTENCES, together):
        np.testing.assert_allclose(run(model, [sentence], folder)[0], row, atol=1e-5)


@needs_onnx
@pytest.mark.parametrize("rows", [63, 64])
def test_products_of_integers_are_exact_on_every_processor(rows):
    """Even for the activations that bring each column's sums of 16 bits nearest to their limits."""
    from dcse_tf.exporting.eight_bits import EightBitGraph, quantize_kernel

    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(rows, 8)).astype(np.float32)
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
    config = {"num_attention_heads": 1, "layer_norm_eps": EPSILON, "hidden_act": "gelu"}
    graph = EightBitGraph(config, ["x"], magnitudes={})
    product = graph.multiply(graph.add("Cast", "x", to=1), kernel, "encoder.kernel")
    graph.add("Identity", product, name="y")
    x = np.concatenate([np.sign(weights.T), -np.sign(weights.T)]).astype(np.int64)
    found = run_graph(graph, "y", x=x)
    exact = x @ weights.astype(int) * scale.astype(np.float64)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6)


def run_graph(graph, output, **inputs):
    import onnxruntime
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    session = onnxruntime.InferenceSession(graph.build([value]).SerializeToString())
    return session.run([output], inputs)[0]


@needs_onnx
def test_loud_channels_leave_the_others_their_precision():
    """A trained encoder has some; without this its embeddings were off by twice as much."""
    from dcse_tf.exporting.eight_bits import EightBitGraph

    rng = np.random.default_rng(1)
    kernel = rng.normal(size=(64, 16)).astype(np.float32)
    x = rng.integers(-50, 50, (32, 64))
    x[:, 7] *= 100
    config = {"num_attention_heads": 1, "layer_norm_eps": EPSILON, "hidden_act": "gelu"}
    errors = []
    for magnitudes in ({}, {"encoder.kernel": np.sqrt(np.square(x).mean(0)).astype(np.float32)}):
        graph = EightBitGraph(config, ["x"], magnitudes=magnitudes)
        graph.add(
            "Identity",
            graph.multiply(graph.add("Cast", "x", to=1), kernel, "encoder.kernel"),
            name="y",
        )
        errors.append(np.abs(run_graph(graph, "y", x=x) - x @ kernel).mean())
    assert errors[1] < 0.3 * errors[0]


@needs_onnx
def test_eight_bits_that_are_too_coarse_are_refused(bert, tmp_path, monkeypatch):
    from onnx import helper

    from dcse_tf.exporting import eight_bits, onnx

    def by_batch(self, x, loud):
        """A scale for all tokens of a batch."""
        names = [f"{x}.{part}" for part in ("rows", "scale", "zero")]
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], names))
        return names[0], names[2], names[1]

    message = r"model\.onnx: eight bits are too coarse .* cosine 0\.\d+ .* apart; expected"
    with monkeypatch.context() as patch:
        patch.setattr(eight_bits, "LARGEST_SUM", 2)
        with pytest.raises(OutputError, match=message):
            write(bert, tmp_path, quantize="int8")
    # A random encoder has no loud channels, so a batch's scale is much like a token's.
    monkeypatch.setattr(onnx, "MOST_APART", 1e-4)
    monkeypatch.setattr(eight_bits.EightBitGraph, "_quantize_rows", by_batch)
    with pytest.raises(OutputError, match=message):
        write(bert, tmp_path, quantize="int8")
    assert list(tmp_path.iterdir()) == []


@needs_onnx
def test_a_file_that_computes_something_else_is_not_kept(bert, tmp_path, monkeypatch):
    from dcse_tf.exporting import onnx

    right = onnx.build_onnx_graph

    def wrong(tensors, *settings):
        name = "encoder.layer.1.output.dense.bias"
        # Not the same for all: a layer norm follows, which would remove it.
        return right(
            {**tensors, name: tensors[name] + 0.01 * np.eye(DIM, dtype=np.float32)[0]}, *settings
        )

    monkeypatch.setattr(onnx, "build_onnx_graph", wrong)
    with pytest.raises(OutputError, match=r"model\.onnx: its embeddings differ"):
        write(bert, tmp_path)
    assert not (tmp_path / "onnx").exists()


def test_without_the_extra_the_message_names_it(bert, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"needs onnxruntime.*: pip install onnx onnxruntime"):
        write(bert, tmp_path)


@needs_onnx
def test_an_export_embeds_as_its_checkpoint_and_says_how(bert, exports):
    texts = [*SENTENCES, "ok", *SENTENCES[::-1]]
    checkpoint = SentenceEncoder.load(bert)
    expected = checkpoint.encode(texts)
    whole, int8 = (SentenceEncoder.load(folder, batch_tokens=16) for folder in exports)
    np.testing.assert_allclose(whole.encode(texts), expected, atol=1e-4)
    found = int8.encode(texts)
    np.testing.assert_array_equal(
        found, SentenceEncoder.load(exports[1], batch_tokens=16).encode(texts)
    )
    assert min(map(reference.cosine, found, expected)) > 0.9
    assert not np.allclose(found, expected, atol=1e-4)

    for encoder, computes_in in ((whole, "float32"), (int8, "int8")):
        settings = {"max_sequence_length": LENGTH, "pooling": "mean", "compute_dtype": computes_in}
        assert encoder.settings == settings
    assert whole.fingerprint() == checkpoint.fingerprint() != int8.fingerprint()


@needs_onnx
def test_an_export_of_the_first_dimensions(bert, tmp_path):
    checkpoint = SentenceEncoder.load(bert)
    first = checkpoint.encode(SENTENCES)[:, :3].astype(np.float64)
    expected = first / np.linalg.norm(first, axis=1, keepdims=True)
    short = SentenceEncoder.load(write(bert, tmp_path, truncate_dim=3, unit_norm=True))
    np.testing.assert_allclose(short.encode(SENTENCES), expected, atol=1e-5)
    assert short.fingerprint() != checkpoint.fingerprint()
    with pytest.raises(InputError, match=r"`truncate_dim`=999: .* has only 64 dimensions"):
        write(bert, tmp_path / "wide", truncate_dim=999)


@needs_onnx
def test_the_code_of_the_card_puts_the_prefix_before_a_text(bert, tmp_path):
    folder = write(bert, tmp_path, prefix="today i ")
    code = (folder / "model_card.md").read_text().split("## Use")[1].split("## Intended use")[0]
    names = {}
    exec(textwrap.dedent(code).replace("FOLDER", str(folder)), names)
    expected = SentenceEncoder.load(bert).encode(["today i where is my parcel?"])
    np.testing.assert_allclose(names["embeddings"], expected, atol=1e-5)


@needs_onnx
def test_a_model_that_no_onnx_file_can_hold_is_refused(bert, tmp_path, monkeypatch):
    """Protobuf's limit is two gigabytes, which this one does not reach."""
    monkeypatch.setattr("dcse_tf.exporting.onnx_graph._LARGEST", 10_000)
    with pytest.raises(InputError, match=r"this model has 0\.00; `format`=saved_model can hold it"):
        write(bert, tmp_path)
    assert list(tmp_path.iterdir()) == []


@needs_onnx
def test_an_export_whose_model_was_changed_is_another(exports, tmp_path):
    folder = shutil.copytree(exports[0], tmp_path / "changed")
    shutil.copy(exports[1] / "model.onnx", folder)
    encoder = SentenceEncoder.load(folder)
    assert encoder.settings["compute_dtype"] is None
    # Nothing is said of it any more: the files alone count, and they are those of the other.
    assert encoder.fingerprint() == SentenceEncoder.load(exports[1]).fingerprint()


@needs_onnx
def test_embed_by_an_export_is_resumed(exports, tmp_path, monkeypatch):
    path, output = tmp_path / "in.txt", tmp_path / "out.npy"
    path.write_text("\n".join(SENTENCES * 2) + "\n")
    config = EmbedOptions(model=str(exports[1]), input=str(path), output=str(output), block_size=3)
    embed.embed(config.replace(output=str(tmp_path / "whole.npy")))
    blocks, encode = [], SentenceEncoder.encode_and_mark

    def count(*given):
        blocks.append(given)
        if len(blocks) == 2:
            raise KeyboardInterrupt
        return encode(*given)

    monkeypatch.setattr(SentenceEncoder, "encode_and_mark", count)
    with pytest.raises(KeyboardInterrupt):
        embed.embed(config)
    with pytest.raises(InputError, match=r"`compute_dtype`: float32 \(was int8\)"):
        embed.embed(config.replace(model=str(exports[0])))
    embed.embed(config)
    assert len(blocks) == 4  # of three: the first is done, the second was begun
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()


@needs_onnx
def test_an_export_refuses_what_it_cannot_do(exports, tmp_path):
    with pytest.raises(
        InputError, match="leave out `pooling` and `compute_dtype`, or name the run"
    ):
        SentenceEncoder.load(exports[0], pooling="cls", compute_dtype="bfloat16")
    with pytest.raises(ValueError, match="has only sentence embeddings"):
        SentenceEncoder.load(exports[0]).similarity(["ok"], ["ok"])

    from onnx import TensorProto, helper, save

    folder = shutil.copytree(exports[0], tmp_path / "other")
    ids, scores = (
        helper.make_tensor_value_info(name, TensorProto.INT64, ["n"]) for name in ("ids", "scores")
    )
    copy = helper.make_node("Identity", ["ids"], ["scores"])
    opsets = [helper.make_opsetid("", 20)]
    graph = helper.make_graph([copy], "other", [ids], [scores])
    save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "model.onnx")
    with pytest.raises(InputError, match=r"model\.onnx: takes ids and gives scores; expected"):
        SentenceEncoder.load(folder)
    (folder / "model.onnx").write_bytes(b"no model")
    with pytest.raises(InputError, match=r"model\.onnx: onnxruntime cannot read it"):
        SentenceEncoder.load(folder)
