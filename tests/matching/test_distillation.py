"""Learning a teacher's scores of given candidates: the loss, its batches, and the training run."""

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
from dialogue_files import run
from lettered_corpus import turn_ids
from test_given_candidates import lines, make_group
from test_given_negatives import NEGATIVES, SESSIONS
from train_options import make_options
from whole_gradients import assert_same, differentiate

from dcse_tf.data.dialogue import Context
from dcse_tf.data.manifest import Corpus
from dcse_tf.data.options import PrepareOptions
from dcse_tf.data.prepare import prepare
from dcse_tf.data.stream import BatchForm, Stream, make_contrastive_dataset
from dcse_tf.matching.losses import Distillation, NTXent
from dcse_tf.options import OptionError
from dcse_tf.training.build import build_training

SIMILARITIES = [[0.9, -0.2, 0.4], [0.1, 0.3, -0.5], [0.2, 0.8, 0.0]]
SCORES = [[2.0, -1.0, 0.5], [-3.0, 4.0, 1.0], [0.5, 0.5, 0.0]]
COUNTS = [3, 3, 2]


def compute(similarities, scores, temperature=0.2, teacher_temperature=1.5, counts=COUNTS):
    layer = Distillation(temperature, teacher_temperature, dtype="float32")
    mask = tf.sequence_mask(counts, len(similarities[0]))
    return layer(tf.constant(similarities), tf.constant(scores), mask).numpy()


def test_the_loss_equals_the_reference():
    expected = [
        reference.distillation(values[:count], scores[:count], 0.2, 1.5)
        for values, scores, count in zip(SIMILARITIES, SCORES, COUNTS, strict=True)
    ]
    np.testing.assert_allclose(compute(SIMILARITIES, SCORES), expected, rtol=1e-5)


def test_the_loss_by_hand():
    # Teacher: softmax of (ln 3, 0) is (3/4, 1/4). Student: of (0.2 ln 4, 0) / 0.2 it is (4/5, 1/5).
    loss = compute([[0.2 * np.log(4.0), 0.0]], [[1.5 * np.log(3.0), 0.0]], counts=[2])
    assert loss == pytest.approx(0.75 * np.log(5 / 4) + 0.25 * np.log(5))
    # All candidates alike to both: the entropy of three.
    assert compute([[0.5] * 3], [[-7.0] * 3], counts=[3]) == pytest.approx(np.log(3))


def test_what_is_masked_and_how_large_the_scores_are_changes_nothing():
    loss = compute(SIMILARITIES, SCORES)
    other_scores = [*SCORES[:2], [0.5, 0.5, 3e38]]
    other_values = [*SIMILARITIES[:2], [0.2, 0.8, 1.0]]
    np.testing.assert_allclose(compute(other_values, other_scores), loss, rtol=1e-6)
    shifted = [[value + 100.0 for value in row] for row in SCORES]
    np.testing.assert_allclose(compute(SIMILARITIES, shifted), loss, rtol=1e-4)
    extreme = compute(SIMILARITIES[:1], [[3e38, -3e38, 0.0]], teacher_temperature=1e-4, counts=[3])
    assert extreme == pytest.approx(-np.log(reference.softmax([4.5, -1.0, 2.0])[0]), rel=1e-5)
    assert compute([[0.3, 0.1]], [[1.0, 2.0]], counts=[0]).tolist() == [0.0]


def test_a_teacher_who_is_sure_of_the_true_response_is_the_contrast_with_the_others():
    mask = tf.sequence_mask(COUNTS, 3)
    contrast = NTXent(0.2, dtype="float32")(tf.constant(SIMILARITIES), mask)
    sure = [[1000.0, 0.0, 0.0]] * 3
    np.testing.assert_allclose(compute(SIMILARITIES, sure), contrast, rtol=1e-5)


def test_the_layer_is_the_same_after_saving_and_loading():
    layer = Distillation(0.2, 1.5)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert (again.temperature, again.teacher_temperature) == (0.2, 1.5)


# Batches


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Session n has n mod 4 + 1 negatives; the teacher's scores are n, then 0, 0.5, 1, ..."""
    folder = tmp_path_factory.mktemp("taught")
    groups = [
        make_group(n, texts, scores=[float(n), *(0.5 * i for i in range(len(texts)))])
        for n, texts in NEGATIVES.items()
    ]
    manifest = run(folder, lines(*groups), format="candidates", max_sequence_length=6)
    return Corpus(folder / "data", manifest)


def make_batches(
    corpus, name="unique", replicas=1, first_step=0, steps=1, fixed=False, side="both"
):
    stream = Stream(4, 3, first_step, replicas, fixed_shapes=fixed)
    form = BatchForm(name, 2, given=corpus.manifest.splits["train"].given.most)
    dataset = make_contrastive_dataset(corpus, form, Context(3, side), stream)
    return [
        {key: value.numpy() for key, value in batch.items()}
        for batch in dataset.take(steps * replicas)
    ]


def read_texts(batch, name, mask):
    table = [[x for x in row if x] for row in batch["token_ids"].tolist()]
    return [
        [table[place] for place, real in zip(row, reals, strict=True) if real]
        for row, reals in zip(batch[name], batch[mask], strict=True)
    ]


@pytest.mark.parametrize("name", ["unique", "plain"])
@pytest.mark.parametrize("side", ["both", "before"])
def test_a_row_has_its_response_its_negatives_and_their_scores(corpus, name, side):
    seen = []
    for batch in make_batches(corpus, name, steps=3, side=side):
        contexts = read_texts(batch, "context_index", "turn_mask")
        drawn = read_texts(batch, "candidate_index", "candidate_mask")
        given = read_texts(batch, "given_index", "given_mask")
        for row, (context, candidates, own) in enumerate(zip(contexts, drawn, given, strict=True)):
            session = own[0][1] - 5
            count = session % 4 + 1
            seen.append(session)
            assert own[0] == candidates[0] == turn_ids(session, 2)
            assert own[1:] == [turn_ids(20 + session, 3 + i) for i in range(count)]
            assert context == [turn_ids(session, 0), turn_ids(session, 1)]
            # Negatives of the batch are responses of other sessions, as without a teacher.
            assert all(ids[1] - 5 < SESSIONS and ids[1] - 5 != session for ids in candidates[1:])
            scores = batch["teacher_scores"][row][: 1 + count].tolist()
            assert scores == [session, *(0.5 * i for i in range(count))]
    assert sorted(seen) == list(range(SESSIONS))


def test_unique_batches_have_every_text_once_and_replicas_only_their_own(corpus):
    (whole,), parts = make_batches(corpus), make_batches(corpus, replicas=2)
    for batch in (whole, *parts):
        table = [tuple(row) for row in batch["token_ids"].tolist()]
        assert len(set(table)) == len(table)
        assert all(any(row) for row in table)
        names = ("context_index", "candidate_index", "given_index")
        used = np.concatenate([batch[name].reshape(-1) for name in names])
        assert set(used.tolist()) == set(range(len(table)))
    for name in ("given_index", "candidate_index"):
        mask = name.replace("index", "mask")
        together = [row for part in parts for row in read_texts(part, name, mask)]
        assert together == read_texts(whole, name, mask)
    together = np.concatenate([part["teacher_scores"] for part in parts])
    np.testing.assert_array_equal(together, whole["teacher_scores"])


def test_batches_after_a_step_are_those_of_a_run_that_took_it(corpus):
    for first, second in zip(
        make_batches(corpus, steps=9)[5:], make_batches(corpus, first_step=5, steps=4), strict=True
    ):
        assert first.keys() == second.keys()
        for name, value in first.items():
            np.testing.assert_array_equal(value, second[name])


@pytest.mark.parametrize("name", ["unique", "plain"])
def test_fixed_shapes_are_filled_up_and_are_always_the_same(corpus, name):
    free, fixed = (make_batches(corpus, name, steps=6, fixed=x) for x in (False, True))
    assert len({tuple(v.shape for v in batch.values()) for batch in fixed}) == 1
    for first, second in zip(free, fixed, strict=True):
        for index in ("given", "candidate"):
            texts = [read_texts(b, f"{index}_index", f"{index}_mask") for b in (first, second)]
            assert texts[0] == texts[1]


# The training


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught_run")
    rng = np.random.default_rng(0)
    groups = [
        make_group(n, [f"s{n + 20} t{3 + i} w{i}" for i in range(1 + n % 3)],
                   scores=rng.normal(size=2 + n % 3).round(2).tolist())
        for n in range(20)
    ]  # fmt: skip
    (folder / "groups.jsonl").write_text(lines(*groups))
    settings = {"vocab_size": 200, "max_sequence_length": 8, "dev_fraction": 0.0}
    config = PrepareOptions(
        format="candidates", input=(str(folder / "groups.jsonl"),), test_fraction=0.0,
        output_dir=str(folder / "data"), **settings,
    )  # fmt: skip
    prepare(config, None)
    return folder / "data"


def make_config(data_dir, run_dir="run", **changes):
    settings = {
        "task": "dialogue_cse", "data_dir": str(data_dir), "run_dir": str(run_dir), "steps": 4,
        "encoder_size": "tiny", "global_batch_size": 8, "dropout": 0.0, "negatives": 3,
        "distillation_weight": 0.7, "teacher_temperature": 2.0, "temperature": 0.2,
        "dev_samples": 0, "freeze_layers": 0, "freeze_embeddings": False, "log_every": 1,
        "save_every": 2, "projector_sentences": 0,
    }  # fmt: skip
    return make_options(**{**settings, **changes})


@pytest.mark.parametrize("cosine_weight", [0.0, 0.6, 1.0])
def test_the_loss_is_the_share_of_the_contrast_and_of_the_teacher(data_dir, cosine_weight):
    training = build_training(make_config(data_dir, cosine_weight=cosine_weight, layout="padded"))
    batch = next(iter(training.dataset()))
    outputs = training.model(batch)
    tokens = training.setup.encoder({k: batch[k] for k in ("token_ids", "padding_mask")}).numpy()
    table = [rows[mask] for rows, mask in zip(tokens, batch["padding_mask"].numpy(), strict=True)]
    shares = {reference.similarity: 1.0 - cosine_weight, reference.plain_cosine: cosine_weight}

    def score(row, index, mask, similarity):
        turns, real = batch["context_index"][row].numpy(), batch["turn_mask"][row].numpy()
        context = [table[turn] for turn in turns[real]]
        chosen = batch[index][row].numpy()[batch[mask][row].numpy()]
        return [similarity(context, table[place]) for place in chosen]

    for row in range(8):
        scores = batch["teacher_scores"][row].numpy()[batch["given_mask"][row].numpy()]
        assert len(scores) > 1
        expected = taught = 0.0
        for similarity, share in shares.items():
            drawn = score(row, "candidate_index", "candidate_mask", similarity)
            given = score(row, "given_index", "given_mask", similarity)
            expected += share * reference.nt_xent(drawn, 0.2)
            taught += share * reference.distillation(given, scores.tolist(), 0.2, 2.0)
        found = [float(outputs[name][row]) for name in ("distillation_loss", "loss")]
        np.testing.assert_allclose(found, [taught, 0.3 * expected + 0.7 * taught], rtol=2e-4)


_SUMS = ("distillation_loss", "teacher_agreement")


@pytest.fixture(scope="module")
def packed(data_dir):
    """A training, and what `differentiate` says of it."""
    training = build_training(make_config(data_dir))
    assert (training.options.layout, training.options.batch_form) == ("packed", "unique")
    return training, differentiate(training, _SUMS)


def test_two_devices_have_the_loss_and_gradients_of_one(packed):
    training, found = packed
    assert_same(found, differentiate(training, _SUMS, replicas=2))


# The plain form is padded.
@pytest.mark.parametrize("changes", [{"layout": "padded"}, {"batch_form": "plain"}])
def test_layouts_and_forms_have_one_loss_and_gradient(packed, data_dir, changes):
    other = build_training(make_config(data_dir, **changes))
    assert_same(packed[1], differentiate(other, _SUMS))


def test_what_does_not_go_together_is_refused(tmp_path, data_dir):
    with pytest.raises(
        OptionError, match=r"`batch_form`=dense: .* `distillation_weight` needs uni"
    ):
        make_config(data_dir, batch_form="dense")
    with pytest.raises(
        OptionError, match=r"`teacher_temperature`=2\.0: has no meaning without `dis"
    ):
        make_config(data_dir, distillation_weight=0.0)
    manifest = run(tmp_path, lines(make_group(0), make_group(1)), format="candidates")
    options = make_config(tmp_path / "data", global_batch_size=2, negatives=1)
    with pytest.raises(
        OptionError, match=r"0\.7: .*data has candidates without a teacher's scores"
    ):
        options.resolve(manifest)
    ordinary = options.replace(distillation_weight=0.0, teacher_temperature=1.0)
    assert ordinary.resolve(manifest).steps == 4
    (tmp_path / "plain").mkdir()
    plain = run(tmp_path / "plain", "a\tx\thi\na\ty\tho\nb\tx\thi\nb\ty\tho\n")
    with pytest.raises(OptionError, match="no candidates with a teacher's scores; expected what"):
        options.resolve(plain)
