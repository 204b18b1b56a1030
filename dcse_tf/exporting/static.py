"""Exports an encoder as a static table of token vectors, in model2vec's format.

A sentence's embedding is the mean of its tokens' vectors. The initial table is made as in Model2Vec
(Tulkens and van Dongen 2024): each token is embedded alone, projected to the leading principal
components of embeddings, and weighted by its frequency. The table is then fitted to a corpus by
ridge regression from tokens to the embeddings of utterances. The penalty is on the change from the
initial table, so vectors of tokens that the corpus does not contain stay as they were.
"""

import dataclasses
import pathlib

import numpy as np
import scipy.sparse
import tensorflow as tf
from absl import logging

from dcse_tf.bert.tensor_files import write_tensor_file
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.utterance_sample import sample_utterances
from dcse_tf.encoder.batching import embed_inputs
from dcse_tf.encoder.graph import EncoderGraph, GraphBackend
from dcse_tf.encoder.static import MODEL_TYPE, TABLE, WEIGHTS_FILE
from dcse_tf.encoder.unit_length import normalize
from dcse_tf.errors import InputError
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.files import write_json
from dcse_tf.progress import Progress

_BATCH_TOKENS = 2048
# A token's weight is a / (a + its share of all tokens), with this a: Arora et al. 2017.
_RARE = 1e-3
# Penalties on the change from the initial table; the best on held-out utterances is chosen.
_RIDGES = (0.03, 0.1, 0.3, 1.0)
_HELD_OUT = 10  # every tenth utterance is held out
_TOLERANCE = 1e-6
_TINY = 1e-300


@dataclasses.dataclass(frozen=True)
class Fit:
    """How well a table approximates an encoder on held-out utterances.

    Attributes:
        dim: number of dimensions of the vectors.
        utterances: number of utterances that the table was fitted to.
        ridge: the penalty that was chosen.
        before, cosine: mean cosine with the encoder's embeddings, before and after fitting.
    """

    dim: int
    utterances: int
    ridge: float
    before: float
    cosine: float

    def describe(self) -> dict[str, str]:
        """Facts for the model card."""
        near = f"mean cosine {self.cosine:.3f} with the encoder's centred embeddings"
        return {
            "token vectors": f"{self.dim} dimensions, fitted to {self.utterances} utterances",
            "on held-out utterances": f"{near} ({self.before:.3f} before fitting)",
        }


def write_static(folder: pathlib.Path, encoder: EncoderGraph, config: ExportOptions) -> Fit:
    """Writes the table with its tokenizer and configuration, as model2vec reads them.

    Args:
        folder: an existing folder to write to.
        encoder: the encoder to export.
        config: the settings; `data_dir` has the utterances to fit to.

    Returns:
        How well the table approximates the encoder.

    Raises:
        InputError: the corpus cannot be used, or was prepared with another vocabulary or
            prefix.
    """
    data_dir, vocabulary = pathlib.Path(config.data_dir), encoder.vocabulary
    manifest = read_manifest(data_dir, vocabulary.fingerprint())
    ids = sample_utterances(data_dir, manifest, config.static_sentences, seed=0)
    if ids.nrows() < 2:  # which have no principal components
        raise InputError(
            f"`data_dir`={data_dir}: expected at least two distinct utterances in the train "
            f"split, found {int(ids.nrows())}"
        )

    backend = GraphBackend(encoder, _BATCH_TOKENS, "float32", jit_compile=False)
    utterances = normalize(_embed(backend, ids, "utterances"))
    alone = normalize(_embed(backend, _list_tokens(encoder), "the vocabulary"))
    first = vocabulary.count_prefix() + 1
    counts = count_tokens(ids[:, first:-1], vocabulary.unk_id, len(alone))
    table, fit = fit_table(counts, utterances, alone, config.static_dim)
    # Of SentencePiece's tokenizers model2vec and `load_static` cannot tell which token is unknown;
    # with a zero vector it changes only the length of a sum, which is scaled to 1.
    table[vocabulary.unk_id] = 0.0
    logging.info(
        "mean cosine with held-out utterances: %.3f, %.3f before fitting", fit.cosine, fit.before
    )

    write_tensor_file(folder / WEIGHTS_FILE, {TABLE: table})
    vocabulary.write_tokenizer(folder, encoder.max_sequence_length)
    settings = {
        "model_type": MODEL_TYPE,
        "architectures": ["StaticModel"],
        "hidden_dim": fit.dim,
        "seq_length": 1_000_000,
        "max_length": None,  # without it model2vec cuts a text at 512 tokens
        "normalize": True,
        "embedding_dtype": "float32",
    }
    write_json(folder / "config.json", settings)
    return fit


def _list_tokens(encoder: EncoderGraph) -> tf.RaggedTensor:
    """Every token of the vocabulary between [CLS] and [SEP]; int32 `[tokens, 3]`."""
    vocabulary = encoder.vocabulary
    rows = np.empty([len(vocabulary.tokens), 3], np.int32)
    rows[:, 0], rows[:, 2] = vocabulary.cls_id, vocabulary.sep_id
    rows[:, 1] = np.arange(len(rows))
    return tf.RaggedTensor.from_tensor(rows)


def _embed(backend: GraphBackend, ids: tf.RaggedTensor, what: str) -> np.ndarray:
    """The encoder's embeddings of token ids, cut to its length; float32 `[n, dim]`."""
    with Progress(f"tokens of {what} embedded") as progress:
        return embed_inputs(backend, *backend.read_tokens(ids), progress=progress.update)


def count_tokens(ids: tf.RaggedTensor, unknown: int, size: int) -> scipy.sparse.csr_matrix:
    """The matrix whose product with a table gives the mean token vector of each sentence.

    Args:
        ids: token ids, int `[sentences, (tokens)]`.
        unknown: id of the unknown token, which is ignored.
        size: number of tokens in the vocabulary.

    Returns:
        float64 `[sentences, size]`; rows sum to 1, or to 0 for a sentence without known tokens.
    """
    rows, columns = ids.value_rowids().numpy(), ids.values.numpy()
    known = columns != unknown
    shape = (int(ids.nrows()), size)
    counts = scipy.sparse.csr_matrix((known[known] * 1.0, (rows[known], columns[known])), shape)
    totals = np.asarray(counts.sum(axis=1)).ravel()
    return scipy.sparse.diags(1 / np.maximum(totals, 1.0)) @ counts


def fit_table(
    counts: scipy.sparse.csr_matrix, utterances: np.ndarray, alone: np.ndarray, dim: int
) -> tuple[np.ndarray, Fit]:
    """Fits token vectors whose means approximate the embeddings of utterances.

    Args:
        counts: float64 `[utterances, size]`, see `count_tokens`.
        utterances: their embeddings, float64 `[utterances, d]`, of length 1 each.
        alone: the embedding of each token alone, float64 `[size, d]`, of length 1 each.
        dim: dimensions of the table; at most d are made.

    Returns:
        The table, float32 `[size, dim]`, and how well it approximates the embeddings.
    """
    mean = utterances.mean(axis=0)
    # Principal components: eigenvectors of the covariance, by descending eigenvalue.
    _, vectors = np.linalg.eigh(np.cov(utterances, rowvar=False))
    basis = vectors[:, ::-1][:, :dim]
    goal, start = (utterances - mean) @ basis, (alone - mean) @ basis
    share = np.asarray(counts.sum(axis=0)).ravel() / max(counts.sum(), 1.0)
    start *= (_RARE / (_RARE + share))[:, None]
    made = counts @ start
    start *= (made * goal).sum() / max((made**2).sum(), 1e-12)

    held = np.arange(len(goal)) % _HELD_OUT == 0
    if held.all():
        held[:] = False
    rest = goal - counts @ start
    equations = _NormalEquations(counts[~held], rest[~held])
    found = {}
    for ridge in _RIDGES:
        table = start + equations.solve(ridge)
        found[ridge] = _mean_cosine(counts[held] @ table, goal[held])
    best = max(found, key=found.__getitem__)
    before = _mean_cosine(counts[held] @ start, goal[held])
    table = start + _NormalEquations(counts, rest).solve(best)
    fit = Fit(basis.shape[1], len(goal), best, before, found[best])
    return np.ascontiguousarray(table, np.float32), fit


class _NormalEquations:
    """Finds the change of a table that minimises
    |counts @ change - rest|^2 + ridge^2 |change|^2.
    """

    def __init__(self, counts: scipy.sparse.csr_matrix, rest: np.ndarray):
        self._shape = (counts.shape[1], rest.shape[1])
        self._used = np.flatnonzero(counts.getnnz(axis=0))
        of_used = counts[:, self._used]
        self._gram = (of_used.T @ of_used).tocsr()
        self._goals = of_used.T @ rest

    def solve(self, ridge: float) -> np.ndarray:
        """The change, float64 `[size, dim]`; 0 for tokens that do not occur."""
        gram = self._gram + ridge**2 * scipy.sparse.identity(len(self._used), format="csr")
        change = np.zeros(self._shape)
        change[self._used] = _solve_columns(gram, self._goals)
        return change


def _solve_columns(matrix: scipy.sparse.csr_matrix, goals: np.ndarray) -> np.ndarray:
    """Conjugate gradients for all columns at once, eight times as fast as column by column.

    Args:
        matrix: float64 `[n, n]`, symmetric and positive definite.
        goals: float64 `[n, columns]`.

    Returns:
        x with matrix @ x = goals, float64 `[n, columns]`. The norm of each column's residual is at
        most `_TOLERANCE` times that of its goal, unless rounding errors prevent it.
    """
    # Jacobi preconditioning: frequent tokens have far larger entries than rare ones, and without
    # it ten times as many steps are needed.
    diagonal = matrix.diagonal()[:, None]
    found, residual = np.zeros_like(goals), goals.copy()
    scaled = residual / diagonal
    direction, size = scaled.copy(), _multiply_columns(residual, scaled)
    enough = _TOLERANCE * np.linalg.norm(goals, axis=0)
    for _ in range(10 * len(goals)):  # scipy's bound: rounding can prevent convergence
        if (np.linalg.norm(residual, axis=0) <= enough).all():
            break
        product = matrix @ direction
        # The direction of a column that is solved exactly is 0.
        step = size / np.maximum(_multiply_columns(direction, product), _TINY)
        found += step * direction
        residual -= step * product
        scaled = residual / diagonal
        size, before = _multiply_columns(residual, scaled), size
        direction *= size / np.maximum(before, _TINY)
        direction += scaled
    return found


def _multiply_columns(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->j", first, second)


def _mean_cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float((normalize(first) * normalize(second)).sum(axis=1).mean()) if len(first) else 0.0
