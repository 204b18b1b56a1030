"""The encoder of notebooks: what it takes, what it gives, what it refuses."""

import io
import shutil

import numpy as np
import pytest
import reference
from tiny_bert import DIM, VOCABULARY, build_backbone, encode_alone, save_checkpoint

import dcse_tf
from dcse_tf.api import Embedded
from dcse_tf.baselines.fit_baseline import fit_baseline
from dcse_tf.baselines.word_vectors import WordVectorsOptions
from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.bert.sentence_modules import SentenceModules, write_modules
from dcse_tf.encoder import graph, sentence_encoder
from dcse_tf.errors import InputError
from dcse_tf.evaluation import job as evaluate_job
from dcse_tf.evaluation.options import EvaluateOptions
from dcse_tf.matching.matching_files import MatchingForm, build_turn_attention, write_matching

TEXTS = ["where is my parcel", "ok", "", "好的发货", "i want a refund for the blue cup", "ok"]
CONTEXT = ["where is my parcel", "it left today", "thanks"]
RESPONSES = ["it left today", "i want a refund for the blue cup", "好的", "it left today"]


@pytest.fixture(scope="module")
def bert():
    return build_backbone()


@pytest.fixture(scope="module")
def folder(bert, tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("saved") / "model", bert)


@pytest.fixture(scope="module")
def encoder(folder):
    return dcse_tf.SentenceEncoder.load(folder)


@pytest.fixture(scope="module")
def alone(bert):
    """Token embeddings of a text by itself."""
    model = build_bert_encoder(bert)

    def encode(text):
        return encode_alone(model, VOCABULARY.make_tokenizer().tokenize([text], 128).to_list()[0])

    return encode


@pytest.fixture(scope="module")
def expected(alone):
    return np.array([reference.mean_of_rows(alone(text)) for text in TEXTS])


@pytest.fixture(scope="module")
def exported(folder, verified_here, tmp_path_factory):
    output = tmp_path_factory.mktemp("exported") / "export"
    assert dcse_tf.export(run_dir=folder, output_dir=output) == output
    return output


@pytest.fixture(scope="module")
def word_vectors(tmp_path_factory):
    place = tmp_path_factory.mktemp("words")
    (place / "glove.txt").write_text("parcel 3 4\nrefund 0 1\n")
    output = place / "averages"
    vectors = str(place / "glove.txt")
    config = WordVectorsOptions(word_vectors=vectors, output_dir=str(output))
    fit_baseline(config)
    return output


def test_embeddings_are_those_of_each_text_alone(encoder, expected):
    found = encoder.encode(TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert encoder.dim == DIM


@pytest.mark.parametrize(
    "make",
    [
        tuple,
        iter,
        np.array,
        lambda texts: np.array(texts, object),
        lambda texts: (text for text in texts),
        lambda texts: [np.str_(text) for text in texts],
    ],
    ids=["tuple", "iterator", "array", "array of objects", "generator", "numpy strings"],
)
def test_any_ordered_texts_are_taken(encoder, expected, make):
    np.testing.assert_allclose(encoder.encode(make(TEXTS)), expected, atol=1e-5)


def test_a_pandas_series_is_taken_and_what_is_missing_named(encoder, expected):
    pandas = pytest.importorskip("pandas")
    series = pandas.Series(TEXTS, index=range(7, 13))
    np.testing.assert_allclose(encoder.encode(series), expected, atol=1e-5)
    with pytest.raises(TypeError, match=r"texts\[1\]: expected a string, found float nan"):
        encoder.encode(pandas.Series(["a", float("nan")], dtype=object))
    with pytest.raises(TypeError, match=r"found DataFrame of shape \(6, 1\)"):
        encoder.encode(series.to_frame())


def test_a_file_is_embedded_and_a_part_of_it(folder, expected, tmp_path):
    (tmp_path / "lines.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    common = {"model": folder, "input": tmp_path / "lines.txt", "output": tmp_path / "rows.npy"}
    embedded = dcse_tf.embed(**common)
    assert embedded == Embedded(tmp_path / "rows.npy", len(TEXTS), DIM)
    np.testing.assert_allclose(np.load(embedded.path), expected, atol=1e-5)

    part = dcse_tf.embed(**common, block_size=2, shard="1/3")
    assert part == Embedded(tmp_path / "rows-00001-of-00003.npy", 2, DIM)
    np.testing.assert_allclose(np.load(part.path), expected[2:4], atol=1e-5)
    with pytest.raises(FileExistsError, match="`overwrite`"):
        dcse_tf.embed(**common)


def test_a_single_text_has_no_axis_of_texts(encoder, expected):
    assert encoder.encode("ok").shape == (DIM,)
    np.testing.assert_allclose(encoder.encode(TEXTS[0]), expected[0], atol=1e-5)


def test_no_texts_are_no_rows(encoder):
    for empty in ([], iter(()), np.array([], str)):
        found = encoder.encode(empty)
        assert found.shape == (0, DIM)
        assert found.dtype == np.float32
    assert encoder.encode([], normalize_embeddings=True).shape == (0, DIM)


def test_normalized_embeddings_have_length_one_and_the_same_direction(encoder, expected):
    found = encoder.encode(TEXTS, normalize_embeddings=True)
    assert found.dtype == np.float32
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected / lengths, atol=1e-5)


def spy_on_batches(encoder, monkeypatch):
    """The number of rows of each batch that the encoder is given."""
    batches, rows = encoder.backend, []
    embed = batches.embed
    monkeypatch.setattr(batches, "embed", lambda x, tokens: rows.append(len(x)) or embed(x, tokens))
    return rows


def test_repeats_are_encoded_once(encoder, monkeypatch):
    rows = spy_on_batches(encoder, monkeypatch)
    encoder.encode(TEXTS * 3)
    assert rows == [5]


def test_a_batch_has_at_most_so_many_texts(encoder, expected, monkeypatch):
    rows = spy_on_batches(encoder, monkeypatch)
    np.testing.assert_allclose(encoder.encode(TEXTS, batch_size=2), expected, atol=1e-5)
    assert rows == [2, 2, 1]


def test_of_an_export_too(exported, expected, monkeypatch):
    encoder = dcse_tf.SentenceEncoder.load(str(exported))
    rows = spy_on_batches(encoder, monkeypatch)
    np.testing.assert_allclose(encoder.encode(TEXTS, batch_size=2), expected, atol=1e-5)
    assert rows == [2, 2, 1]


def test_settings_reach_the_encoder(folder, alone):
    text = "i want a refund for the blue cup"
    by_cls = dcse_tf.SentenceEncoder.load(folder, pooling="cls").encode(text)
    np.testing.assert_allclose(by_cls, alone(text)[0], atol=1e-5)
    short = dcse_tf.SentenceEncoder.load(folder, max_sequence_length=4)
    # [CLS] i want [SEP]
    np.testing.assert_allclose(
        short.encode(text), reference.mean_of_rows(alone("i want")), atol=1e-5
    )


def test_the_pooling_is_the_models_own_unless_another_is_asked_for(folder, tmp_path):
    """Of a sentence-transformers folder that pools by [CLS], an explicit mean is a mean."""
    by_cls = dcse_tf.SentenceEncoder.load(folder, pooling="cls").encode(TEXTS)
    by_mean = dcse_tf.SentenceEncoder.load(folder, pooling="mean").encode(TEXTS)
    np.testing.assert_array_equal(dcse_tf.SentenceEncoder.load(folder).encode(TEXTS), by_mean)
    assert np.abs(by_cls - by_mean).max() > 1e-2

    other = shutil.copytree(folder, tmp_path / "pools-by-cls")
    write_modules(other, SentenceModules("cls"), DIM)
    own = dcse_tf.SentenceEncoder.load(other)
    assert own.settings["pooling"] == "cls"
    np.testing.assert_array_equal(own.encode(TEXTS), by_cls)
    mean = dcse_tf.SentenceEncoder.load(other, pooling="mean")
    np.testing.assert_array_equal(mean.encode(TEXTS), by_mean)


def test_the_fingerprint_is_of_what_is_computed(folder, exported, tmp_path):
    def fingerprint(model, **settings):
        return dcse_tf.SentenceEncoder.load(model, **settings).fingerprint()

    own = fingerprint(folder)
    assert fingerprint(exported) == own
    assert fingerprint(folder, pooling="mean", max_sequence_length=128) == own
    # An export in another form has other files, but the same weights.
    other = tmp_path / "sentence-transformers"
    dcse_tf.export(run_dir=folder, output_dir=other, format="sentence_transformers")
    assert fingerprint(other) == own

    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "training.json").write_text('{"step": 3}')  # where it comes from
    assert fingerprint(copy) == own
    assert fingerprint(folder, pooling="cls") != own
    assert fingerprint(folder, max_sequence_length=64) != own
    assert fingerprint(save_checkpoint(tmp_path / "other", build_backbone(seed=9))) != own
    (copy / "vocab.txt").write_text((folder / "vocab.txt").read_text().replace("parcel", "letter"))
    assert fingerprint(copy) != own


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        (None, TypeError, "texts: expected a list of strings, found NoneType"),
        (7, TypeError, "found int 7"),
        (b"ok", TypeError, "found bytes"),
        ({"ok": 1}, TypeError, "found dict"),
        ({"ok"}, TypeError, "found set"),
        (np.array([["a", "b"]]), TypeError, r"found ndarray of shape \(1, 2\)"),
        (np.array("a"), TypeError, r"found ndarray of shape \(\)"),
        (["ok", None], TypeError, r"texts\[1\]: expected a string, found NoneType"),
        (["ok", "ok", 3.5], TypeError, r"texts\[2\]: expected a string, found float 3.5"),
        ([b"ok"], TypeError, r"texts\[0\]: expected a string, found bytes"),
        ([["ok"]], TypeError, r"texts\[0\]: expected a string, found list"),
        (["ok", "\ud800"], ValueError, r"texts\[1\]: not a text: "),
        ("\ud800", ValueError, r"texts\[0\]: not a text: "),
    ],
    ids=str,
)
def test_what_is_no_text_is_named_with_its_place(encoder, texts, error, message):
    with pytest.raises(error, match=message):
        encoder.encode(texts)


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, "8"])
def test_a_batch_size_that_is_none_is_refused(encoder, batch_size):
    with pytest.raises(ValueError, match=r"batch_size=.*: expected a whole number of at least 1"):
        encoder.encode(["ok"], batch_size=batch_size)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling": "max"}, "`pooling`=max: .*'mean', 'cls'"),
        ({"compute_dtype": "float16"}, "`compute_dtype`=float16"),
        ({"max_sequence_length": -1}, "`max_sequence_length`=-1: expected 0 or"),
        ({"max_sequence_length": 2}, "`max_sequence_length`=2: .* at least 3"),
        ({"batch_tokens": 0}, "`batch_tokens`=0"),
    ],
    ids=str,
)
def test_settings_that_are_none_are_refused(folder, settings, message):
    with pytest.raises(ValueError, match=message):
        dcse_tf.SentenceEncoder.load(folder, **settings)


def test_a_model_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected a checkpoint folder"):
        dcse_tf.SentenceEncoder.load(tmp_path / "nothing")


def test_a_long_job_says_how_far_it_is(encoder, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    encoder.encode(TEXTS, show_progress=False)
    assert terminal.getvalue() == ""
    encoder.encode(TEXTS)
    # The distinct texts have 6, 3, 2, 6 and 10 tokens, the first and the last two for [CLS], [SEP].
    assert "27 of 27 tokens" in terminal.getvalue()


def test_scores_are_the_matching_similarity(encoder, alone):
    found = encoder.similarity(CONTEXT, RESPONSES)
    assert found.dtype == np.float32
    turns = [alone(text) for text in CONTEXT]
    expected = [reference.similarity(turns, alone(text)) for text in RESPONSES]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.ptp(found) > 0.01


def test_many_contexts_are_scored_as_each_alone(encoder):
    contexts = [CONTEXT, ["ok"], ["", "好的"]]
    alone = [encoder.similarity(context, RESPONSES) for context in contexts]
    np.testing.assert_allclose(encoder.similarity(contexts, RESPONSES), alone, atol=1e-6)
    np.testing.assert_allclose(encoder.similarity(contexts, [RESPONSES] * 3), alone, atol=1e-6)
    own = [RESPONSES[:2], RESPONSES[1:3], RESPONSES[2:]]
    expected = [alone[0][:2], alone[1][1:3], alone[2][2:]]
    np.testing.assert_allclose(encoder.similarity(contexts, own), expected, atol=1e-6)


def test_scores_are_those_of_evaluate(folder, encoder, dialogues_file, monkeypatch):
    """The same samples, turns of both sides in their order: nothing is cut or turned round."""
    seen = []

    score = graph.GraphBackend.score

    def spy(self, contexts, candidates):
        scores = score(self, contexts, candidates)
        seen.append((contexts, candidates, scores))
        return scores

    monkeypatch.setattr(graph.GraphBackend, "score", spy)
    evaluate_job.evaluate(
        EvaluateOptions(
            model=str(folder),
            response_selection=(str(dialogues_file),),
            candidates=3,
            max_samples=12,
        )
    )
    ((contexts, candidates, scores),) = seen
    assert max(len(context) for context in contexts) > 3  # turns after the response too
    np.testing.assert_allclose(encoder.similarity(contexts, candidates), scores, atol=1e-6)


def test_turn_attention_is_heeded(bert, tmp_path):
    folder = save_checkpoint(tmp_path / "model", bert)
    plain = dcse_tf.SentenceEncoder.load(folder).similarity(CONTEXT, RESPONSES)
    write_matching(folder, MatchingForm(attention=build_turn_attention("attention", DIM, 5)))
    weighed = dcse_tf.SentenceEncoder.load(folder).similarity(CONTEXT, RESPONSES)
    assert np.abs(weighed - plain).max() > 1e-4


def test_no_responses_are_no_scores(encoder):
    assert encoder.similarity(CONTEXT, []).shape == (0,)
    assert encoder.similarity([CONTEXT, ["ok"]], []).shape == (2, 0)


@pytest.mark.parametrize(
    ("context", "responses", "error", "message"),
    [
        ("ok", ["ok"], TypeError, "context: expected a list of strings, found str"),
        (["ok"], "ok", TypeError, "responses: expected a list of strings, found str"),
        ([], ["ok"], ValueError, "context 0: expected at least one turn"),
        ([["ok"], []], ["ok"], ValueError, "context 1: expected at least one turn"),
        (["ok", 3], ["ok"], TypeError, r"context\[1\]: expected a string, found int 3"),
        ([["ok"], ["ok", 3]], ["ok"], TypeError, r"context\[1\]\[1\]: expected a string"),
        (["ok"], ["ok", None], TypeError, r"responses\[1\]: expected a string"),
        (["ok"], [["ok"]], TypeError, r"responses\[0\]: expected a string, found list"),
        ([["ok"], ["ok"]], [["ok"]], ValueError, "each of 2 contexts.* found 1 lists of 1 to 1"),
        ([["ok"]] * 2, [["ok"], ["a", "b"]], ValueError, "found 2 lists of 1 to 2"),
    ],
    ids=str,
)
def test_contexts_and_responses_that_do_not_fit_are_refused(
    encoder, context, responses, error, message
):
    with pytest.raises(error, match=message):
        encoder.similarity(context, responses)


def test_an_export_scores_as_the_run_it_was_made_of(encoder, exported, alone):
    export = dcse_tf.SentenceEncoder.load(exported)
    turns = [alone(text) for text in CONTEXT]
    expected = [reference.similarity(turns, alone(text)) for text in RESPONSES]
    found = export.similarity(CONTEXT, RESPONSES)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert export.similarity(CONTEXT, []).shape == (0,)
    contexts = [CONTEXT, ["ok", "", "好的"]]
    np.testing.assert_allclose(
        export.similarity(contexts, RESPONSES), encoder.similarity(contexts, RESPONSES), atol=1e-5
    )


def test_a_baseline_encodes_and_says_that_it_cannot_match(word_vectors):
    averages = dcse_tf.SentenceEncoder.load(word_vectors)
    # "my" has no vector: the mean of (3, 4) and (0, 1).
    np.testing.assert_allclose(averages.encode("my parcel refund", batch_size=1), [1.5, 2.5])
    for responses in (RESPONSES, []):
        with pytest.raises(ValueError, match=r"no token embeddings to match a response by"):
            averages.similarity(CONTEXT, responses)


def test_the_package_has_the_class_and_nothing_else_by_asking():
    """That importing the package alone starts no TensorFlow is held by test_flag_options."""
    assert dcse_tf.SentenceEncoder is sentence_encoder.SentenceEncoder
    assert "SentenceEncoder" in dir(dcse_tf)
    assert not hasattr(dcse_tf, "nothing")


def test_batches_of_mteb_are_embedded_in_their_order(encoder, expected):
    """Its loader gives dictionaries of lists; its own arguments are passed over."""
    loader = [{"text": TEXTS[:4], "id": list("abcd")}, {"text": TEXTS[4:], "id": list("ef")}]
    given = {"task_metadata": None, "hf_split": "test", "hf_subset": "default"}
    found = encoder.as_mteb().encode(loader, **given, prompt_type=None, batch_size=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_it_is_an_encoder_by_mteb_s_protocol(encoder):
    mteb = pytest.importorskip("mteb")
    model = encoder.as_mteb()
    assert isinstance(model, mteb.EncoderProtocol)
    meta = model.mteb_model_meta
    assert meta.embed_dim == DIM
    assert meta.name.count("/") == 1
    rows = encoder.encode(TEXTS[:3], normalize_embeddings=True)
    cosines = rows @ rows.T
    raw = encoder.encode(TEXTS[:3])
    np.testing.assert_allclose(model.similarity(raw, raw), cosines, atol=1e-5)
    backwards = raw[[2, 1, 0]]
    expected = cosines[::-1].diagonal()
    np.testing.assert_allclose(model.similarity_pairwise(raw, backwards), expected, atol=1e-5)
