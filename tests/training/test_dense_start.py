"""A start with Dense modules: what is trained lies behind them, and they are written again."""

import dataclasses
import shutil

import numpy as np
import pytest
import reference
from train_options import SMALL, make_options, write_untrained

import dcse_tf
from dcse_tf.bert.sentence_modules import AffineMap, SentenceModules, read_modules, write_modules
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.options import OptionError
from dcse_tf.training.build import build_training
from dcse_tf.training.dev_evaluation import make_dev_evaluation
from dcse_tf.training.train import train

pytestmark = pytest.mark.slow

DIM, WIDTHS = 128, (40, 12)
TEXTS = ["Where is my parcel", "It left our store on monday", "Thanks for the cats"]
SETTINGS = {
    **SMALL, "encoder_size": "", "batch_form": "dense", "negatives": 3, "cosine_weight": 0.6,
    "projection_dim": 6, "projection_share": 0.5, "prediction_weight": 0.3,
    "rehearsal_weight": 1.0, "rehearsal_texts": 4,
}  # fmt: skip


def draw_maps():
    """Those of the start, by the widths of what they read and give."""
    rng = np.random.default_rng(4)
    for inputs, outputs in zip((DIM, *WIDTHS), WIDTHS):
        matrix, bias = rng.normal(size=(inputs, outputs)) / 8, rng.normal(size=outputs)
        yield AffineMap(*(np.float32(value) for value in (np.zeros(inputs), matrix, bias)))


def apply_maps(rows):
    """What they make of rows, in float64."""
    for step in draw_maps():
        rows = np.float64(rows) @ np.float64(step.matrix) + step.bias
    return rows


@pytest.fixture(scope="module")
def bare(data_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "bare"
    write_untrained(folder, data_dir=str(data_dir), encoder_size="tiny", task="mlm")
    return folder


def copy(bare, folder, maps, pooling="mean"):
    """The start, with other modules behind it."""
    shutil.copytree(bare, folder)
    write_modules(folder, SentenceModules(pooling, tuple(maps)), DIM)
    return str(folder)


@pytest.fixture(scope="module")
def start(bare):
    return copy(bare, bare.with_name("dense"), draw_maps())


@pytest.fixture(scope="module")
def run(start, data_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(make_options(**SETTINGS, encoder=start, data_dir=str(data_dir), run_dir=str(folder)))
    return folder


@pytest.mark.usefixtures("verified_here")
def test_a_run_embeds_matches_and_projects_behind_them(start, run, tmp_path):
    written = read_modules(run / "encoder", DIM).maps
    for found, given in zip(written, draw_maps(), strict=True):
        np.testing.assert_equal(dataclasses.asdict(found), dataclasses.asdict(given))
    without = shutil.ignore_patterns("modules.json")
    below = SentenceEncoder.load(shutil.copytree(run / "encoder", tmp_path / "a", ignore=without))
    encoder, before = SentenceEncoder.load(run), SentenceEncoder.load(start)
    embeddings = apply_maps(below.encode(TEXTS))
    np.testing.assert_allclose(encoder.encode(TEXTS), embeddings, atol=1e-5)
    assert np.abs(before.encode(TEXTS) - embeddings).max() > 1e-3
    assert before.match is None

    tokens = [apply_maps(below.backend.embed_tokens([text])[text]) for text in TEXTS]
    expected = reference.similarity(tokens[:2], tokens[2])
    np.testing.assert_allclose(encoder.similarity(TEXTS[:2], TEXTS[2:]), expected, atol=1e-5)
    head = SentenceEncoder.load(run, projection="context")
    assert head.backend.postprocessing.name == "context_head"  # as cards of exports call it
    unit = head.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(encoder.project(embeddings, "context"), unit, atol=1e-5)

    for form in ("sentence_transformers", "saved_model"):
        out = dcse_tf.export(run_dir=run, output_dir=tmp_path / form, format=form)
        np.testing.assert_allclose(SentenceEncoder.load(out).encode(TEXTS), embeddings, atol=1e-4)
    whole = dcse_tf.merge(start=start, trained=run, share=1, output_dir=tmp_path / "merged")
    np.testing.assert_array_equal(SentenceEncoder.load(whole).encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_objective_and_dev_scores_are_of_what_is_behind_them(bare, data_dir, tmp_path, share):
    """By a module that makes all embeddings alike."""
    alike = AffineMap(np.zeros(DIM), np.zeros((DIM, 4)), np.ones(4))
    given = {"encoder": copy(bare, tmp_path / "start", [alike]), "data_dir": str(data_dir)}
    given |= {"encoder_size": "", "dev_samples": 16, "cosine_weight": share, "negatives": 3}
    training = build_training(make_options(**SMALL | given, run_dir="unused"))
    found = training.trainer.train(training.batches(), 1)
    assert found["positive_similarity"] == pytest.approx(1.0)
    assert found["negative_similarity"] == pytest.approx(1.0)
    assert make_dev_evaluation(training)()["dev/cosine_r1"] == pytest.approx(10.0)  # chance


def test_other_modules_are_refused_by_a_resumed_run_and_by_merge(
    bare, start, run, data_dir, tmp_path
):
    other = copy(bare, tmp_path / "other", [*draw_maps()][:1])
    with pytest.raises(OptionError, match=r"^`trained`=.*another Dense module"):
        dcse_tf.merge(start=other, trained=run, output_dir=tmp_path / "merged")
    values = {**SETTINGS, "encoder": other, "data_dir": str(data_dir), "run_dir": str(run)}
    with pytest.raises(InputError, match="the encoder's Dense modules"):
        train(make_options(**values))


def test_a_start_that_pools_by_its_first_token_is_named(bare, data_dir, tmp_path, caplog):
    given = {**SETTINGS, "encoder": copy(bare, tmp_path / "start", [], "cls")}
    build_training(make_options(**given, data_dir=str(data_dir), run_dir="unused"))
    assert "start pools by [CLS]; what is trained from it pools by the mean" in caplog.text


@pytest.mark.parametrize(("changes", "values"), [
    ({"activation": "tanh"}, {}), ({"unit": True}, {}), ({"pooling": "cls"}, {}),
    ({}, {"task": "response_selection"}),
])  # fmt: skip
def test_what_a_training_cannot_keep_is_refused(bare, data_dir, tmp_path, changes, values):
    pooling = changes.pop("pooling", "mean")
    maps = [dataclasses.replace(step, **changes) for step in draw_maps()]
    folder = copy(bare, tmp_path / "start", maps, pooling)
    given = {"encoder": folder, "data_dir": str(data_dir), **values}
    with pytest.raises(InputError, match=r"^`encoder`=.*Dense module.*modules\.json"):
        train(make_options(**given, run_dir=str(tmp_path / "run")))


def test_centering_and_baselines_are_refused(start, data_dir, tmp_path):
    given = {"encoder": start, "data_dir": str(data_dir)}
    with pytest.raises(OptionError, match=r"^`center_tokens`=True.*Dense"):
        build_training(make_options(**SETTINGS | given, run_dir="unused", center_tokens=True))
    with pytest.raises(InputError, match=r"^`encoder`=.*Dense module"):
        dcse_tf.fit_baseline(kind="centering", **given, output_dir=tmp_path / "centred")
