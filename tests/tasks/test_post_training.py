"""Post-training as a training run, and what starts from what it leaves."""

import json

import numpy as np
import pytest
import reference
import tensorflow as tf
from train_options import make_options, resolve

from dcse_tf.bert import masked_lm
from dcse_tf.bert.checkpoints import resolve_checkpoint
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.weights import masked_lm_head_weights, read_tensors, to_tensors
from dcse_tf.data.dialogue import Context
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.options import PrepareOptions
from dcse_tf.data.post_training import PAIRS
from dcse_tf.data.prepare import prepare
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.matching.losses import PreTrainingLoss
from dcse_tf.options import OptionError
from dcse_tf.tasks import TASKS
from dcse_tf.tasks.post_training import _find_chances, compute_post_training_loss
from dcse_tf.tasks.shared import average_sums, make_masking_rule
from dcse_tf.training import job
from dcse_tf.training.build import build_training

pytestmark = pytest.mark.slow

SCORES = {f"dev/{task}_{what}" for task in ("pairs", "masked_lm") for what in
          ("accuracy", "chance")}  # fmt: skip


def make_config(data_dir, run_dir="run", **changes):
    settings = {
        "task": "post_training",
        "data_dir": str(data_dir),
        "run_dir": str(run_dir),
        "encoder_size": "tiny",
        "steps": 4,
        "global_batch_size": 8,
        "learning_rate": 1e-3,
        "max_context_tokens": 96,
        "max_response_tokens": 32,
        "log_every": 1,
        "save_every": 2,
        "eval_every": 4,
        "dev_samples": 12,
    }
    return make_options(**{**settings, **changes})


@pytest.fixture(scope="module")
def run(data_dir, tmp_path_factory):
    """A run directory and its scores."""
    folder = tmp_path_factory.mktemp("post") / "run"
    found = job.train(make_config(data_dir, folder, speaker_embeddings=True, pairs="relevance"))
    return folder, found.scores


def test_a_run_scores_both_tasks_beside_their_chance(run):
    _, scores = run
    assert set(scores) == SCORES
    assert all(0.0 <= value <= 100.0 for value in scores.values())
    # Of three classes the commonest has a third at least.
    assert 100.0 / 3 <= scores["dev/pairs_chance"] < 100.0


def test_response_selection_starts_from_all_that_a_run_leaves(run, data_dir):
    folder, _ = run
    tensors = read_tensors(resolve_checkpoint(str(folder), "encoder"))
    options = make_options(
        task="response_selection", data_dir=str(data_dir), run_dir="unused", encoder=str(folder),
        global_batch_size=4, speaker_embeddings=True, steps=1,
    )  # fmt: skip
    training = build_training(options)
    backbone, model = training.setup.backbone, training.model
    np.testing.assert_array_equal(
        backbone.token_embedding.embeddings, tensors["embeddings.word_embeddings.weight"]
    )
    np.testing.assert_array_equal(
        model.get_layer("speaker_embedding").embeddings,
        tensors["embeddings.speaker_embeddings.weight"],
    )
    for name in ("matching", "next_session", "consistency"):
        hidden = model.get_layer(name).hidden
        np.testing.assert_array_equal(hidden.kernel, tensors["pooler.dense.weight"].T)
        np.testing.assert_array_equal(hidden.bias, tensors["pooler.dense.bias"])
    head = to_tensors(masked_lm_head_weights(model.get_layer("masked_lm_head")))
    assert len(head) == 5
    for name, value in head.items():
        np.testing.assert_array_equal(value, tensors[name], err_msg=name)


def test_what_a_run_leaves_was_trained(run, data_dir):
    """Every tensor that is handed on differs from where it started."""
    tensors = read_tensors(resolve_checkpoint(str(run[0]), "encoder"))
    start = build_training(make_config(data_dir, speaker_embeddings=True, pairs="relevance"))
    model = start.model
    before = to_tensors(masked_lm_head_weights(model.get_layer("masked_lm_head")))
    before["pooler.dense.weight"] = model.get_layer("pairs").hidden.kernel.numpy().T
    before["pooler.dense.bias"] = model.get_layer("pairs").hidden.bias.numpy()
    table = model.get_layer("speaker_embedding").embeddings.numpy()
    before["embeddings.speaker_embeddings.weight"] = table
    embedding = start.setup.backbone.token_embedding.embeddings.numpy()
    before["embeddings.word_embeddings.weight"] = embedding
    for name, value in before.items():
        assert value.shape == tensors[name].shape
        assert np.abs(value - tensors[name]).max() > 1e-4, name


def test_what_is_written_is_what_was_trained(data_dir, tmp_path):
    training = build_training(make_config(data_dir, speaker_embeddings=True))
    model = training.model
    hidden, table = model.get_layer("pairs").hidden, model.get_layer("speaker_embedding")
    rng = np.random.default_rng(0)
    for variable in (*hidden.weights, *model.get_layer("masked_lm_head").weights, *table.weights):
        variable.assign(rng.normal(size=variable.shape))
    training.spec.write_encoder(training.setup, model, tmp_path)
    tensors = read_tensors(tmp_path)
    vector = rng.normal(size=128).astype(np.float32)
    # A pooler as BERT's: a file has a matrix by its outputs.
    pooled = np.tanh(tensors["pooler.dense.weight"] @ vector + tensors["pooler.dense.bias"])
    np.testing.assert_allclose(hidden(vector[None])[0], pooled, atol=1e-4)
    speakers = tensors["embeddings.speaker_embeddings.weight"]
    np.testing.assert_array_equal(speakers, table.embeddings)
    head = model.get_layer("masked_lm_head")
    expected = head(vector[None, None], mask_positions=tf.constant([[0]])).numpy()
    for variable in masked_lm.own_variables(head):
        variable.assign(tf.zeros_like(variable.value))
    assert masked_lm.load_head(head, tensors, "folder")
    found = head(vector[None, None], mask_positions=tf.constant([[0]])).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_the_end_of_a_turn_is_neither_predicted_nor_drawn(data_dir):
    setup = build_training(make_config(data_dir)).setup
    rule, last = make_masking_rule(setup), len(setup.vocabulary.tokens) - 1
    assert setup.vocabulary.tokens[last] == "[EOT]"
    assert rule.special_ids == (0, 1, 2, 3, 4, last)
    assert (rule.mask_rate, rule.max_predictions) == (0.15, 77)  # 15% of 512 tokens are 76.8


def test_post_training_goes_on_from_what_it_left(run, data_dir):
    config = make_config(
        data_dir, encoder=str(run[0]), encoder_size="", speaker_embeddings=True, pairs="pieces"
    )
    model = build_training(config).model
    tensors = read_tensors(resolve_checkpoint(str(run[0]), "encoder"))
    hidden = model.get_layer("pairs").hidden.kernel
    np.testing.assert_array_equal(hidden, tensors["pooler.dense.weight"].T)
    assert model.get_layer("pairs").output_layer.kernel.shape == (128, 2)
    head = model.get_layer("masked_lm_head")
    assert masked_lm.load_head(head, tensors, "run")


def test_speaker_embeddings_that_are_left_out_are_named(run, data_dir, caplog):
    config = make_config(data_dir, encoder=str(run[0]), encoder_size="", speaker_embeddings=True)
    build_training(config)
    assert not [text for text in caplog.messages if "speaker embeddings" in text]
    build_training(config.replace(speaker_embeddings=False))
    (found,) = (text for text in caplog.messages if "speaker embeddings" in text)
    assert found.endswith("left out; `speaker_embeddings` keeps them")


def test_what_a_run_leaves_is_a_sentence_encoder(run):
    folder, _ = run
    encoder = SentenceEncoder.load(str(folder))
    vectors = encoder.encode(["where is my parcel", "it rains"], show_progress=False)
    assert vectors.shape == (2, 128)
    assert np.isfinite(vectors).all()
    config = json.loads((folder / "encoder/config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    vocabulary = read_vocabulary(folder / "encoder")
    assert vocabulary.tokens[-1] == "[EOT]"
    assert config["vocab_size"] == len(vocabulary.tokens)


def test_a_corpus_that_is_prepared_with_it_serves_where_the_first_did(
    run, data_dir, dialogues_file, tmp_path
):
    options = PrepareOptions(
        format="jsonl", input=(str(dialogues_file),), output_dir=str(tmp_path / "data"),
        vocab=str(run[0]), max_sequence_length=16,
    )  # fmt: skip
    prepare(options, resolve_checkpoint(str(run[0]), "vocab", weights=False))
    before = read_vocabulary(data_dir / "vocabulary").fingerprint()
    assert read_manifest(tmp_path / "data", before)


def differentiate(training, batches):
    """Gradients of the mean loss of a step, and its mean sums."""
    variables = training.model.trainable_variables
    totals, added = None, {}
    for batch in batches:
        with tf.GradientTape() as tape:
            sums = compute_post_training_loss(training.model, batch)
        found = tape.gradient(sums["loss"], [v.value for v in variables])
        found = [tf.convert_to_tensor(gradient).numpy() for gradient in found]
        totals = found if totals is None else [a + b for a, b in zip(totals, found)]
        added = {name: added.get(name, 0.0) + float(value) for name, value in sums.items()}
    return [total / added["weight"] for total in totals], added


@pytest.fixture(scope="module", params=PAIRS)
def training(data_dir, request):
    return build_training(make_config(data_dir, dropout=0.0, pairs=request.param))


def test_two_devices_have_the_loss_and_gradients_of_one(training):
    one = training.spec.make_dataset(training.setup, 0, 1).take(1)
    two = training.spec.make_dataset(training.setup, 0, 2).take(2)
    (first, sums), (second, same) = differentiate(training, one), differentiate(training, two)
    assert sums["weight"] == same["weight"] == sums["samples"] == 8.0
    for name in ("loss", "pairs_loss", "masked_lm_loss", "pairs_accuracy", "masked_lm_accuracy"):
        assert same[name] == pytest.approx(sums[name], rel=1e-5), name
    for variable, a, b in zip(training.model.trainable_variables, first, second, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, err_msg=variable.path)


def test_the_layout_changes_no_sum_and_no_gradient(data_dir):
    results = []
    for layout in ("padded", "packed"):
        training = build_training(make_config(
            data_dir, dropout=0.0, pairs="relevance", layout=layout, speaker_embeddings=True
        ))  # fmt: skip
        results.append(differentiate(training, training.dataset().take(1)))
    (first, sums), (second, same) = results
    assert same["cells"] != sums["cells"]
    for name in set(sums) - {"cells"}:
        assert same[name] == pytest.approx(sums[name], rel=1e-4), name
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_batches_after_a_step_are_those_of_a_run_that_took_it(training):
    whole, later = iter(training.dataset(0)), iter(training.dataset(5))
    for _ in range(5):
        next(whole)
    for _ in range(14):  # over the end of an epoch
        first, second = next(whole), next(later)
        assert first.keys() == second.keys()
        for name, value in first.items():
            np.testing.assert_array_equal(value, second[name], err_msg=name)


def test_the_loss_is_the_sum_of_two_means():
    rng = np.random.default_rng(0)
    logits = {"pairs": rng.normal(size=(4, 3)), "masked_lm": rng.normal(size=(5, 7))}
    answers = {"pairs": [2, 0, 1, 1], "masked_lm": [6, 0, 3, 3, 2]}
    weights = {"pairs": [1.5, 0.0, 1.0, 1.5], "masked_lm": [0.8] * 5}
    targets = {
        "pairs_labels": tf.constant(answers["pairs"]),
        "masked_lm_ids": tf.constant(answers["masked_lm"]),
        **{f"{task}_weights": tf.constant(values) for task, values in weights.items()},
    }
    logits_of = {task: tf.constant(rows, tf.float32) for task, rows in logits.items()}
    sums = {name: float(value) for name, value in PreTrainingLoss()(logits_of, targets).items()}
    for task, rows in logits.items():
        losses = [reference.negative_log_likelihood(row, answer)
                  for row, answer in zip(rows, answers[task], strict=True)]  # fmt: skip
        hits = [np.argmax(row) == answer for row, answer in zip(rows, answers[task], strict=True)]
        assert sums[f"{task}_loss"] == pytest.approx(np.dot(losses, weights[task]), rel=1e-5)
        assert sums[f"{task}_accuracy"] == pytest.approx(np.dot(hits, weights[task]))
    assert sums["loss"] == pytest.approx(sums["pairs_loss"] + sums["masked_lm_loss"])
    assert sums["weight"] == 4.0


def test_a_batch_without_a_pair_that_counts_does_not_lower_the_accuracy():
    """Class 1 of the first batch is right; in the second, both texts are in their dialogues."""
    logits = {"pairs": tf.constant([[0.0, 1.0], [0.0, 1.0]]), "masked_lm": tf.constant([[1.0, 0]])}

    def compute(weights):
        targets = {
            "pairs_labels": tf.constant([1, 1]),
            "pairs_weights": tf.constant(weights),
            "masked_lm_ids": tf.constant([1]),
            "masked_lm_weights": tf.constant([2.0]),
        }
        return PreTrainingLoss()(logits, targets)

    found = average_sums([[1.0, 1.0], [0.0, 0.0]], compute, ("pairs_accuracy",), 100.0)
    assert found == {"pairs_accuracy": 100.0}
    assert {"pairs_weight", "masked_lm_weight"} <= set(TASKS["post_training"].metrics)


def test_chance_is_the_share_of_the_commonest_answer():
    batches = [
        {"masked_lm_ids": [5, 5, 7], "masked_lm_weights": [1.0, 1.0, 1.0],
         "pairs_labels": [0, 1], "pairs_weights": [2.0, 0.0]},
        {"masked_lm_ids": [7, 7, 7], "masked_lm_weights": [2.0, 2.0, 1.0],
         "pairs_labels": [1, 1], "pairs_weights": [1.0, 0.0]},
    ]  # fmt: skip
    dataset = tf.data.Dataset.from_tensor_slices(
        {name: tf.ragged.constant([batch[name] for batch in batches]).to_tensor()
         for name in batches[0]}
    )  # fmt: skip
    # 7 has 6 of 8, and class 0 has 2 of 3.
    assert _find_chances(dataset) == {
        "masked_lm_chance": pytest.approx(75.0), "pairs_chance": pytest.approx(200.0 / 3),
    }  # fmt: skip


def test_relevance_has_short_contexts_unless_they_are_given():
    assert make_config("data").context == Context(20, "before")
    short = make_config("data", pairs="relevance")
    assert short.context == Context(3, "before")
    assert short.replace(pairs="utterance").context_turns == 3  # a copy keeps what there is
    assert make_config("data", pairs="relevance", context_turns=20).context_turns == 20


def test_pieces_share_the_length_of_a_sequence():
    whole = make_config("data", max_context_tokens=0, max_response_tokens=64)
    assert resolve(whole).segment_tokens == (448, 64)
    pieces = resolve(whole.replace(pairs="pieces"))
    assert pieces.segment_tokens == (256, 256)
    # 21 turns of 49 tokens and [EOT] would be longer.
    assert pieces.longest_sequence(50) == 512
    # 3 turns of 9 tokens, [CLS], [SEP]: either piece may have nearly all of it.
    assert pieces.replace(context_turns=2).longest_sequence(10) == 2 * 29
    odd = make_config("data", pairs="pieces", max_context_tokens=9, max_response_tokens=4)
    assert odd.segment_tokens == (7, 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": "nsp"}, "`pairs`=nsp: expected one of 'utterance', 'pieces', 'relevance'"),
        ({"global_batch_size": 1}, "`global_batch_size`=1: turns of other sessions come from"),
        ({"context_side": "both"}, "`context_side`=both: has no meaning"),
        ({"best_metric": "dev/cosine_r1"}, "`best_metric`=dev/cosine_r1: with these settings"),
    ],
)
def test_settings_that_contradict_each_other(changes, message):
    with pytest.raises(OptionError, match=message):
        make_config("data", **changes)


def test_sequences_fit_the_encoder():
    options = make_config("data", max_context_tokens=0, max_response_tokens=64)
    assert resolve(options).max_context_tokens == 448
    with pytest.raises(OptionError, match="`max_response_tokens`=512: the encoder has only 512 p"):
        resolve(options.replace(max_response_tokens=512))
