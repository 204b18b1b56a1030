"""Labelled sentences: their format, the draw of pairs, and the task that learns them."""

import numpy as np
import pytest
import tensorflow as tf
from train_options import make_options

from dcse_tf.data.batch import draw_turns
from dcse_tf.data.formats import labelled
from dcse_tf.data.manifest import Corpus, read_manifest
from dcse_tf.data.options import PrepareOptions
from dcse_tf.data.prepare import prepare
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines
from dcse_tf.training.build import build_training

LABELS = ("card", "loan", "parcel", "refund", "hours", "price", "size", "colour")


def read(path, most=0):
    return [
        (name, [(turn.role, turn.text, turn.intents) for turn in turns])
        for name, turns in labelled.read_sessions(path, BadLines(most))
    ]


def test_the_sentences_of_a_label_are_a_session(tmp_path):
    path = tmp_path / "queries.csv"
    path.write_text('Category,Text\ncard,where\nloan,"how much, then"\ncard,lost\ncard,lost\n')
    card = [("a", "where", ("card",)), ("b", "lost", ("card",))]
    assert read(path) == [("card", card), ("loan", [("a", "how much, then", ("loan",))])]
    path = tmp_path / "queries.tsv"
    path.write_text('query\tlabel\tid\nwhere "is it\tcard\t1\n')
    assert read(path) == [("card", [("a", 'where "is it', ("card",))])]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "text,kind\nlost,card\n",
            r":1: no column label, intent or category; the header has",
        ),
        ("", ":1: no column text, sentence, utterance or query"),
        ("text,label\nlost\n", r":2: expected 2 field\(s\), found 1"),
        ("text,label\nlost, \n", ":2: expected a sentence and its label, neither empty"),
        ("text,label\n\u200b,card\n", ":2: expected a sentence and its label, neither empty"),
        ('text,label\n"lost,card\n', ":2: not CSV"),
    ],
)
def test_a_file_that_is_no_table_of_labels_is_one_error(tmp_path, text, message):
    path = tmp_path / "queries.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read(path)


def test_two_different_turns_are_drawn_in_any_order_by_the_seed_alone():
    session = {
        "session": tf.constant(7, tf.int64),
        "token_ids": tf.ragged.constant([[1], [2, 2], [3, 3, 3]], tf.int32),
        "utterances": tf.constant([10, 20, 30], tf.int64),
    }

    def draw(number):
        found = draw_turns(session, tf.constant([number, 0], tf.int64), 2)
        texts = found["utterances"].numpy().tolist()
        assert [len(row) for row in found["token_ids"].to_list()] == [text // 10 for text in texts]
        return tuple(texts)

    drawn = [draw(number) for number in range(60)]
    assert set(drawn) == {(a, b) for a in (10, 20, 30) for b in (10, 20, 30) if a != b}
    assert drawn == [draw(number) for number in range(60)]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labelled")
    rows = [f"s{i} {label} w{i},{label}" for i in range(6) for label in LABELS]
    (folder / "queries.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    prepare(
        PrepareOptions(
            format="labelled", input=(str(folder / "queries.csv"),), vocab_size=120,
            max_sequence_length=8, dev_fraction=0.0, test_fraction=0.0,
            output_dir=str(folder / "data"),
        ),
        None,
    )  # fmt: skip
    return folder / "data"


def make_training(data_dir, **changes):
    settings = {
        "task": "labelled", "data_dir": str(data_dir), "run_dir": "unused", "dropout": 0.0,
        "encoder_size": "tiny", "global_batch_size": 8, "steps": 30, "dev_samples": 0,
        "learning_rate": 1e-3, "warmup_steps": 0,
    }  # fmt: skip
    return build_training(make_options(**{**settings, **changes}))


def test_a_row_has_two_sentences_of_a_label_and_those_of_others(data_dir):
    training = make_training(data_dir, layout="padded")
    label_of = {training.setup.vocabulary.index(label): label for label in LABELS}
    for batch in training.dataset().take(3):
        table = [
            {label_of[token] for token in row if token in label_of}
            for row in batch["token_ids"].numpy().tolist()
        ]
        texts = batch["token_ids"].numpy()
        own = []
        for row, mask, context in zip(
            batch["candidate_index"].numpy(),
            batch["candidate_mask"].numpy(),
            batch["context_index"].numpy()[:, 0],
            strict=True,
        ):
            assert table[row[0]] == table[context]
            assert texts[row[0]].tolist() != texts[context].tolist()
            (label,) = table[row[0]]
            others = [table[place] for place in row[1:][mask[1:]]]
            assert sorted(map(min, others)) == sorted(set(LABELS) - {label})
            own.append(label)
        assert sorted(own) == sorted(LABELS)


def test_the_task_learns_the_labels_and_does_not_depend_on_the_devices(data_dir):
    training = make_training(data_dir)
    whole = sum_losses(training, 1)
    np.testing.assert_allclose(sum_losses(training, 2), whole, rtol=1e-4)
    batches = training.batches()
    before = training.trainer.train(batches, 1)
    training.trainer.train(batches, 28)
    after = training.trainer.train(batches, 1)
    assert after["loss"] < 0.5 * before["loss"]


def sum_losses(training, replicas):
    sums = [
        training.spec.compute_loss(training.model, batch)
        for batch in training.spec.make_dataset(training.setup, 0, replicas).take(replicas)
    ]
    return [sum(float(each[name]) for each in sums) for name in ("loss", "weight", "accuracy")]


def test_the_corpus_has_a_session_a_label(data_dir):
    corpus = Corpus(data_dir, read_manifest(data_dir))
    split = corpus.manifest.splits["train"]
    assert (split.sessions, split.utterances) == (len(LABELS), 6 * len(LABELS))
