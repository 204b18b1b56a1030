"""Response selection on given negatives: what a batch has, and the training run."""

import types

import numpy as np
import pytest
import tensorflow as tf
from dialogue_files import run
from lettered_corpus import CLS, SEP, turn_ids
from test_given_candidates import lines, make_group
from train_options import make_options

from dcse_tf.bert.layout import Layout
from dcse_tf.bert.pair_rule import PairRule
from dcse_tf.data.manifest import Corpus
from dcse_tf.data.options import PrepareOptions
from dcse_tf.data.prepare import prepare
from dcse_tf.data.records import parse_given, parse_session, shard_paths
from dcse_tf.data.selection import SelectionForm
from dcse_tf.data.sequence_stream import make_selection_dataset
from dcse_tf.data.stream import Stream
from dcse_tf.options import OptionError
from dcse_tf.tasks.response_selection import compute_selection_loss
from dcse_tf.training.build import build_training
from dcse_tf.training.dev_evaluation import _dev_samples

EOT, MASK = 99, 4
SESSIONS = 12
# Session n has n mod 4 + 1 negatives, turns 3, 4, ... of session 20 + n.
NEGATIVES = {n: [f"s{20 + n} t{3 + i}" for i in range(n % 4 + 1)] for n in range(SESSIONS)}
GROUPS = [
    make_group(n, texts, scores=[float(n), *(0.5 * i for i in range(len(texts)))])
    for n, texts in NEGATIVES.items()
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    manifest = run(folder, lines(*GROUPS), format="candidates", max_sequence_length=6)
    return Corpus(folder / "data", manifest)


def make_batches(corpus, negatives=2, replicas=1, first_step=0, steps=1, seed=0, layout="padded",
                 auxiliary=(), given=True):  # fmt: skip
    rule = PairRule(CLS, SEP, EOT, 32, 8)
    form = SelectionForm(20, negatives, auxiliary, True, rule, MASK, given)
    stream = Stream(4, seed, first_step, replicas, Layout(layout, row_length=32))
    dataset = make_selection_dataset(corpus, form, stream)
    return list(dataset.take(steps * replicas))


def read_rows(batch):
    """(session, responses with a weight) of each context of a padded batch, the true one first."""
    tokens = batch["token_ids"].numpy()
    labels, weights = batch["matching_labels"].numpy(), batch["matching_weights"].numpy()
    found = []
    for place, label, weight in zip(batch["matching_places"].numpy(), labels, weights, strict=True):
        row = [x for x in tokens[place // tokens.shape[1]].tolist() if x]
        end = row.index(SEP)
        session = row[1] - 5
        assert row[:end] == [CLS, *turn_ids(session, 0)[1:3], EOT, *turn_ids(session, 1)[1:3], EOT]
        response = row[end + 1 : -1]
        if label:
            found.append((session, []))
        elif not weight:
            assert response == turn_ids(session, 2)[1:3]  # stands where no negative is left
            continue
        assert found[-1][0] == session
        found[-1][1].append((response[0] - 5, response[1] - 65))
    return found


@pytest.mark.parametrize("negatives", [1, 2, 0])
def test_the_candidates_of_a_row_are_the_response_and_its_own_negatives(corpus, negatives):
    seen = set()
    for batch in make_batches(corpus, negatives, steps=3):
        for session, responses in read_rows(batch):
            seen.add(session)
            assert responses[0] == (session, 2)
            own = {(20 + session, 3 + i) for i in range(session % 4 + 1)}
            assert len(responses) - 1 == min(negatives or 9, len(own)) == len(set(responses[1:]))
            assert set(responses[1:]) <= own
    assert seen == set(range(SESSIONS))


def test_the_draw_is_anew_at_every_visit_and_of_seed_and_index_alone(corpus):
    def draws(**settings):
        batches = make_batches(corpus, 1, **settings)
        return [pair for batch in batches for pair in read_rows(batch)]

    every = draws(steps=300)
    assert draws(first_step=7, steps=23) == every[4 * 7 : 4 * 30]
    assert draws(steps=30, seed=1) != every[: 4 * 30]
    counts = dict.fromkeys([(23, 3 + i) for i in range(4)], 0)
    for session, responses in every:
        if session == 3:
            counts[responses[1]] += 1
    # 100 visits, four negatives; four standard deviations: 4 x sqrt(100 x 3 / 16) = 17.
    assert all(abs(count - 25) < 18 for count in counts.values())


@pytest.mark.parametrize("auxiliary", [(), ("next_session", "incoherence", "consistency")])
def test_replicas_have_the_rows_of_the_whole(corpus, auxiliary):
    (whole,) = make_batches(corpus, auxiliary=auxiliary)
    parts = make_batches(corpus, replicas=2, auxiliary=auxiliary)
    assert [pair for part in parts for pair in read_rows(part)] == read_rows(whole)
    for name in whole:
        if name.endswith("weights"):
            together = np.concatenate([part[name] for part in parts])
            np.testing.assert_allclose(together, whole[name], rtol=1e-6)


def test_the_auxiliary_tasks_see_no_given_negative(corpus):
    auxiliary = ("next_session", "incoherence", "consistency")
    (batch,) = make_batches(corpus, auxiliary=auxiliary)
    tokens = batch["token_ids"].numpy()
    matching = set(batch["matching_places"].numpy() // tokens.shape[1])
    others = [row for place, row in enumerate(tokens) if place not in matching]
    assert others
    assert not np.isin(np.array(others), [5 + 20 + n for n in range(SESSIONS)]).any()


def test_packed_rows_have_the_tokens_of_padded_ones(corpus):
    (padded,), (packed,) = (make_batches(corpus, layout=kind) for kind in ("padded", "packed"))
    for batch in (padded, packed):
        cells = batch["token_ids"].numpy().reshape(-1)
        assert set(cells[batch["matching_places"].numpy()]) == {CLS}
    for name in ("token_ids", "segment_ids", "speaker_ids"):
        found = [b[name].numpy()[b["token_ids"].numpy() != 0] for b in (padded, packed)]
        assert sorted(found[0]) == sorted(found[1])


def test_negatives_of_the_batch_are_drawn_as_from_an_ordinary_corpus(corpus):
    """The same step, whether the records give candidates or not."""
    (batch,) = make_batches(corpus, 2, given=False)
    tokens = batch["token_ids"].numpy()
    assert not np.isin(tokens, [5 + 20 + n for n in range(SESSIONS)]).any()
    assert batch["matching_weights"].shape == (12,)


# The training run


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Groups of more sessions, with a vocabulary of their own."""
    folder = tmp_path_factory.mktemp("given_run")
    groups = [
        make_group(n, [f"s{n + 20} t3", f"s{n + 20} t4 w1"], scores=[2.0, 0.5, -1.0])
        for n in range(20)
    ]
    (folder / "groups.jsonl").write_text(lines(*groups))
    config = PrepareOptions(
        format="candidates", input=(str(folder / "groups.jsonl"),), vocab_size=200,
        output_dir=str(folder / "data"), max_sequence_length=8, dev_fraction=0.2, test_fraction=0.0,
    )  # fmt: skip
    prepare(config, None)
    return folder / "data"


def make_config(data_dir, **changes):
    settings = {
        "task": "response_selection", "data_dir": str(data_dir), "run_dir": "run", "steps": 4,
        "encoder_size": "tiny", "global_batch_size": 4, "dropout": 0.0, "auxiliary": ("none",),
        "max_context_tokens": 32, "max_response_tokens": 12, "negatives_from": "given",
        "negatives": 2, "dev_samples": 4,
    }  # fmt: skip
    return make_options(**{**settings, **changes})


@pytest.mark.slow
def test_two_devices_have_the_loss_and_gradients_of_one(data_dir):
    training = build_training(make_config(data_dir, dev_samples=0))
    variables = training.model.trainable_variables

    def differentiate(replicas):
        totals = None
        for batch in training.spec.make_dataset(training.setup, 0, replicas).take(replicas):
            with tf.GradientTape() as tape:
                loss = compute_selection_loss(training.model, batch)["loss"]
            found = tape.gradient(loss, [v.value for v in variables])
            found = [float(loss), *(tf.convert_to_tensor(x).numpy() for x in found)]
            totals = found if totals is None else [a + b for a, b in zip(totals, found)]
        return totals

    for one, two in zip(differentiate(1), differentiate(2), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)


@pytest.mark.slow
def test_a_run_learns_from_given_negatives_and_scores_the_dev_sessions(data_dir, tmp_path):
    from dcse_tf.training import job

    outcome = job.train(
        make_config(
            data_dir,
            run_dir=str(tmp_path),
            best_metric="dev/matching_accuracy",
            projector_sentences=0,
        )
    )
    assert 0.0 <= outcome.scores["dev/matching_accuracy"] <= 100.0


def test_a_corpus_without_candidates_is_refused(tmp_path):
    from dialogue_files import DIALOGUES, run, tsv

    manifest = run(tmp_path, tsv(DIALOGUES))
    options = make_config(tmp_path / "data", global_batch_size=2)
    message = "`negatives_from`=given: .*data gives no candidates; expected a corpus that prep"
    with pytest.raises(OptionError, match=message):
        options.resolve(manifest)
    options.replace(negatives_from="batch", negatives=1).resolve(manifest)


def test_negatives_that_are_given_need_no_other_sessions():
    make_config("data", global_batch_size=1, negatives=5)
    with pytest.raises(OptionError, match="`negatives`=5: they come from the other sessions"):
        make_config("data", negatives=5, negatives_from="batch")


@pytest.mark.parametrize("task", ["next_session", "incoherence", "consistency"])
def test_tasks_that_need_other_sessions_need_a_batch_of_two(task):
    alone = make_config("data", global_batch_size=1, auxiliary=("restoration",))
    both = {"auxiliary": ("restoration", task)}
    with pytest.raises(OptionError, match=f"`global_batch_size`=1: .*batch, and {task} needs them"):
        alone.replace(**both)
    alone.replace(**both, global_batch_size=2)


def test_the_records_of_the_fixture_are_what_the_tests_say(corpus):
    paths = list(shard_paths(corpus.folder, corpus.manifest.splits["train"]))
    for record in tf.data.TFRecordDataset(paths):
        session = parse_session(record)["token_ids"].to_list()[0][1] - 5
        negatives = parse_given(record)["token_ids"].to_list()
        assert negatives == [turn_ids(20 + session, 3 + i) for i in range(session % 4 + 1)]


def test_dev_ranks_the_last_turn_of_each_group_without_negatives_of_its_dialogue(tmp_path):
    """Three groups from each dialogue, whose contexts are its first 1, 2 and 3 turns."""
    groups = [make_group(n, context=turns) for n in range(30) for turns in (1, 2, 3)]
    manifest = run(
        tmp_path, lines(*groups), name="groups.jsonl", format="candidates", dev_fraction=0.5
    )
    options = make_config(tmp_path / "data", dev_samples=60)
    setup = types.SimpleNamespace(options=options, data_dir=tmp_path / "data", manifest=manifest)
    samples = _dev_samples(setup)
    assert len(samples) > 24
    for sample in samples:
        number = sample.context[0].split()[0]
        assert sample.candidates[0] == f"{number} t{len(sample.context)}"
        assert number not in {text.split()[0] for text in sample.candidates[1:]}
