"""Folders for sentence-transformers: what is written, and what is read back."""

import json

import numpy as np
import pytest
import reference
import safetensors.numpy
import tensorflow as tf
import tokenizers
import transformers
from texts_of_all_scripts import LONG_WORDS, TEXTS
from tiny_bert import DIM, VOCABULARY, build_backbone
from train_options import make_options

from dcse_tf.baselines.files import write_baseline
from dcse_tf.baselines.fit_baseline import fit_baseline
from dcse_tf.baselines.flow import FlowOptions
from dcse_tf.baselines.registry import Fitted
from dcse_tf.bert import bert as bert_encoder
from dcse_tf.bert import checkpoints
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.wordpiece import WordPiece
from dcse_tf.encoder.checkpoint import load_graph
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.exporting.job import export
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.options import OptionError
from dcse_tf.training.job import train

LENGTH = 9
EPSILON = 0.02  # other than BERT's own, and large enough to be seen
SENTENCES = [
    "where is my parcel",
    "",
    "i want a refund for the blue cup",
    "好 的 发 货",
    "ok . thanks",
]
SPECIAL = ["what is [SEP] ?", "[CLS] [MASK][UNK] a [PAD]"]


def write_bert(folder, vocabulary=VOCABULARY, backbone=None):
    folder.mkdir()
    backbone = backbone or build_backbone()
    for layer in backbone.transformer_layers:  # activations of some size: GELU has two forms
        layer._feedforward_intermediate_dense.kernel.assign_add(
            9 * layer._feedforward_intermediate_dense.kernel
        )
    config = bert_encoder.make_bert_config(
        backbone.num_layers, backbone.hidden_dim, len(vocabulary.tokens)
    )
    config["layer_norm_eps"] = EPSILON
    bert_encoder.save_backbone(folder, backbone, config)
    vocabulary.write(folder)
    checkpoints.write_max_sequence_length(folder, LENGTH)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return write_bert(tmp_path_factory.mktemp("bert") / "bert")


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
def expected(bert, whitened):
    """What is to come back, by the folder and the pooling."""
    cases = {"mean": (bert, "mean"), "cls": (bert, "cls"), "whitened": (whitened, "mean")}
    return {name: embed(*case) for name, case in cases.items()}


@pytest.fixture(scope="module")
def exported(bert, tmp_path_factory):
    return write(bert, tmp_path_factory.mktemp("export"))


def write(source, tmp_path, **settings):
    folder = tmp_path / "exported"
    defaults = {"run_dir": str(source), "output_dir": str(folder), "overwrite": True}
    export(ExportOptions(format="sentence_transformers", **{**defaults, **settings}))
    return folder


def read(folder, name):
    return json.loads((folder / name).read_text())


def change(folder, name, **values):
    (folder / name).write_text(json.dumps({**read(folder, name), **values}))


def embed(folder, pooling=None):
    return SentenceEncoder.load(folder, pooling=pooling).encode(SENTENCES)


def test_what_is_reloaded_embeds_bit_for_bit_the_same(exported, expected):
    np.testing.assert_array_equal(embed(exported), expected["mean"])
    assert np.ptp(expected["mean"], axis=0).min() > 1e-3


def test_the_written_config_and_tensors_give_the_embedding_by_float64(exported, expected):
    """The activation and the epsilon are taken from the file, as another library does."""
    config = read(exported, "config.json")
    tensors = {k: np.float64(v) for k, v in _tensors(exported).items()}
    assert config["hidden_act"] == "gelu_pytorch_tanh"
    assert config["layer_norm_eps"] == EPSILON
    tokenizer = tokenizers.Tokenizer.from_file(str(exported / "tokenizer.json"))
    tokenizer.enable_truncation(read(exported, "sentence_bert_config.json")["max_seq_length"])
    for sentence, found in zip(SENTENCES, expected["mean"]):
        tokens = reference.bert(
            tokenizer.encode(sentence).ids,
            tensors,
            config["num_attention_heads"],
            EPSILON,
        )
        np.testing.assert_allclose(found, reference.mean_of_rows(tokens), atol=1e-5)


def _tensors(folder):
    return safetensors.numpy.load_file(folder / "model.safetensors")


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_tokenizer_files_give_our_token_ids(tmp_path, lowercase):
    letters = sorted({c for text in TEXTS + LONG_WORDS for c in text.lower() if c.isprintable()})
    entries = [*VOCABULARY.tokens[:5], *(c for c in letters if not c.isspace())]
    entries += [f"##{c}" for c in letters if not c.isspace()]
    vocabulary = WordPiece(tuple(dict.fromkeys(entries)), lowercase)
    config = bert_encoder.make_bert_config(1, 64, len(vocabulary.tokens))
    source = write_bert(tmp_path / "bert", vocabulary, bert_encoder.build_backbone(config, 0.0))
    folder = write(source, tmp_path, max_sequence_length=40)
    texts = TEXTS + LONG_WORDS + SPECIAL
    ours = load_graph(str(folder), "model").tokenize(tf.constant(texts))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    alone = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    alone.encode_special_tokens = True
    alone.enable_truncation(40)
    for text, ids in zip(texts, ours.to_list()):
        assert theirs(text, truncation=True)["input_ids"] == ids, text
        assert alone.encode(text).ids == ids, text
    assert max(map(len, ours.to_list())) == 40


def test_a_pooler_is_written_and_no_setting_forbids_it(exported):
    """sentence-transformers' ONNX backend refuses `model_args`; without a pooler PyTorch warns."""
    tensors = _tensors(exported)
    assert tensors["pooler.dense.weight"].shape == (DIM, DIM)
    assert tensors["pooler.dense.weight"].std() > 0
    assert tensors["pooler.dense.bias"].shape == (DIM,)
    assert read(exported, "sentence_bert_config.json").keys() == {"max_seq_length", "do_lower_case"}


def test_a_folder_without_vocab_txt_is_read_from_tokenizer_json(bert, expected, tmp_path):
    """As sentence-transformers saves it from version 6 on; the length is in the tokenizer's."""
    folder = write(bert, tmp_path)
    (folder / "vocab.txt").unlink()
    (folder / "sentence_bert_config.json").write_text('{"transformer_task": "feature-extraction"}')
    assert read_vocabulary(folder) == VOCABULARY
    assert load_graph(str(folder), "model").max_sequence_length == LENGTH
    np.testing.assert_array_equal(embed(folder), expected["mean"])


def test_the_transformer_may_lie_in_a_folder_of_its_own(bert, expected, tmp_path):
    folder = write(bert, tmp_path)
    below = folder / "0_Transformer"
    below.mkdir()
    for path in [p for p in folder.iterdir() if p.is_file() and p.name != "modules.json"]:
        path.rename(below / path.name)
    modules = read(folder, "modules.json")
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    np.testing.assert_array_equal(embed(folder), expected["mean"])


def test_pooling_by_cls_is_written_and_honoured(bert, expected, tmp_path):
    folder = write(bert, tmp_path, pooling="cls")
    pooling = read(folder, "1_Pooling/config.json")
    assert pooling["pooling_mode_cls_token"]
    assert not pooling["pooling_mode_mean_tokens"]
    np.testing.assert_array_equal(embed(folder), expected["cls"])
    assert np.abs(expected["cls"] - expected["mean"]).max() > 1e-2
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode": "cls", "include_prompt": true}')
    assert load_graph(str(folder), "model").pooling == "cls"


def test_unit_norm_is_a_module(bert, tmp_path):
    types = [m["type"].split(".")[-1] for m in read(write(bert, tmp_path), "modules.json")]
    assert types == ["Transformer", "Pooling"]
    folder = write(bert, tmp_path, unit_norm=True)
    modules = read(folder, "modules.json")
    assert [m["type"].split(".")[-1] for m in modules] == ["Transformer", "Pooling", "Normalize"]
    assert (folder / modules[2]["path"]).is_dir()


def test_a_whitening_is_a_dense_module_and_comes_back(whitened, expected, tmp_path):
    folder = write(whitened, tmp_path)
    config = read(folder, "2_Dense/config.json")
    assert config["activation_function"] == "torch.nn.modules.linear.Identity"
    tensors = safetensors.numpy.load_file(folder / "2_Dense/model.safetensors")
    assert tensors["linear.weight"].shape == (3, DIM)
    by_hand = expected["mean"] @ tensors["linear.weight"].T + tensors["linear.bias"]
    np.testing.assert_allclose(by_hand, expected["whitened"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(embed(folder), expected["whitened"], rtol=1e-4, atol=1e-4)
    assert SentenceEncoder.load(folder).match is None


def test_a_flow_has_no_module(bert, data_dir, tmp_path):
    with pytest.raises(OptionError, match="`quantize`=int8"):
        ExportOptions(run_dir="a", output_dir="b", quantize="int8")
    vocabulary = read_vocabulary(data_dir / "vocabulary")
    config = bert_encoder.make_bert_config(1, 64, len(vocabulary.tokens))
    backbone = bert_encoder.build_backbone(config, 0.0)
    bert_encoder.initialize_weights(backbone.trainable_variables, 3, 0.05)
    source, flow = write_bert(tmp_path / "bert", vocabulary, backbone), str(tmp_path / "flow")
    small = {"depth": 1, "hidden_dim": 8, "steps": 1, "batch_size": 16, "max_sentences": 200}
    options = {"encoder": str(source), "data_dir": str(data_dir), "output_dir": flow}
    fit_baseline(FlowOptions(**options, **small))
    with pytest.raises(InputError, match=r"`format`=sentence_transformers: a flow"):
        write(flow, tmp_path)
    assert not (tmp_path / "exported").exists()


def test_what_a_module_does_beyond_us_is_an_error(whitened, tmp_path):
    folder = write(whitened, tmp_path)
    change(folder, "2_Dense/config.json", activation_function="torch.nn.modules.activation.Tanh")
    with pytest.raises(InputError, match=r"2_Dense.*Tanh"):
        embed(folder)
    folder = write(whitened, tmp_path)
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode": ["mean", "max"]}')
    with pytest.raises(InputError, match="pooling by mean and max"):
        embed(folder)
    folder = write(whitened, tmp_path)
    modules = read(folder, "modules.json")
    modules[2]["type"] = "sentence_transformers.models.LSTM"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="Pooling, LSTM behind the transformer"):
        embed(folder)
    modules[0]["path"] = "../elsewhere"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="elsewhere"):
        embed(folder)


def test_a_default_prompt_is_put_before_every_text(bert, tmp_path):
    folder = write(bert, tmp_path / "plain")
    prefix, name = "my parcel ", "config_sentence_transformers.json"
    expected = SentenceEncoder.load(folder).encode([prefix + text for text in SENTENCES])
    given = SentenceEncoder.load(folder, prefix=prefix)
    np.testing.assert_array_equal(given.encode(SENTENCES), expected)
    change(folder, name, prompts={"query": prefix, "passage": "a "}, default_prompt_name="query")
    np.testing.assert_array_equal(embed(folder), expected)
    assert SentenceEncoder.load(folder).fingerprint() == given.fingerprint()

    # What is exported has it, under a name of ours.
    again = write(folder, tmp_path / "again")
    np.testing.assert_array_equal(embed(again), expected)
    assert read(again, name)["prompts"] == {"prefix": prefix}
    assert "'my parcel '" in (again / "README.md").read_text()
    change(folder, name, prompts={"query": 3})
    with pytest.raises(InputError, match="expected texts by name in prompts"):
        embed(folder)


def test_training_refuses_a_map_that_it_would_lose(whitened, data_dir, tmp_path):
    folder = write(whitened, tmp_path)
    run = {"data_dir": str(data_dir), "run_dir": str(tmp_path / "run")}
    with pytest.raises(InputError, match="Dense module behind the pooling"):
        train(make_options(encoder=str(folder), **run))


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("normalizer", "strip_accents", False),
        ("normalizer", "handle_chinese_chars", False),
        ("normalizer", "clean_text", False),
        ("model", "max_input_chars_per_word", 50),
        ("model", "type", "BPE"),
    ],
)
def test_another_tokenizer_is_refused(bert, tmp_path, part, key, value):
    folder = write(bert, tmp_path)
    (folder / "vocab.txt").unlink()
    content = read(folder, "tokenizer.json")
    content[part][key] = value
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        read_vocabulary(folder)
