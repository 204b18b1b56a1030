"""Folders for sentence-transformers: what is written, and what is read back."""

import json
import shutil
import types

import numpy as np
import pytest
import reference
import safetensors.numpy
import tensorflow as tf
import tokenizers
import transformers
from texts_of_all_scripts import LONG_WORDS, TEXTS
from tiny_bert import DIM, VOCABULARY, save_random
from tiny_reranker import END, FIRST_TOKENS, SECOND_TOKENS, WITH_END, make_tensors

import dcse_tf
from dcse_tf.baselines.registry import Fitted, write_baseline
from dcse_tf.bert import checkpoints
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.vocabulary import WordPiece
from dcse_tf.encoder.graph import load_graph
from dcse_tf.errors import InputError

pytestmark = pytest.mark.slow

IDENTITY = "torch.nn.modules.linear.Identity"
LENGTH, EPSILON = 12, 0.02  # as conftest's encoder has them
SENTENCES = [
    "where is my parcel", "", "i want a refund for the blue cup thanks my", "好 的 发 货",
    "ok . thanks",
]  # fmt: skip
SPECIAL = ["what is [SEP] ?", "[CLS] [MASK][UNK] a [PAD]"]


def write(source, folder, **settings):
    return dcse_tf.export(
        run_dir=source, output_dir=folder, format="sentence_transformers", **settings
    )


@pytest.fixture(scope="module")
def whitened(bert, tmp_path_factory):
    """The BERT with a map behind it, of three dimensions."""
    folder = tmp_path_factory.mktemp("baseline") / "whitened"
    folder.mkdir()
    checkpoints.copy_checkpoint(bert, folder)
    rng = np.random.default_rng(0)
    tensors = {"mean": rng.normal(size=DIM), "matrix": rng.normal(size=(DIM, 3))}
    write_baseline(folder, "whitening", Fitted(tensors, {}), "mean")
    return folder


@pytest.fixture(scope="module")
def of_whitened(whitened):
    return write(whitened, whitened.parent / "out")


@pytest.fixture(scope="module")
def expected(bert, whitened):
    """What is to come back, by the folder and the pooling."""
    cases = {"mean": (bert, "mean"), "cls": (bert, "cls"), "whitened": (whitened, "mean")}
    return {name: embed(*case) for name, case in cases.items()}


@pytest.fixture
def exported(bert, tmp_path):
    return write(bert, tmp_path / "exported")


def read(folder, name):
    return json.loads((folder / name).read_text())


def embed(folder, pooling=None):
    return dcse_tf.SentenceEncoder.load(folder, pooling=pooling).encode(SENTENCES)


def test_the_written_files_are_the_encoder(exported, expected):
    """Bit for bit by this package, and by float64 from the files, as another library reads them."""
    np.testing.assert_array_equal(embed(exported), expected["mean"])
    config = read(exported, "config.json")
    assert (config["hidden_act"], config["layer_norm_eps"]) == ("gelu_pytorch_tanh", EPSILON)
    tensors = safetensors.numpy.load_file(exported / "model.safetensors")
    tokenizer = tokenizers.Tokenizer.from_file(str(exported / "tokenizer.json"))
    tokenizer.enable_truncation(read(exported, "sentence_bert_config.json")["max_seq_length"])
    exact = {name: np.float64(value) for name, value in tensors.items()}
    for sentence, found in zip(SENTENCES, expected["mean"]):
        ids = tokenizer.encode(sentence).ids
        tokens = reference.bert(ids, exact, config["num_attention_heads"], EPSILON)
        np.testing.assert_allclose(found, reference.mean_of_rows(tokens), atol=1e-5)
    # sentence-transformers' ONNX backend refuses `model_args`; without a pooler PyTorch warns.
    assert tensors["pooler.dense.weight"].std() > 0
    assert read(exported, "sentence_bert_config.json").keys() == {"max_seq_length", "do_lower_case"}
    types = [module["type"].split(".")[-1] for module in read(exported, "modules.json")]
    assert types == ["Transformer", "Pooling"]


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_tokenizer_files_give_our_token_ids(tmp_path, lowercase):
    letters = sorted({c for text in TEXTS + LONG_WORDS for c in text.lower() if c.isprintable()})
    entries = [*VOCABULARY.tokens[:5], *(c for c in letters if not c.isspace())]
    entries += [f"##{c}" for c in letters if not c.isspace()]
    vocabulary = WordPiece(tuple(dict.fromkeys(entries)), lowercase)
    source = save_random(tmp_path / "source", vocabulary, layers=1)
    folder = write(source, tmp_path / "out", max_sequence_length=40)
    texts = TEXTS + LONG_WORDS + SPECIAL
    ours = load_graph(folder).tokenize(tf.constant(texts))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    alone = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    alone.encode_special_tokens = True
    alone.enable_truncation(40)
    for text, ids in zip(texts, ours.to_list()):
        assert theirs(text, truncation=True)["input_ids"] == ids, text
        assert alone.encode(text).ids == ids, text
    assert max(map(len, ours.to_list())) == 40


def test_newer_and_other_layouts_of_the_folder_are_read(exported, expected):
    """As version 6 of the library saves it, and with the transformer in a folder of its own."""
    (exported / "vocab.txt").unlink()
    settings = '{"transformer_task": "feature-extraction"}'  # the length is in the tokenizer's
    (exported / "sentence_bert_config.json").write_text(settings)
    assert read_vocabulary(exported) == VOCABULARY
    np.testing.assert_array_equal(embed(exported), expected["mean"])
    below = exported / "0_Transformer"
    below.mkdir()
    for path in [p for p in exported.iterdir() if p.is_file() and p.name != "modules.json"]:
        path.rename(below / path.name)
    modules = read(exported, "modules.json")
    modules[0]["path"] = "0_Transformer"
    (exported / "modules.json").write_text(json.dumps(modules))
    np.testing.assert_array_equal(embed(exported), expected["mean"])


def test_pooling_unit_norm_and_prefix_are_written_and_honoured(bert, expected, tmp_path):
    folder = write(bert, tmp_path / "cls", pooling="cls", unit_norm=True, prefix="my ")
    pooling = read(folder, "1_Pooling/config.json")
    assert pooling["pooling_mode_cls_token"] > pooling["pooling_mode_mean_tokens"]
    modules = read(folder, "modules.json")
    assert [m["type"].split(".")[-1] for m in modules] == ["Transformer", "Pooling", "Normalize"]
    assert (folder / modules[2]["path"]).is_dir()
    by_hand = dcse_tf.SentenceEncoder.load(bert, pooling="cls", prefix="my ").encode(SENTENCES)
    np.testing.assert_array_equal(embed(folder), by_hand)

    # Prompts and poolings as the library names them.
    name = "config_sentence_transformers.json"
    assert read(folder, name)["prompts"] == dict.fromkeys(("prefix", "query", "document"), "my ")
    other = {"prompts": {"query": "where ", "passage": "a "}, "default_prompt_name": "query"}
    (folder / name).write_text(json.dumps(read(folder, name) | other))
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode": "mean", "include_prompt": 1}')
    own = dcse_tf.SentenceEncoder.load(bert, prefix="where ").encode(SENTENCES)
    np.testing.assert_array_equal(embed(folder), own)
    assert np.abs(expected["cls"] - expected["mean"]).max() > 1e-2


def test_a_whitening_is_a_dense_module(of_whitened, expected):
    folder = of_whitened
    tensors = safetensors.numpy.load_file(folder / "2_Dense/model.safetensors")
    by_hand = expected["mean"] @ tensors["linear.weight"].T + tensors["linear.bias"]
    np.testing.assert_allclose(by_hand, expected["whitened"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(embed(folder), expected["whitened"], rtol=1e-4, atol=1e-4)
    assert dcse_tf.SentenceEncoder.load(folder).match is None


def test_dense_and_normalize_modules_are_computed_in_their_order(bert, expected, tmp_path):
    """As version 6 of the library saves them: Normalize, Dense with tanh, Dense, Normalize."""
    folder, rng = write(bert, tmp_path / "out", unit_norm=True), np.random.default_rng(1)
    kernels, bias = [rng.normal(size=shape) for shape in ((20, DIM), (5, 20))], rng.normal(size=5)
    names, modules = ("Dense", "Dense", "Normalize"), read(folder, "modules.json")
    for index, name in enumerate(names, start=3):
        kind = f"sentence_transformers.base.modules.{name.lower()}.{name}"
        modules.append({"idx": index, "name": str(index), "path": f"{index}_{name}", "type": kind})
        (folder / f"{index}_{name}").mkdir()
    (folder / "modules.json").write_text(json.dumps(modules))
    for index, kernel, tensors, own in (
        (3, kernels[0], {}, {"bias": False}),  # tanh is the library's default
        (4, kernels[1], {"linear.bias": bias}, {"activation_function": IDENTITY}),
    ):
        outputs, inputs = kernel.shape
        config = {"in_features": inputs, "out_features": outputs, **own}
        (folder / f"{index}_Dense/config.json").write_text(json.dumps(config))
        path = folder / f"{index}_Dense/model.safetensors"
        safetensors.numpy.save_file({"linear.weight": kernel, **tensors}, path)

    exact = np.float64(expected["mean"])
    exact = exact / np.linalg.norm(exact, axis=1, keepdims=True)
    exact = np.tanh(exact @ kernels[0].T) @ kernels[1].T + bias
    np.testing.assert_allclose(embed(folder), exact, atol=1e-5)
    exported = write(folder, tmp_path / "again", unit_norm=True)
    assert [m["path"] for m in read(exported, "modules.json")] == [m["path"] for m in modules]
    np.testing.assert_allclose(embed(exported), exact, atol=1e-5)
    (folder / "4_Dense/model.safetensors").unlink()
    with pytest.raises(InputError, match=r"4_Dense/model\.safetensors: no such file"):
        embed(folder)


@pytest.mark.parametrize(
    ("file", "values", "named"),
    [
        ("2_Dense/config.json", {"activation_function": "torch.nn.Tanh"}, "Tanh"),
        ("2_Dense/config.json", {"module_output_name": "a"}, r"2_Dense.*sentence_embedding"),
        ("2_Dense/config.json", {"bias": False}, r"2_Dense/model\.safetensors: tensors .*bias"),
        ("2_Dense/config.json", {"out_features": 4}, r"\(3, 64\).*expected .*\(4, 64\)"),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "max"]}, "mean and max"),
        ("1_Pooling/config.json", {"pooling_mode": 5}, "pooling by 5"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt is false"),
        ("modules.json", {2: {"type": "sentence_transformers.models.LSTM"}}, "LSTM"),
        ("modules.json", {0: {"path": "../elsewhere"}}, "elsewhere"),
        ("config_sentence_transformers.json", {"prompts": {"a": 3}}, "prompts"),
        ("tokenizer.json", {"normalizer": {"type": "Lowercase"}}, "tokenizer"),
        ("tokenizer.json", {"model": {"type": "Unigram"}}, "tokenizer"),
    ],
)
def test_what_a_file_says_beyond_us_is_an_error(of_whitened, tmp_path, file, values, named):
    folder = shutil.copytree(of_whitened, tmp_path / "out")
    (folder / "vocab.txt").unlink()
    content = read(folder, file)
    for key, value in values.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    if "prompts" in content:
        content["default_prompt_name"] = "a"
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(InputError, match=named):
        embed(folder)


def test_what_no_module_can_hold_is_refused(rerankers, tmp_path):
    from dcse_tf.exporting.sentence_transformers import list_maps

    with pytest.raises(InputError, match=r"^`format`=onnx: a flow"):
        list_maps(types.SimpleNamespace(name="flow"), "onnx")
    with pytest.raises(InputError, match=r"^`format`=sentence_transformers: .*who speaks"):
        write(rerankers[True], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_reranker_is_a_cross_encoder_whose_tokenizer_makes_our_sequences(rerankers, tmp_path):
    """By transformers and by tokenizers alone; special tokens that a text names are split."""
    folder = write(rerankers[False], tmp_path / "out")
    config = read(folder, "config.json")
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "LABEL_0"}
    assert config["sentence_transformers"] == {"activation_fn": IDENTITY}
    tensors, given = safetensors.numpy.load_file(folder / "model.safetensors"), make_tensors()
    assert tensors.keys() == given.keys()
    assert all((tensors[name] == given[name]).all() for name in given)
    own = dcse_tf.Reranker.load(rerankers[False])
    assert dcse_tf.Reranker.load(folder).fingerprint() == own.fingerprint()

    turns = ["where is my parcel", "what is [SEP] ?"]
    context = " ".join(f"{turn} [EOT]" for turn in turns)
    plain = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain.encode_special_tokens = True
    library = transformers.AutoTokenizer.from_pretrained(folder)
    unknown, cls, sep = (WITH_END.tokens.index(f"[{name}]") for name in ("UNK", "CLS", "SEP"))
    first = [WITH_END.tokens.index(word) for word in turns[0].split()]
    second = [unknown, WITH_END.tokens.index("is"), *[unknown] * 4]  # what is [ SEP ] ?
    expected = [cls, *first, END, *second, END, sep, WITH_END.tokens.index("ok"), sep]
    segments = [0] * (len(expected) - 2) + [1, 1]
    encoded = plain.encode(context, "ok")
    assert (encoded.ids, encoded.type_ids) == (expected, segments)
    found = library(context, "ok")
    assert (found["input_ids"], found["token_type_ids"]) == (expected, segments)
    # Longer ones are cut at their start.
    cut = library(context * 3, "ok", truncation="longest_first")["input_ids"]
    assert len(cut) == library.model_max_length == FIRST_TOKENS + SECOND_TOKENS
    assert (cut[0], cut[-5:]) == (cls, expected[-5:])
