"""Batches of response selection: the same whatever the layout, and divided among replicas."""

import types

import numpy as np
import pytest
import tensorflow as tf
from drawn_dialogues import collect, session
from lettered_corpus import prepare_sessions

from dcse_tf.bert.layout import Layout
from dcse_tf.bert.pair_rule import PairRule
from dcse_tf.data import selection, sequence_stream
from dcse_tf.data.dialogue import AUXILIARY_TASKS
from dcse_tf.data.manifest import Corpus
from dcse_tf.data.masking import MaskingRule
from dcse_tf.data.stream import Stream, make_masked_lm_dataset
from dcse_tf.tasks.shared import take_dev_sessions

CLS, SEP, MASK, EOT = 2, 3, 4, 9
SEED = tf.constant([7, 11], tf.int64)
SAMPLES = [session(number, 4 + number % 3) for number in range(1, 9)]


LONG = [session(number, 4 + number % 3, words=12) for number in range(1, 9)]


def make(
    layout="padded", replicas=1, auxiliary=AUXILIARY_TASKS, first=64, speakers=True,
    sessions=SAMPLES, second=16, same_role=True,
):  # fmt: skip
    rule = PairRule(CLS, SEP, EOT, first, second)
    form = selection.SelectionForm(20, 1, auxiliary, speakers, rule, MASK, same_role=same_role)
    samples = collect(sessions).samples
    return selection.make_selection_batches(
        samples, form, SEED, replicas, Layout(layout, row_length=32)
    )


def sequences(batch, name):
    """The token ids of a task's rows, from a padded table."""
    tokens = batch["token_ids"].numpy()
    rows = batch[f"{name}_places"].numpy() // tokens.shape[1]
    return [[x for x in tokens[row].tolist() if x] for row in rows]


def cells(batch, column):
    return batch[column].numpy().reshape(-1)


def test_rows_of_the_matching():
    (batch,) = make()
    rows = sequences(batch, "matching")
    assert len(rows) == 16
    for row, label in zip(rows, batch["matching_labels"].numpy(), strict=True):
        assert row[0] == CLS
        context = row[1 : row.index(SEP)]
        texts, ends = context[::2], context[1::2]
        assert set(ends) == {EOT}
        response, last = row[row.index(SEP) + 1 :]
        assert last == SEP
        assert (response == texts[-1] + 1) == bool(label)


def test_segments_and_speakers_of_a_row():
    (batch,) = make()
    width = batch["token_ids"].shape[1]
    place = int(batch["matching_places"][0]) // width
    row = batch["token_ids"].numpy()[place]
    length = int((row != 0).sum())
    segments = batch["segment_ids"].numpy()[place][:length].tolist()
    speakers = batch["speaker_ids"].numpy()[place][:length].tolist()
    turns = (length - 4) // 2
    assert segments == [0] * (2 * turns + 2) + [1, 1]
    # The last turn of the context is another's, the one before it the responder's, and so on; an
    # [EOT] is its turn's.
    by_turn = [(turns - turn) % 2 for turn in range(turns)]
    assert speakers == [0, *(x for voice in by_turn for x in (voice, voice)), 0, 0, 0]


def test_speakers_do_not_give_replaced_pieces_away():
    """Speakers alternate in a dialogue, so the marks alone would tell most of the answers."""
    (batch,) = make()
    speakers = batch["speaker_ids"].numpy()
    marks = {name: speakers[batch[f"{name}_places"].numpy() // speakers.shape[1]] for name in
             ("matching", "next_session")}  # fmt: skip
    assert not marks["next_session"].any()
    assert marks["matching"].any(axis=1).all()


def test_restoration_hides_one_turn_and_asks_for_it():
    (batch,) = make()
    tokens = cells(batch, "token_ids")
    places, ids = batch["restoration_places"].numpy(), batch["restoration_ids"].numpy()
    assert (tokens[places] == MASK).all()
    assert (tokens == MASK).sum() == len(places) == 8  # a token a turn
    assert sorted(ids // 100) == list(range(1, 9))
    np.testing.assert_allclose(batch["restoration_weights"].numpy(), 2.0)


def test_the_tokens_of_a_hidden_turn_share_the_weight_of_one():
    (batch,) = make(sessions=LONG)
    ids, weights = batch["restoration_ids"].numpy(), batch["restoration_weights"].numpy()
    # A turn begins with its own number, 100 or more; other words are below.
    turns = np.split(weights, np.flatnonzero(ids >= 100)[1:])
    assert len(turns) == 8
    assert len({len(turn) for turn in turns}) > 1
    for turn in turns:
        np.testing.assert_allclose(turn, 16 / 8 / len(turn))


def test_incoherence_lists_every_token_of_every_turn():
    (batch,) = make()
    tokens = cells(batch, "token_ids")
    places, turns = batch["incoherence_places"].numpy(), batch["incoherence_turns"].numpy()
    assert not {CLS, SEP, EOT, 0} & set(tokens[places].tolist())
    labels = batch["incoherence_labels"].numpy()
    for number in range(8):
        mine = turns // 21 == number  # at most 20 turns and the response
        texts = tokens[places[mine]]
        assert (turns[mine] % 21).tolist() == list(range(mine.sum()))
        strange = [place for place, text in enumerate(texts) if text // 100 != number + 1]
        assert strange == [labels[number]]


@pytest.mark.parametrize("name", ["matching", *AUXILIARY_TASKS])
def test_the_weights_of_every_task_add_up_to_those_of_the_matching(name):
    whole, parts = make(), make(replicas=2)
    for batches in (whole, parts):
        total = sum(float(tf.reduce_sum(batch[f"{name}_weights"])) for batch in batches)
        assert total == pytest.approx(16.0)


@pytest.mark.parametrize("name", ["matching", *AUXILIARY_TASKS])
def test_replicas_have_the_rows_of_the_whole(name):
    (whole,), parts = make(), make(replicas=2)
    targets = [key for key in whole if key.startswith(f"{name}_") and "places" not in key]
    for target in targets:
        together = np.concatenate([part[target].numpy() for part in parts])
        expected = whole[target].numpy()
        if target == "incoherence_turns":
            together = together % 21
            expected = expected % 21
        np.testing.assert_array_equal(together, expected)
    assert [row for part in parts for row in sequences(part, name)] == sequences(whole, name)
    steps = [
        part[f"{name}_places"].numpy() % part["token_ids"].shape[1] for part in (*parts, whole)
    ]
    np.testing.assert_array_equal(np.concatenate(steps[:-1]), steps[-1])


@pytest.mark.parametrize("name", ["matching", *AUXILIARY_TASKS])
def test_packed_rows_have_the_tokens_of_padded_ones(name):
    (padded,), (packed,) = make("padded"), make("packed")
    rows, steps = np.divmod(padded[f"{name}_places"].numpy(), padded["token_ids"].shape[1])
    lengths = padded["padding_mask"].numpy().sum(axis=1)[rows]
    starts = packed[f"{name}_places"].numpy() - steps
    for column in ("token_ids", "segment_ids", "speaker_ids"):
        for row, start, length in zip(rows, starts, lengths, strict=True):
            found = cells(packed, column)[start : start + length]
            np.testing.assert_array_equal(found, padded[column].numpy()[row, :length])
    np.testing.assert_array_equal(padded[f"{name}_weights"], packed[f"{name}_weights"])
    assert packed["token_ids"].shape[0] < padded["token_ids"].shape[0]


def test_a_turn_that_was_cut_off_does_not_count():
    (batch,) = make(first=6)  # [CLS], two turns with [EOT], [SEP]
    weights = batch["incoherence_weights"].numpy()
    kept = collect(SAMPLES)
    lengths = (kept.ends - kept.starts).numpy()
    inside = lengths - kept.samples["odd"].numpy() <= 2
    assert (weights > 0).tolist() == inside.tolist()
    assert 0 < inside.sum() < 8
    hidden = lengths - kept.samples["hidden"].numpy() <= 2
    assert len(batch["restoration_ids"]) == hidden.sum()
    assert 0 < hidden.sum() < 8
    np.testing.assert_allclose(batch["restoration_weights"].numpy(), 16 / hidden.sum())


def test_every_task_draws_by_a_seed_of_its_own():
    """The other session's turns that incoherence and consistency take."""
    (batch,) = make(same_role=False)
    turns, odd = batch["incoherence_turns"].numpy(), batch["incoherence_labels"].numpy()
    tokens = cells(batch, "token_ids")[batch["incoherence_places"].numpy()]
    taken = tokens[np.isin(turns, 21 * np.arange(8) + odd)].tolist()
    strangers = [row[-2] for row in sequences(batch, "consistency")[1::2]]
    equal = sum(a == b for a, b in zip(taken, strangers, strict=True))
    assert equal < 6  # of 8, each with more than 20 turns to choose from


def test_tasks_that_are_left_out_leave_nothing():
    (batch,) = make(auxiliary=())
    assert {key.split("_")[0] for key in batch} == {"token", "padding", "segment", "speaker",
                                                     "matching"}  # fmt: skip
    (batch,) = make(auxiliary=("consistency",), speakers=False)
    assert "speaker_ids" not in batch
    assert len(batch["consistency_places"]) == 16


def test_pieces_have_half_of_the_tokens_each():
    (batch,) = make(first=24, sessions=LONG)  # 24 and 16: 20 each
    (whole,) = make(first=256, second=256, sessions=LONG)
    cut, full = sequences(batch, "next_session"), sequences(whole, "next_session")
    for short, long in zip(cut, full, strict=True):
        left, right = long[1 : long.index(SEP)], long[long.index(SEP) + 1 : -1]
        assert short == [CLS, *left[-18:], SEP, *right[:19], SEP]
    # Some pieces are longer than a context and a response may be.
    pieces = [(row.index(SEP) - 1, len(row) - row.index(SEP) - 2) for row in full]
    assert any(left > 18 for left, _ in pieces)
    assert any(right > 15 for _, right in pieces)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """13 sessions; turn t of session s says "s{s} t{t}"."""
    folder = tmp_path_factory.mktemp("streams")
    return Corpus(folder / "data", prepare_sessions(folder, [4] * 13))


def make_dataset(corpus, stream):
    rule = PairRule(CLS, SEP, 200, 64, 32)
    form = selection.SelectionForm(20, 1, (), False, rule, MASK)
    return sequence_stream.make_selection_dataset(corpus, form, stream)


def test_a_stream_with_an_end_has_every_session_once(corpus):
    sizes, seen = [], []
    for batch in make_dataset(corpus, Stream(5, 0, most=13)):
        sizes.append(int(batch["matching_labels"].numpy().sum()))
        own = [row for row, label in zip(sequences(batch, "matching"),
                                         batch["matching_labels"].numpy()) if label]  # fmt: skip
        seen += [row[1] - 5 for row in own]
    assert sizes == [5, 5, 3]
    assert sorted(seen) == list(range(13))
    rule = MaskingRule(0.15, 20, MASK, (0, 1, CLS, SEP, MASK), 85)
    masked = make_masked_lm_dataset(corpus, rule, Stream(20, 0, most=52))
    assert [len(batch["token_ids"]) for batch in masked] == [20, 20, 12]


def test_an_evaluation_takes_all_dev_sessions_but_no_batch_of_one():
    options = {"global_batch_size": 5, "seed": 0, "layout": "padded", "row_length": 0}

    def take(samples, sessions):
        setup = types.SimpleNamespace(
            options=types.SimpleNamespace(dev_samples=samples, jit_compile=False, **options),
            manifest=types.SimpleNamespace(
                splits={"dev": types.SimpleNamespace(sessions=sessions)}
            ),
        )
        stream = take_dev_sessions(setup, lambda stream: stream)
        return stream and (stream.batch_size, stream.most)

    assert take(13, 99) == take(99, 13) == (5, 13)
    assert take(11, 99) == (5, 10)
    assert take(99, 3) == (3, 3)
    assert take(99, 1) is None


@pytest.mark.parametrize("kind", ["selection", "post_training"])
def test_what_is_drawn_from_other_sessions_depends_on_the_step(corpus, kind, monkeypatch):
    """The seed with which each step's batches are made, also of a run that begins later."""
    told = f"make_{kind}_batches"
    monkeypatch.setattr(sequence_stream, told, lambda samples, form, seed, *_: [{"seed": seed}])
    if kind == "selection":
        make_steps = make_dataset
    else:
        rule = PairRule(CLS, SEP, 200, 64, 32)
        form = types.SimpleNamespace(rule=rule, context_turns=20, pairs="utterance")

        def make_steps(corpus, stream):
            return sequence_stream.make_post_training_dataset(corpus, form, stream)

    def read_seeds(stream, steps):
        found = make_steps(corpus, stream).take(steps).as_numpy_iterator()
        return [tuple(batch["seed"].tolist()) for batch in found]

    seeds = read_seeds(Stream(5, 0), 6)
    assert len(set(seeds)) == 6
    assert read_seeds(Stream(5, 0, first_step=2), 4) == seeds[2:]
    assert not {*read_seeds(Stream(5, 1), 6)} & {*seeds}
