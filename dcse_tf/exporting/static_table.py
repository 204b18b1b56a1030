"""Exports an encoder as a static table of token vectors, in model2vec's format.

A sentence's embedding is the mean of its tokens' vectors. The initial table is made as in Model2Vec
(Tulkens and van Dongen 2024): each token is embedded alone, projected to the leading principal
components of embeddings, and weighted by its frequency. The table is then fitted to a corpus by
ridge regression from tokens to the embeddings of utterances. The penalty is on the change from the
initial table, so vectors of tokens that the corpus does not contain stay as they were.
"""

import pathlib

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import tensorflow as tf

from dcse_tf.bert.tensor_files import write_tensor_file
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.records import sample_utterances
from dcse_tf.encoder.backend import normalize
from dcse_tf.encoder.exported_models import STATIC_FILE, STATIC_TABLE, STATIC_TYPE
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.exporting.export_formats import ExportOptions, Facts
from dcse_tf.files import write_json
from dcse_tf.progress import Progress

# A token's weight is a / (a + its share of all tokens), with this a: Arora et al. 2017.
_RARE = 1e-3
_DIM, _UTTERANCES = 256, 50_000  # of the table, and to fit it to, at most
# Penalty on the change from the initial table: of six tried with 1,500 utterances the best on
# held-out ones. The more utterances there are, the less it matters.
_RIDGE = 0.3
_HELD_OUT = 10  # every tenth utterance is held out
_TOLERANCE = 1e-6


def write_encoder(folder: pathlib.Path, encoder: EncoderGraph, options: ExportOptions) -> Facts:
    """Writes the table with its tokenizer and configuration, as model2vec reads them; see
    `register_export`. Raises InputError if the corpus `data_dir`, to whose utterances it is fitted,
    cannot be used, or was prepared with another vocabulary or prefix.
    """
    data_dir, vocabulary = pathlib.Path(options.data_dir), encoder.vocabulary
    manifest = read_manifest(data_dir, vocabulary.fingerprint())
    ids = sample_utterances(data_dir, manifest, _UTTERANCES, seed=0)

    def embed(name: str, rows: tf.RaggedTensor) -> np.ndarray:
        with Progress(f"tokens of {name} embedded") as progress:
            inputs = encoder.read_tokens(rows)
            return normalize(encoder.embed_inputs(*inputs, progress=progress.update))

    # Every token of the vocabulary between [CLS] and [SEP].
    size, begin, end = len(vocabulary.tokens), vocabulary.cls_id, vocabulary.sep_id
    alone = tf.RaggedTensor.from_tensor([[begin, token, end] for token in range(size)])
    counts = count_tokens(ids[:, vocabulary.count_prefix() + 1 : -1], vocabulary.unk_id, size)
    utterances = embed("utterances", ids)
    table, before, cosine = fit_table(counts, utterances, embed("the vocabulary", alone))
    # Older versions of model2vec cannot tell which token of SentencePiece's is unknown; with a zero
    # vector it changes only the length of a sum, which is scaled to 1.
    table[vocabulary.unk_id] = 0.0

    write_tensor_file(folder / STATIC_FILE, {STATIC_TABLE: table})
    vocabulary.write_tokenizer(folder, encoder.max_sequence_length)
    settings = {
        "model_type": STATIC_TYPE,
        "architectures": ["StaticModel"],
        "hidden_dim": table.shape[1],
        "seq_length": 1_000_000,
        "max_length": None,  # without it model2vec cuts a text at 512 tokens
        "normalize": True,
        "embedding_dtype": "float32",
    }
    write_json(folder / "config.json", settings)
    near = f"mean cosine {cosine:.3f} with the encoder's centred embeddings"
    return {"longest sentence": "any, nothing is cut off", "length": "unit"} | {
        "token vectors": f"{table.shape[1]} dimensions in place of the encoder, fitted to "
        f"{len(utterances)} utterances; a sentence is the mean over its known tokens",
        "on held-out utterances": f"{near} ({before:.3f} before fitting)",
    }


def count_tokens(ids: tf.RaggedTensor, unknown: int, size: int) -> scipy.sparse.csr_matrix:
    """The matrix, float64 `[sentences, size]`, whose product with a table is the mean vector of
    each sentence's tokens but the unknown one; 0 without any. `ids`: int `[sentences, (tokens)]`.
    """
    known = tf.ragged.boolean_mask(ids, ids != unknown)
    lengths = known.row_lengths().numpy()
    shares, splits = np.repeat(1 / np.maximum(lengths, 1), lengths), known.row_splits.numpy()
    return scipy.sparse.csr_matrix((shares, known.values.numpy(), splits), (len(lengths), size))


def fit_table(
    counts: scipy.sparse.csr_matrix, utterances: np.ndarray, alone: np.ndarray
) -> tuple[np.ndarray, float, float]:
    """Fits token vectors whose means approximate the embeddings of utterances.

    Args:
        counts: float64 `[utterances, size]`, see `count_tokens`.
        utterances: their embeddings, float64 `[utterances, d]`, of length 1 each.
        alone: the embedding of each token alone, float64 `[size, d]`, of length 1 each.

    Returns:
        The table, float32 `[size, dim]`; and the mean cosine with the embeddings of held-out
        utterances, before fitting and of a table that is fitted to the others.
    """
    mean = utterances.mean(axis=0)
    # Principal components: eigenvectors of the covariance, by descending eigenvalue.
    _, vectors = np.linalg.eigh(np.cov(utterances, rowvar=False))
    basis = vectors[:, ::-1][:, :_DIM]
    goal, initial = (utterances - mean) @ basis, (alone - mean) @ basis
    share = np.asarray(counts.sum(axis=0)).ravel() / max(counts.sum(), 1.0)
    initial *= (_RARE / (_RARE + share))[:, None]
    made = counts @ initial
    initial *= (made * goal).sum() / max((made**2).sum(), 1e-12)

    rest = goal - counts @ initial
    held = np.arange(len(goal)) % _HELD_OUT == 0

    def measure(table: np.ndarray) -> float:
        rows, true = normalize(counts[held] @ table), normalize(goal[held])
        return float((rows * true).sum(axis=1).mean())

    of_others = initial + _solve_ridge(counts[~held], rest[~held])
    table = initial + _solve_ridge(counts, rest)
    return np.ascontiguousarray(table, np.float32), measure(initial), measure(of_others)


def _solve_ridge(counts: scipy.sparse.csr_matrix, rest: np.ndarray) -> np.ndarray:
    """The change of a table that minimises |counts @ change - rest|^2 + _RIDGE^2 |change|^2,
    float64 `[size, dim]`; 0 for tokens that do not occur.

    By conjugate gradients on the normal equations for all columns at once, which takes an eighth of
    the time column by column.
    """
    used = np.flatnonzero(counts.getnnz(axis=0))
    of_used = counts[:, used]
    matrix = of_used.T @ of_used + _RIDGE**2 * scipy.sparse.identity(len(used))
    # Scaled to a diagonal of ones: frequent tokens have far larger entries than rare ones, and
    # without it ten times as many steps are needed.
    scale = scipy.sparse.diags(matrix.diagonal() ** -0.5)
    matrix, goals = (scale @ matrix @ scale).tocsr(), scale @ (of_used.T @ rest)
    operator = scipy.sparse.linalg.LinearOperator(
        (goals.size, goals.size), lambda x: (matrix @ x.reshape(goals.shape)).ravel(), dtype=float
    )
    steps = 10 * len(goals)  # rounding can prevent convergence
    found, _ = scipy.sparse.linalg.cg(operator, goals.ravel(), rtol=_TOLERANCE, maxiter=steps)
    change = np.zeros((counts.shape[1], rest.shape[1]))
    change[used] = scale @ found.reshape(goals.shape)
    return change
