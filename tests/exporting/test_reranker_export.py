"""Exports of re-rankers: each format computes the trained model's scores."""

import importlib.util
import json
import shutil

import numpy as np
import pytest
import reference
import safetensors.numpy
import tensorflow as tf
import tokenizers
import transformers
from tiny_reranker import (
    END,
    EPSILON,
    FIRST_TOKENS,
    SECOND_TOKENS,
    WITH_END,
    make_tensors,
    save_lstm_reranker,
    save_reranker,
)

from dcse_tf.bert.blanks import NO_CANDIDATE
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError, OutputError
from dcse_tf.exporting import eight_bits, reranker_onnx
from dcse_tf.exporting.job import export
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.input_files import read_json_object
from dcse_tf.reranker.reranker import Reranker

pytestmark = pytest.mark.slow

HAS_MESSAGES = importlib.util.find_spec("tensorflow_serving") is not None
needs_onnx = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime")),
    reason="needs onnx and onnxruntime",
)
CONTEXT = ["i want a refund for the blue cup", "ok", "where is my parcel it left today ."]
CANDIDATES = ["it left today", "thanks", "the blue cup it left today thanks"]
# Within both lengths of the model.
SHORT, SHORT_CANDIDATES = ["where is my parcel", "it left today"], ["thanks", "a refund for my cup"]
CLS, SEP = map(WITH_END.index, ("[CLS]", "[SEP]"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {known: save_reranker(folder / str(known), known) for known in (False, True)}


@pytest.fixture(scope="module")
def onnx_exports(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    return {known: write(run, folder / str(known), "onnx") for known, run in runs.items()}


def write(run, tmp_path, form, **settings):
    folder = tmp_path / form
    return export(ExportOptions(run_dir=str(run), output_dir=str(folder), format=form, **settings))


def expect(turns, response, speakers=None):
    ids = [[WITH_END.index(word) for word in text.split()] for text in (*turns, response)]
    lengths = FIRST_TOKENS, SECOND_TOKENS
    who = speakers or [0] * len(turns)
    sequence = reference.pair_sequence(ids[:-1], who, ids[-1], *lengths, CLS, SEP, END)
    return reference.cross_encoder(sequence, make_tensors(speakers is not None), 2, EPSILON)


def run_card(folder, turns, response, others=()):
    """The names that the code of an ONNX export's card defines, given these turns."""
    lines = (folder / "model_card.md").read_text().split("\n")
    code = "\n".join(line[4:] for line in lines[: lines.index("## Intended use and limits")]
                     if line.startswith("    "))  # fmt: skip
    code = code.replace("FOLDER", str(folder))
    for name, value in (("turns, response", (turns, response)), ("others", list(others))):
        code = "\n".join(
            f"{name} = {value!r}" if line.startswith(f"{name} = ") else line
            for line in code.split("\n")
        )
    names = {}
    exec(code, names)
    return names


@pytest.mark.parametrize("known", [True])
def test_a_saved_model_takes_strings(runs, tmp_path, known):
    """It was verified by a fresh process when it was written."""
    folder = write(runs[known], tmp_path, "saved_model", warmup=HAS_MESSAGES)
    signatures = tf.saved_model.load(str(folder)).signatures
    assert sorted(signatures) == (["score", "score_speakers"] if known else ["score"])
    inputs = {
        "context": tf.constant([CONTEXT, [*SHORT, ""]]),
        "candidates": tf.constant([CANDIDATES, ["", *SHORT_CANDIDATES]]),
    }
    found = signatures["score"](**inputs)["scores"].numpy()
    alternate = ([1, 0, 1], [0, 1]) if known else (None, None)
    rows = zip((CONTEXT, SHORT), (CANDIDATES, SHORT_CANDIDATES), alternate)
    expected = [[expect(turns, text, who) for text in texts] for turns, texts, who in rows]
    np.testing.assert_allclose(found[0], expected[0], atol=2e-5)
    np.testing.assert_allclose(found[1], [NO_CANDIDATE, *expected[1]], atol=2e-5)
    if known:
        speakers = tf.constant([[0, 0, 1], [1, 1, 0]])
        found = signatures["score_speakers"](**inputs, speakers=speakers)["scores"].numpy()
        expected = [expect(CONTEXT, text, [0, 0, 1]) for text in CANDIDATES]
        np.testing.assert_allclose(found[0], expected, atol=2e-5)
        with pytest.raises(tf.errors.InvalidArgumentError, match="0 and 1"):
            signatures["score_speakers"](**inputs, speakers=2 * tf.ones([2, 3], tf.int32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many rows"):
        signatures["score"](context=inputs["context"], candidates=inputs["candidates"][:1])
    written = read_json_object(folder / "dcse_tf.json")
    assert written["fingerprint"] == Reranker.load(runs[known]).fingerprint()
    assert written["first_tokens"] == FIRST_TOKENS
    card = (folder / "model_card.md").read_text()
    assert ("score_speakers" in card) == known
    assert f"{FIRST_TOKENS} tokens" in card
    with pytest.raises(InputError, match="export of a re-ranker, which embeds no sentences"):
        SentenceEncoder.load(folder)


@needs_onnx
@pytest.mark.parametrize("known", [False, True])
def test_onnx_scores_by_the_code_of_its_card(onnx_exports, known):
    names = run_card(onnx_exports[known], CONTEXT, CANDIDATES[2], [0, 1, 1])
    expected = expect(CONTEXT, CANDIDATES[2], [0, 1, 1] if known else None)
    np.testing.assert_allclose(names["scores"], [expected], atol=2e-5)
    given = {each.name for each in names["session"].get_inputs()}
    assert ("speaker_ids" in given) == known


@needs_onnx
@pytest.mark.parametrize("known", [False, True])
def test_an_onnx_export_is_a_reranker(runs, onnx_exports, known):
    """In batches of several pairs, with and without padding, as the run scores."""
    run, exported = Reranker.load(runs[known]), Reranker.load(onnx_exports[known], batch_tokens=40)
    given = [CONTEXT, SHORT, ["ok"]], [CANDIDATES, SHORT_CANDIDATES, []]
    roles = [["a", "b", "b"], ["a", "b"], ["b"]], ["a", "b", "a"]
    for who in ((), roles):
        for found, expected in zip(exported.score(*given, *who), run.score(*given, *who)):
            np.testing.assert_allclose(found, expected, atol=1e-4)
    by_hand = [expect(CONTEXT, text, [0, 1, 1] if known else None) for text in CANDIDATES]
    np.testing.assert_allclose(exported.score(*given, *roles)[0], by_hand, atol=1e-4)
    assert exported.fingerprint() == run.fingerprint()
    assert exported.settings == {**run.settings, "compute_dtype": "float32"}


@needs_onnx
def test_models_of_another_kind_are_refused_in_one_sentence(runs, onnx_exports, tmp_path):
    with pytest.raises(InputError, match=r"`path`=.*: an export computes as it was exported"):
        Reranker.load(onnx_exports[False], compute_dtype="bfloat16")
    with pytest.raises(InputError, match="is a re-ranker, which scores responses"):
        SentenceEncoder.load(onnx_exports[False])
    mixed = shutil.copytree(onnx_exports[True], tmp_path / "mixed")
    shutil.copy(onnx_exports[False] / "reranker.json", mixed)
    with pytest.raises(InputError, match=r"token_type_ids and gives scores; expected a re-ranker"):
        Reranker.load(mixed)
    (mixed / "reranker.json").unlink()
    with pytest.raises(InputError, match="is a sentence encoder, not a re-ranker"):
        Reranker.load(mixed)
    (mixed / "saved_model.pb").touch()
    with pytest.raises(InputError, match="is a SavedModel, for servers; expected a re-ranker's"):
        Reranker.load(mixed)


@needs_onnx
def test_eight_bits_are_smaller_and_their_agreement_is_told(runs, onnx_exports, tmp_path):
    whole = onnx_exports[False]
    small = write(runs[False], tmp_path / "int8", "onnx", quantize="int8")
    sizes = [(folder / "model.onnx").stat().st_size for folder in (whole, small)]
    assert sizes[1] < 0.6 * sizes[0]
    card = (small / "model_card.md").read_text()
    assert "int8; on 20 pairs scores within" in card
    assert "of the pairs of candidates keep their order" in card
    assert "scores within" in (whole / "model_card.md").read_text()
    rough, exact = Reranker.load(small), Reranker.load(whole)
    assert rough.settings["compute_dtype"] == "int8"
    assert rough.fingerprint() != exact.fingerprint()
    scores = [each.score([CONTEXT], [CANDIDATES])[0] for each in (rough, exact)]
    assert 1e-4 < np.abs(scores[0] - scores[1]).max() < 0.5


@needs_onnx
def test_onnx_that_computes_something_else_is_refused(runs, tmp_path, monkeypatch):
    build = reranker_onnx.build_onnx_graph

    def spoil(tensors, config):
        return build({**tensors, "classifier.bias": tensors["classifier.bias"] + 1}, config)

    monkeypatch.setattr(reranker_onnx, "build_onnx_graph", spoil)
    with pytest.raises(OutputError, match=r"differ from the re-ranker's by 1\.0e"):
        write(runs[False], tmp_path, "onnx")
    assert not (tmp_path / "onnx").exists()


@needs_onnx
def test_eight_bits_that_are_too_coarse_are_refused(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(eight_bits, "LARGEST_SUM", 4)
    with pytest.raises(OutputError, match=r"too coarse for this re-ranker: scores differ .* by \d"):
        write(runs[False], tmp_path, "onnx", quantize="int8")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_for_cross_encoders(runs, tmp_path):
    folder = write(runs[False], tmp_path, "sentence_transformers")
    config = read_json_object(folder / "config.json")
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "LABEL_0"}
    assert config["hidden_act"] == "gelu_pytorch_tanh"
    identity = "torch.nn.modules.linear.Identity"
    assert config["sentence_transformers"] == {"activation_fn": identity}
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    given = make_tensors()
    assert tensors.keys() == given.keys()
    assert all((tensors[name] == given[name]).all() for name in given)
    again = Reranker.load(folder)
    assert again.fingerprint() == Reranker.load(runs[False]).fingerprint()
    assert "CrossEncoder" in (folder / "README.md").read_text()


def test_its_tokenizer_makes_our_sequences(runs, tmp_path):
    """By transformers and by tokenizers alone; special tokens that a text names are split."""
    folder = write(runs[False], tmp_path, "sentence_transformers")
    turns = ["where is my parcel", "what is [SEP] ?"]
    context = " ".join(f"{turn} [EOT]" for turn in turns)
    plain = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain.encode_special_tokens = True
    library = transformers.AutoTokenizer.from_pretrained(folder)
    unknown = WITH_END.index("[UNK]")
    first = [WITH_END.index(word) for word in turns[0].split()]
    second = [unknown, WITH_END.index("is"), *[unknown] * 4]  # what is [ SEP ] ?
    expected = [CLS, *first, END, *second, END, SEP, WITH_END.index("ok"), SEP]
    segments = [0] * (len(expected) - 2) + [1, 1]
    encoded = plain.encode(context, "ok")
    assert (encoded.ids, encoded.type_ids) == (expected, segments)
    found = library(context, "ok")
    assert (found["input_ids"], found["token_type_ids"]) == (expected, segments)
    assert library.model_max_length == FIRST_TOKENS + SECOND_TOKENS
    cut = library(context * 3, "ok", truncation="longest_first")["input_ids"]
    assert len(cut) == FIRST_TOKENS + SECOND_TOKENS
    assert cut[0] == CLS
    assert cut[-5:] == expected[-5:]


@pytest.mark.parametrize("architecture", ["dual_lstm", "esim"])
def test_a_reranker_without_bert_is_served_and_fits_no_other_format(tmp_path, architecture):
    run = save_lstm_reranker(tmp_path / "run", architecture)
    folder = write(run, tmp_path, "saved_model", warmup=False)
    score = tf.saved_model.load(str(folder)).signatures["score"]
    inputs = {"context": tf.constant([CONTEXT]), "candidates": tf.constant([CANDIDATES])}
    expected = Reranker.load(run).score([CONTEXT], [CANDIDATES])[0]
    np.testing.assert_allclose(score(**inputs)["scores"][0], expected, atol=1e-5)
    size = f"LSTMs of 12 units, embeddings of 10, a vocabulary of {len(WITH_END.tokens)} entries"
    assert f"{architecture}: {size}" in (folder / "model_card.md").read_text()
    assert "matcher.json" in read_json_object(folder / "dcse_tf.json")["sha256"]
    for form in ("onnx", "sentence_transformers"):
        with pytest.raises(InputError, match=f"cannot hold a re-ranker of the .* {architecture};"):
            write(run, tmp_path, form)


def test_what_a_reranker_has_not_is_refused(runs, tmp_path):
    with pytest.raises(InputError, match="knows who speaks"):
        write(runs[True], tmp_path, "sentence_transformers")
    values = {"unit_norm": True, "pooling": "cls", "projection": "context"}
    for name, value in {**values, "max_sequence_length": 9}.items():
        with pytest.raises(InputError, match=f"is a re-ranker; leave out `{name}`"):
            write(runs[False], tmp_path, "saved_model", **{name: value})
    assert list(tmp_path.iterdir()) == []


def test_the_card_tells_the_task_and_the_base(runs, tmp_path):
    run = save_reranker(tmp_path / "run")
    (run / "config.json").write_text(json.dumps({"task": "bert_sl", "encoder": "some/bert"}))
    kept = {"step": 5, "metric": "dev/r1", "score": 64.2, "last_step": 7, "last_score": 63.0}
    (run / "encoder/training.json").write_text(json.dumps({**kept, "files": {}}))
    card = (write(run, tmp_path, "sentence_transformers") / "README.md").read_text()
    assert "pipeline_tag: text-ranking" in card
    assert "| trained by | bert_sl |" in card
    assert "| trained from | some/bert |" in card
    assert "1 / (1 + exp(-score))" in card
