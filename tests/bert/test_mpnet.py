"""MPNet: a BERT whose attention adds a bias by distance, read, trained, exported and written."""

import json
import pathlib

import numpy as np
import pytest
import reference
import tensorflow as tf
from encoded_tables import build_table_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_bert import DIM, LAYERS, VOCABULARY_SIZE, make_table, read_tensors
from tiny_checkpoints import (
    MPNET,
    MPNET_TOKENS,
    encode_both,
    prepare_for,
    save_start,
    write_mpnet_vocabulary,
    write_weights,
)
from train_options import make_options
from transformers import AutoConfig, AutoTokenizer

import dcse_tf
from dcse_tf.bert import bert
from dcse_tf.bert.checkpoints import read_config
from dcse_tf.bert.families import bucket_distances
from dcse_tf.bert.layout import lay_out
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.errors import InputError
from dcse_tf.training.train import train

TEXTS = [
    "where is my parcel",
    "",
    "I want a REFUND for the blue cup <s> [SEP] Ünknown",
    "好 的 ok .",
]
SHORT = [0, 7, 9, 30, 5, 41, 2]
LONG = [0, *(5 + 7 * i % 50 for i in range(136)), 2]
# The first of the mean token embedding and of </s>'s, by transformers' MPNetModel (5.23.0, PyTorch)
# from the files that `write_weights` writes.
BY_PYTORCH = {
    7: ([0.291881, 0.424844, 0.982542, 2.047522], [0.535118, 0.579824, 0.750068, 1.931074]),
    138: ([0.147262, 0.306887, 0.842792, 1.303090], [0.157892, 0.545842, 0.510932, 1.405554]),
}


def number_here(ids: list[int]) -> list[int]:
    """The file's ids with <s> and <pad>, 0 and 1 there, exchanged."""
    return [{0: 1, 1: 0}.get(i, i) for i in ids]


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> pathlib.Path:
    return save_start(tmp_path_factory.mktemp("start") / "mpnet", "mpnet")


@pytest.fixture(scope="module")
def corpus(start, dialogues_file, tmp_path_factory) -> pathlib.Path:
    return prepare_for(start, dialogues_file, tmp_path_factory.mktemp("prepared"))


def embed(model) -> np.ndarray:
    return dcse_tf.SentenceEncoder.load(model).encode(TEXTS, show_progress=False)


def test_buckets_are_those_of_t5():
    # Eight times the powers of the root of 2: 8, 11.3, 16, 22.6, 32, 45.3, 64, 90.5.
    starts = [*range(8), 8, 12, 16, 23, 32, 46, 64, 91]
    behind = [sum(start <= far for start in starts) - 1 for far in range(1001)]
    assert bucket_distances(-np.arange(1001)).tolist() == behind
    assert bucket_distances(np.arange(1, 1001)).tolist() == [16 + each for each in behind[1:]]


@pytest.mark.parametrize(("prefix", "ids"), [("mpnet.", SHORT), ("", LONG)])
def test_token_embeddings_are_those_of_pytorch_and_the_reference(tmp_path, prefix, ids):
    exact = write_weights(tmp_path, "mpnet", prefix)
    write_mpnet_vocabulary(tmp_path)
    by_reference = reference.bert(ids, exact, 2, 1e-5, activation=reference.exact_gelu)

    for found in encode_both(tmp_path, number_here(ids)):
        np.testing.assert_allclose(found, by_reference, atol=5e-5)
        means, last = BY_PYTORCH[len(ids)]
        np.testing.assert_allclose(found.mean(axis=0)[:4], means, atol=5e-5)
        np.testing.assert_allclose(found[-1, :4], last, atol=5e-5)


def test_tokens_are_those_of_huggingfaces_tokenizer(start, tmp_path):
    """Also of files written here for a BERT, where the padding is the first entry."""
    vocabulary = read_vocabulary(start)
    vocabulary.write(tmp_path)
    again = read_vocabulary(tmp_path)
    assert (again, again.fingerprint()) == (vocabulary, vocabulary.fingerprint())
    ours = again.make_tokenizer().tokenize(tf.constant(TEXTS), 40)[0].to_list()
    assert ours[1] == number_here([0, 2])
    for folder, ids in ((start, list(map(number_here, ours))), (tmp_path, ours)):
        theirs = AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
        assert theirs(TEXTS)["input_ids"] == ids


PACKED = 40


@pytest.fixture(scope="module")
def encoders(start):
    backbone = bert.load_backbone(start)
    return [build_table_encoder(backbone, layout) for layout in (0, PACKED)]


@settings(max_examples=5, deadline=None)
@given(lengths=st.lists(st.integers(2, 20), min_size=1, max_size=9), seed=st.integers(0, 99))
def test_packing_counts_distances_within_an_utterance(encoders, lengths, seed):
    rng = np.random.default_rng(seed)
    table = make_table([rng.integers(3, VOCABULARY_SIZE, length).tolist() for length in lengths])
    found = encoders[1](lay_out(table["token_ids"], PACKED)).numpy()
    real = table["padding_mask"].numpy()
    expected = encoders[0](lay_out(table["token_ids"], 0)).numpy()
    np.testing.assert_allclose(found[real], expected[real], atol=5e-5)


def test_distances_are_frozen_with_the_embeddings(start):
    backbone = bert.load_backbone(start)
    bert.freeze(backbone, LAYERS, True)
    assert {v.path.split("/")[0] for v in backbone.trainable_variables} == {"pooled_dense"}


@pytest.mark.slow
def test_what_is_written_is_the_mpnet_that_was_read(start, tmp_path):
    to = {"output_dir": tmp_path / "export", "format": "sentence_transformers"}
    folder = dcse_tf.export(run_dir=start, **to)
    np.testing.assert_array_equal(embed(folder), embed(start))
    before, after = map(read_tensors, (start, folder))
    assert after.keys() - before.keys() == {"pooler.dense.weight", "pooler.dense.bias"}
    places = "embeddings.position_embeddings.weight"
    before[places][:2] = 0  # of no position
    for name, tensor in before.items():
        np.testing.assert_array_equal(after[name], tensor, err_msg=name)
    config = AutoConfig.from_pretrained(folder).to_dict()
    assert {key: config[key] for key in MPNET} == MPNET
    assert (config["model_type"], config["architectures"]) == ("mpnet", ["MPNetModel"])
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs.convert_ids_to_tokens(range(VOCABULARY_SIZE)) == list(MPNET_TOKENS)
    assert theirs(TEXTS[0])["input_ids"][0::5] == [0, 2]
    assert "token_type_ids" not in theirs(TEXTS[0])
    assert "MPNet, 2 layers" in (folder / "README.md").read_text()


@pytest.mark.slow
def test_an_export_computes_the_same(start, tmp_path):
    folder = dcse_tf.export(run_dir=start, output_dir=tmp_path / "export", format="onnx")
    np.testing.assert_allclose(embed(folder), embed(start), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["response_selection", "post_training"])
def test_what_reads_segments_refuses_it(start, corpus, tmp_path, task):
    run_dir = tmp_path / "run"
    options = make_options(
        task=task, encoder=str(start), data_dir=str(corpus), run_dir=str(run_dir)
    )
    with pytest.raises(InputError, match=f"{start}: is an MPNet.*`task`={task}"):
        train(options)
    assert not run_dir.exists()


def test_a_vocabulary_of_another_family_is_refused(tmp_path):
    write_weights(tmp_path, "mpnet")
    (tmp_path / "vocab.txt").write_text("\n".join(["<pad>", "<s>", *MPNET_TOKENS[2:]]) + "\n")
    with pytest.raises(InputError, match="vocabulary of an MPNet, which begins <s>, <pad>"):
        read_vocabulary(tmp_path)


def test_a_berts_configuration_with_a_number_of_buckets_is_a_berts(tmp_path):
    config = {**bert.make_bert_config(LAYERS, DIM, 60), "relative_attention_num_buckets": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "relative_attention_num_buckets" not in read_config(tmp_path)
