"""A table of token vectors: fitted by ridge regression, and read by whoever reads model2vec's."""

import json
from unittest.mock import Mock

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
import tokenizers
from safetensors.numpy import load_file, save_file
from tiny_checkpoints import prepare_for, save_start

import dcse_tf
from dcse_tf.encoder.backend import normalize
from dcse_tf.errors import InputError
from dcse_tf.exporting import static_table
from dcse_tf.exporting.static_table import count_tokens, fit_table

pytestmark = pytest.mark.slow

TEXTS = ["hello there", "", "hello hello", "\u2603"]


def test_counts_are_means_without_the_unknown_token():
    ids = tf.ragged.constant([[2, 3, 3, 1], [1], [4]], tf.int32)
    counts = count_tokens(ids, unknown=1, size=5).toarray()
    expected = np.zeros([3, 5])
    expected[0, 2:4] = 1 / 3, 2 / 3
    expected[2, 4] = 1.0
    np.testing.assert_allclose(counts, expected)


def test_a_table_comes_nearer_and_stays_where_nothing_is_known(monkeypatch):
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(30, 6))
    counts = np.zeros([400, 30])
    for row in counts:
        row[rng.choice(29, 4, replace=False)] = 0.25  # the last token is in no utterance
    utterances = counts @ truth
    utterances /= np.linalg.norm(utterances, axis=1, keepdims=True)
    alone = truth + rng.normal(size=truth.shape)
    alone /= np.linalg.norm(alone, axis=1, keepdims=True)

    monkeypatch.setattr(static_table, "_DIM", 4)
    table, before, cosine = fit_table(scipy.sparse.csr_matrix(counts), utterances, alone)
    assert cosine > 0.97 > 0.9 > before
    assert table.shape == (30, 4)

    # The same with dense matrices: components, weights, scale, ridge regression.
    mean = utterances.mean(axis=0)
    basis = np.linalg.eigh(np.cov(utterances, rowvar=False))[1][:, :1:-1]
    share = counts.sum(axis=0) / counts.sum()
    goal, initial = (utterances - mean) @ basis, (alone - mean) @ basis
    initial *= (1e-3 / (1e-3 + share))[:, None]
    made = counts @ initial
    initial *= np.vdot(made, goal) / np.vdot(made, made)

    def solve(rows):
        gram = counts[rows].T @ counts[rows] + 0.3**2 * np.eye(30)
        rest = (goal - counts @ initial)[rows]
        return initial + np.linalg.solve(gram, counts[rows].T @ rest)

    np.testing.assert_allclose(table, solve(np.full(400, True)), atol=1e-4)
    np.testing.assert_allclose(table[29], initial[29], atol=1e-6)
    # The fit is measured on every tenth utterance, by the others' table.
    held = np.arange(400) % 10 == 0
    predicted = normalize(counts[held] @ solve(~held))
    expected = (predicted * normalize(goal[held])).sum(axis=1).mean()
    np.testing.assert_allclose(cosine, expected, atol=1e-6)


def write(model, data_dir, folder, **settings):
    options = {"format": "static", "data_dir": data_dir, **settings}
    return dcse_tf.export(run_dir=model, output_dir=folder, **options)


@pytest.fixture(scope="module")
def folders(model, dialogues_file, tmp_path_factory):
    """A checkpoint, a corpus prepared with its vocabulary, and the export."""
    root = tmp_path_factory.mktemp("static")
    data_dir = prepare_for(model, dialogues_file, root)
    return model, data_dir, write(model, data_dir, root / "export")


def test_an_export_embeds_as_means_of_its_table(folders):
    _, _, folder = folders
    table = load_file(folder / "model.safetensors")["embeddings"]
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = np.zeros([len(TEXTS), table.shape[1]])
    for place, text in enumerate(TEXTS):
        encoded = tokenizer.encode(text, add_special_tokens=False)
        pairs = zip(encoded.ids, encoded.tokens, strict=True)
        rows = [table[i].astype(np.float64) for i, token in pairs if token != "[UNK]"]
        if rows:
            mean = np.mean(rows, axis=0)
            expected[place] = mean / np.linalg.norm(mean)
    encoder = dcse_tf.SentenceEncoder.load(folder)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)
    assert encoder.match is None
    # model2vec cuts texts at 512 tokens unless the file says otherwise.
    config = json.loads((folder / "config.json").read_text())
    assert (config["normalize"], config["max_length"]) == (True, None)
    card = (folder / "model_card.md").read_text()
    assert "| longest sentence | any, nothing is cut off |" in card
    assert "| length | unit |" in card
    assert "in place of the encoder" in card


def test_it_is_fitted_to_what_the_encoder_reads_of_an_utterance(
    folders, dialogues_file, monkeypatch, tmp_path
):
    model, data_dir, _ = folders
    fit = Mock(wraps=fit_table)
    monkeypatch.setattr(static_table, "fit_table", fit)
    write(model, data_dir, tmp_path / "export", max_sequence_length=4)
    sessions = map(json.loads, dialogues_file.read_text().splitlines())
    texts = [turn["text"] for session in sessions for turn in session["turns"]]
    own = normalize(dcse_tf.SentenceEncoder.load(model, max_sequence_length=4).encode(texts))
    _, fitted_to, *_ = fit.call_args.args
    apart = np.abs(fitted_to[:, None] - own).max(axis=2).min(axis=1)
    np.testing.assert_allclose(apart, 0.0, atol=1e-5)


def test_the_unknown_token_of_sentencepiece_is_ignored_too(dialogues_file, tmp_path):
    texts = ["hello there, where is my parcel"] * 3
    model = save_start(tmp_path / "model", "xlm-roberta", texts, 60)
    folder = write(model, prepare_for(model, dialogues_file, tmp_path), tmp_path / "export")
    tensors = load_file(folder / "model.safetensors")
    save_file({"embeddings": tensors["embeddings"] + 1}, folder / "model.safetensors")
    alone, beside = dcse_tf.SentenceEncoder.load(folder).encode(["hello", "hello\u2603"])
    assert alone.any()
    np.testing.assert_allclose(beside, alone, atol=1e-6)


def test_weights_and_mapping_of_model2vec_count(folders, tmp_path):
    tokenizer = tokenizers.Tokenizer.from_file(str(folders[-1] / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    mapping, weights = np.arange(size) % 2, np.ones(size)
    text = tokenizer.id_to_token(10)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    weights[ids[0]] = 3.0
    table = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "model2vec", "normalize": false}')
    tensors = {"embeddings": table, "weights": weights, "mapping": mapping}
    save_file(tensors, tmp_path / "model.safetensors")
    expected = np.mean([table[mapping[i]] * weights[i] for i in ids], axis=0)
    np.testing.assert_allclose(dcse_tf.SentenceEncoder.load(tmp_path).encode([text]), [expected])

    # As model2vec saves a folder; it cuts at `max_length`, first at their median letters.
    (tmp_path / "modules.json").write_text('[{"type": "a.StaticEmbedding", "path": "."}]')
    (tmp_path / "config.json").write_text('{"model_type": "model2vec", "max_length": 2}')
    said, letters = "where is my parcel", 2 * int(np.median([*map(len, tokenizer.get_vocab())]))
    ids = tokenizer.encode(said[:letters], add_special_tokens=False).ids[:2]
    expected = np.mean([table[mapping[i]] * weights[i] for i in ids], axis=0)
    np.testing.assert_allclose(dcse_tf.SentenceEncoder.load(tmp_path).encode([said]), [expected])

    save_file({"embeddings": table}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="tokens, and 2 token vectors"):
        dcse_tf.SentenceEncoder.load(tmp_path)
    with pytest.raises(InputError, match="leave out `max_sequence_length`"):
        dcse_tf.SentenceEncoder.load(folders[-1], max_sequence_length=8)
    model, data_dir, _ = folders
    with pytest.raises(InputError, match="with another vocabulary, casing or prefix"):
        write(model, data_dir, tmp_path / "out", prefix="where is ")
