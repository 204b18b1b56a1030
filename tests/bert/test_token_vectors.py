"""Token embeddings that start from word or character vectors."""

import numpy as np
import pytest
from train_options import make_options

from dcse_tf.bert import weights
from dcse_tf.bert.vectors import WordVectors
from dcse_tf.bert.weights import compute_token_embeddings
from dcse_tf.bert.wordpiece import WordPiece
from dcse_tf.errors import InputError
from dcse_tf.options import OptionError
from dcse_tf.training.job import train

pytestmark = pytest.mark.slow

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = WordPiece((*SPECIAL, "包", "##包", "裹", "cat", "##ing"), lowercase=True)


def _vectors(**rows):
    return WordVectors(
        {word: place for place, word in enumerate(rows)}, np.array([*rows.values()], np.float32)
    )


def _random(width, rows=10, seed=0):
    return (0.02 * np.random.default_rng(seed).normal(size=(rows, width))).astype(np.float32)


def test_the_vectors_lie_on_their_principal_axes_at_the_scale_of_the_start():
    # Three points (1, 5), (5, 5), (3, 5): their mean is (3, 5), and they lie along the first
    # coordinate alone: components -2, 2, 0. Their deviation over both axes is that of
    # (-2, 0, 2, 0, 0, 0), sqrt(8 / 6).
    vectors = _vectors(包=[1.0, 5.0], 裹=[5.0, 5.0], cat=[3.0, 5.0])
    random = _random(width=2)
    embeddings, count = compute_token_embeddings(vectors, VOCABULARY, random)
    scale = random.std() / np.sqrt(8 / 6)
    expected = scale * np.array([[-2, 0], [-2, 0], [2, 0], [0, 0]])
    np.testing.assert_allclose(embeddings[5:9], expected, atol=1e-8)
    assert count == 4  # a piece has the vector of its word
    assert embeddings.dtype == np.float32


def test_what_has_no_vector_stays_random():
    vectors = _vectors(包=[1.0, 5.0], 裹=[5.0, 2.0], cat=[3.0, 3.0])
    random = _random(width=6)
    embeddings, _ = compute_token_embeddings(vectors, VOCABULARY, random)
    np.testing.assert_array_equal(embeddings[[*range(5), 9]], random[[*range(5), 9]])
    # Two components do not fill six columns.
    np.testing.assert_array_equal(embeddings[:, 2:], random[:, 2:])
    assert np.abs(embeddings[5:9, :2] - random[5:9, :2]).min() > 0


def test_a_special_token_has_no_vector_even_if_the_file_has_it():
    rows = {"[MASK]": [9.0, 9.0], "包": [1.0, 5.0], "裹": [5.0, 2.0]}
    random = _random(width=2)
    embeddings, count = compute_token_embeddings(_vectors(**rows), VOCABULARY, random)
    assert count == 3
    np.testing.assert_array_equal(embeddings[:5], random[:5])


@pytest.mark.parametrize("width", [8, 20, 30])
def test_angles_between_centred_vectors_are_kept_where_the_width_suffices(width):
    tokens = (*SPECIAL, *(f"w{i}" for i in range(40)))
    matrix = np.random.default_rng(1).normal(size=(40, 20)) * np.linspace(3, 0.1, 20) + 1.0
    vectors = WordVectors({f"w{i}": i for i in range(40)}, matrix.astype(np.float32))
    random = _random(width, rows=len(tokens))
    embeddings, _ = compute_token_embeddings(vectors, WordPiece(tokens, True), random)
    filled = embeddings[5:, : min(width, 20)].astype(np.float64)
    centred = matrix - matrix.mean(axis=0)
    scale = (filled**2).sum() / (centred**2).sum()
    difference = np.abs(filled @ filled.T / scale - centred @ centred.T).max()
    # Fewer components than the vectors have cannot keep all; they are the best eight.
    assert (difference < 1e-3) == (width >= 20)
    assert filled.std() == pytest.approx(random.std(), rel=1e-5)
    variances = (filled**2).sum(axis=0)
    assert (np.diff(variances) <= 1e-9).all()


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ({"dog": [1.0, 2.0], "house": [2.0, 1.0]}, "0 entries"),
        ({"cat": [1.0, 2.0], "house": [2.0, 1.0]}, "1 entries"),
        ({"cat": [1.0, 2.0], "包": [1.0, 2.0]}, "two different"),
        ({"cat": [1.0, np.nan], "包": [1.0, 2.0]}, "finite"),
    ],
)
def test_vectors_that_cannot_be_used_are_refused(rows, problem):
    with pytest.raises(InputError, match=problem):
        compute_token_embeddings(_vectors(**rows), VOCABULARY, _random(width=2))


def test_a_checkpoint_takes_no_vectors():
    with pytest.raises(OptionError, match="token_vectors"):
        make_options(data_dir="data", run_dir="run", encoder="bert", token_vectors="a.txt")


def _start(data_dir, run_dir, **changes):
    """The token embeddings that a run begins with: a step at rate 0 writes them."""
    settings = {
        "task": "mlm",
        "data_dir": str(data_dir),
        "run_dir": str(run_dir),
        "encoder_size": "tiny",
        "steps": 1,
        "learning_rate": 0.0,
        "global_batch_size": 4,
        "dev_samples": 0,
    }
    train(make_options(**{**settings, **changes}))
    return weights.read_tensors(run_dir / "encoder")["embeddings.word_embeddings.weight"]


def test_a_training_starts_from_the_file(data_dir, tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("parcel 1.0 0.5 -2.0\ncat 0.0 3.0 1.0\nthe -1.0 0.25 4.0\n")
    tokens = (data_dir / "vocabulary/vocab.txt").read_text().split("\n")
    plain = _start(data_dir, tmp_path / "plain")
    warm = _start(data_dir, tmp_path / "warm", token_vectors=str(path))
    changed = {tokens[row] for row in np.flatnonzero((plain != warm).any(axis=1))}
    words = {"parcel", "cat", "the", "##parcel", "##cat", "##the"}
    assert changed == words & set(tokens)
    assert len(changed) >= 2
    np.testing.assert_array_equal(plain[:, 3:], warm[:, 3:])


def test_a_file_in_another_language_is_named(data_dir, tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("喵喵 1.0 0.5\n汪汪 0.0 3.0\n")
    with pytest.raises(InputError, match=r"`token_vectors`=.*glove\.txt: 0 entries"):
        _start(data_dir, tmp_path / "run", token_vectors=str(path))
