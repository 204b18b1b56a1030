"""A table of token vectors: fitted by ridge regression, and read by whoever reads model2vec's."""

import json

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
import tokenizers
from safetensors.numpy import save_file
from tiny_bert import build_backbone, save_checkpoint
from tiny_checkpoints import prepare_for, train_pieces, write_weights

from dcse_tf.data.options import PrepareOptions
from dcse_tf.data.prepare import prepare
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.encoder.unit_length import normalize
from dcse_tf.errors import InputError
from dcse_tf.exporting import static
from dcse_tf.exporting.job import export
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.exporting.static import count_tokens, fit_table
from dcse_tf.options import OptionError


def test_counts_are_means_without_the_unknown_token():
    ids = tf.ragged.constant([[2, 3, 3, 1], [1], [4]], tf.int32)
    counts = count_tokens(ids, unknown=1, size=5).toarray()
    expected = np.zeros([3, 5])
    expected[0, 2:4] = 1 / 3, 2 / 3
    expected[2, 4] = 1.0
    np.testing.assert_allclose(counts, expected)


def test_a_table_comes_nearer_and_stays_where_nothing_is_known():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(30, 6))
    counts = np.zeros([400, 30])
    for row in counts:
        row[rng.choice(29, 4, replace=False)] = 0.25  # the last token is in no utterance
    utterances = counts @ truth
    utterances /= np.linalg.norm(utterances, axis=1, keepdims=True)
    alone = truth + rng.normal(size=truth.shape)
    alone /= np.linalg.norm(alone, axis=1, keepdims=True)

    table, fit = fit_table(scipy.sparse.csr_matrix(counts), utterances, alone, 4)
    assert fit.cosine > 0.97 > 0.9 > fit.before
    assert (fit.dim, fit.utterances) == (4, 400)

    # The same with dense matrices: components, weights, scale, ridge regression.
    mean = utterances.mean(axis=0)
    basis = np.linalg.eigh(np.cov(utterances, rowvar=False))[1][:, :1:-1]
    share = counts.sum(axis=0) / counts.sum()
    goal, start = (utterances - mean) @ basis, (alone - mean) @ basis
    start *= (1e-3 / (1e-3 + share))[:, None]
    start *= np.vdot(counts @ start, goal) / np.vdot(counts @ start, counts @ start)

    def solve(rows, ridge):
        gram = counts[rows].T @ counts[rows] + ridge**2 * np.eye(30)
        return start + np.linalg.solve(gram, counts[rows].T @ (goal - counts @ start)[rows])

    np.testing.assert_allclose(table, solve(np.full(400, True), fit.ridge), atol=1e-4)
    # The penalty is chosen, and the fit measured, on every tenth utterance, by the others' table.
    held = np.arange(400) % 10 == 0
    cosines = {}
    for ridge in (0.03, 0.1, 0.3, 1.0):
        made = normalize(counts[held] @ solve(~held, ridge))
        cosines[ridge] = (made * normalize(goal[held])).sum(axis=1).mean()
    assert fit.ridge == max(cosines, key=cosines.get)
    np.testing.assert_allclose(fit.cosine, cosines[fit.ridge], atol=1e-6)
    np.testing.assert_allclose(table[29], start[29], atol=1e-6)


@pytest.fixture(scope="module")
def folders(dialogues_file, tmp_path_factory):
    root = tmp_path_factory.mktemp("static")
    model = save_checkpoint(root / "model", build_backbone())
    options = PrepareOptions(
        format="jsonl",
        input=(str(dialogues_file),),
        vocab=str(model),
        max_sequence_length=16,
        output_dir=str(root / "data"),
    )
    prepare(options, model)
    folder = export(
        ExportOptions(
            run_dir=str(model),
            output_dir=str(root / "export"),
            format="static",
            data_dir=str(root / "data"),
            static_dim=8,
        )
    )
    return model, root / "data", folder


TEXTS = ["hello there", "", "hello hello", "\u2603"]


def test_an_export_embeds_as_means_of_its_table(folders):
    from safetensors.numpy import load_file

    _, _, folder = folders
    table = load_file(folder / "model.safetensors")["embeddings"]
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = np.zeros([len(TEXTS), 8])
    for place, text in enumerate(TEXTS):
        encoded = tokenizer.encode(text, add_special_tokens=False)
        pairs = zip(encoded.ids, encoded.tokens, strict=True)
        rows = [table[i].astype(np.float64) for i, token in pairs if token != "[UNK]"]
        if rows:
            mean = np.mean(rows, axis=0)
            expected[place] = mean / np.linalg.norm(mean)
    encoder = SentenceEncoder.load(folder)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)
    assert encoder.match is None
    assert json.loads((folder / "config.json").read_text())["normalize"]


def test_nothing_is_cut_off_by_model2vec_either(folders):
    """Whose `StaticModel.from_pretrained` takes 512 tokens if the file does not say."""
    config = json.loads((folders[-1] / "config.json").read_text())
    assert config.get("max_length", 512) is None


def test_the_card_of_a_table_does_not_describe_the_encoder_that_it_replaces(folders):
    card = (folders[-1] / "model_card.md").read_text()
    assert "on held-out utterances" in card
    assert "| architecture | a table of token vectors in place of BERT, 2 layers" in card
    assert "| longest sentence | any, nothing is cut off |" in card
    assert "| pooling | mean over all known tokens |" in card
    assert "| length | unit |" in card
    assert "limit below" not in card


def test_the_encoder_reads_no_more_of_an_utterance_than_it_always_does(
    folders, dialogues_file, monkeypatch, tmp_path
):
    model, data_dir, _ = folders
    fitted_to = []

    def fit(counts, utterances, *rest):
        fitted_to.append(utterances)
        return fit_table(counts, utterances, *rest)

    monkeypatch.setattr(static, "fit_table", fit)
    export(
        ExportOptions(
            run_dir=str(model),
            output_dir=str(tmp_path / "export"),
            format="static",
            data_dir=str(data_dir),
            static_dim=8,
            max_sequence_length=4,
        )
    )
    sessions = map(json.loads, dialogues_file.read_text().splitlines())
    texts = [turn["text"] for session in sessions for turn in session["turns"]]
    own = normalize(SentenceEncoder.load(model, max_sequence_length=4).encode(texts))
    apart = np.abs(fitted_to[0][:, None] - own).max(axis=2).min(axis=1)
    np.testing.assert_allclose(apart, 0.0, atol=1e-5)


def test_the_unknown_token_of_sentencepiece_is_ignored_too(dialogues_file, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    train_pieces(model, ["hello there, where is my parcel"] * 3, 60)
    write_weights(model, "xlm-roberta")
    folder = export(
        ExportOptions(
            run_dir=str(model),
            output_dir=str(tmp_path / "export"),
            format="static",
            data_dir=str(prepare_for(model, dialogues_file, tmp_path)),
            static_dim=8,
        )
    )
    encoder = SentenceEncoder.load(folder)
    alone, beside = encoder.encode(["hello", "hello\u2603"])
    assert alone.any()
    np.testing.assert_allclose(beside, alone, atol=1e-6)


def test_weights_and_mapping_of_model2vec_count(folders, tmp_path):
    _, _, folder = folders
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
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
    np.testing.assert_allclose(SentenceEncoder.load(tmp_path).encode([text]), [expected])

    save_file({"embeddings": table}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="tokens, and 2 token vectors"):
        SentenceEncoder.load(tmp_path)


def test_what_a_static_export_needs_is_said(folders, tmp_path):
    with pytest.raises(OptionError, match="give `data_dir`"):
        ExportOptions(run_dir="r", output_dir="o", format="static")
    with pytest.raises(OptionError, match="`static_dim`=3: only with `format`=static"):
        ExportOptions(run_dir="r", output_dir="o", static_dim=3)
    with pytest.raises(InputError, match="an export computes as it was exported"):
        SentenceEncoder.load(folders[-1], max_sequence_length=8)
    model, data_dir, _ = folders
    names = {"run_dir": str(model), "output_dir": str(tmp_path / "o"), "data_dir": str(data_dir)}
    with pytest.raises(InputError, match="with another vocabulary, casing or prefix than the enc"):
        export(ExportOptions(format="static", prefix="where is ", **names))


def test_a_table_needs_two_utterances(folders, tmp_path):
    model, path = folders[0], tmp_path / "dialogues.jsonl"

    def export_from(*texts):
        turns = [{"role": role, "text": text} for role, text in zip("ab", texts)]
        path.write_text(json.dumps({"session_id": "s", "turns": turns}))
        options = PrepareOptions(
            format="jsonl",
            input=(str(path),),
            vocab=str(model),
            output_dir=str(tmp_path / "data"),
            dev_fraction=0.0,
            test_fraction=0.0,
            overwrite=True,
        )
        prepare(options, model)
        names = {"data_dir": options.output_dir, "output_dir": str(tmp_path / "export")}
        return export(ExportOptions(run_dir=str(model), format="static", **names))

    with pytest.raises(InputError, match=r"at least two distinct utterances .* found 1$"):
        export_from("where is my parcel", "where is my parcel")
    folder = export_from("where is my parcel", "it left today")
    assert np.isfinite(SentenceEncoder.load(folder).encode("it left")).all()
