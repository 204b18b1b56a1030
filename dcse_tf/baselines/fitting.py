"""The job that fits a baseline to an encoder and a corpus."""

import pathlib
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from dcse_tf.baselines import files
from dcse_tf.baselines.flow_fitting import FlowSettings, fit_flow
from dcse_tf.baselines.options import FitBaselineOptions
from dcse_tf.baselines.whitening import fit_whitening
from dcse_tf.data.manifest import Manifest, read_manifest
from dcse_tf.data.records import parse_session, shard_paths
from dcse_tf.encoder.batching import embed_inputs
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.encoder.load import load_checkpoint
from dcse_tf.encoder.options import ModelOptions
from dcse_tf.errors import InputError
from dcse_tf.files import atomic_directory
from dcse_tf.model import checkpoints
from dcse_tf.model import checkpoints as sentence_modules
from dcse_tf.model.tokenizer import read_vocabulary
from dcse_tf.model.vectors import fold_case, read_word_vectors
from dcse_tf.progress import Progress

_SESSIONS_AT_A_TIME = 256


def sample_utterances(
    folder: pathlib.Path, manifest: Manifest, count: int, seed: int
) -> tf.RaggedTensor:
    """Draws distinct utterances of the train split.

    Every distinct utterance has a key that its token ids and the seed give; those with the
    smallest keys are drawn, in the keys' order. So the first n of a sample are the sample of n.

    Args:
        folder: what `prepare_data` wrote.
        manifest: of the folder.
        count: most utterances drawn; 0 for all.
        seed: the seed.

    Returns:
        int32 `[utterances, (tokens)]`, with [CLS] and [SEP].
    """
    split = manifest.splits["train"]
    records = tf.data.TFRecordDataset(shard_paths(folder, split)).map(
        parse_session, tf.data.AUTOTUNE, deterministic=True
    )
    kept: dict[int, np.ndarray] = {}
    limit = np.uint64(2**64 - 1)
    progress = Progress("sessions read")
    for batch in records.ragged_batch(_SESSIONS_AT_A_TIME).prefetch(1):
        keys = _draw_keys(batch["utterances"].flat_values.numpy(), seed)
        turns = batch["token_ids"].merge_dims(0, 1)
        ids, splits = turns.values.numpy(), turns.row_splits.numpy()
        for place in np.flatnonzero(keys <= limit):
            # Copied, for a view would keep the batch.
            found = ids[splits[place] : splits[place + 1]].copy()
            kept.setdefault(int(keys[place]), found)
        if count and len(kept) > 2 * count:  # now and then, for it takes a sort
            kept = {key: kept[key] for key in sorted(kept)[:count]}
            limit = np.uint64(max(kept))
        progress.update(progress.done + int(batch["session"].shape[0]), split.sessions)
    chosen = [kept[key] for key in sorted(kept)[: count or None]]
    values = np.concatenate([np.zeros(0, np.int32), *chosen])
    lengths = np.array([len(ids) for ids in chosen], np.int64)
    return tf.RaggedTensor.from_row_lengths(values, lengths)


def _draw_keys(fingerprints: np.ndarray, seed: int) -> np.ndarray:
    """A random-looking uint64 for each int64, another for each (splitmix64; Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = fingerprints.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def fit_baseline(config: FitBaselineOptions) -> str:
    """Fits a baseline and writes it as a folder for `model`.

    Returns:
        What was fitted, in a sentence.

    Raises:
        InputError: the encoder, the corpus or the vectors cannot be used.
        FileExistsError: the output exists and may not be replaced.
    """
    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        if config.kind == "word_vectors":
            return _fit_word_vectors(config, folder)
        return _fit_postprocessing(config, folder)


def _fit_word_vectors(config: FitBaselineOptions, folder: pathlib.Path) -> str:
    index = pathlib.Path(config.word_index) if config.word_index else None
    vectors = fold_case(read_word_vectors(pathlib.Path(config.word_vectors), index))
    description = {"settings": config.to_dict(), "word_unit": config.word_unit}
    files.write_word_vectors(folder, description, vectors)
    return f"{len(vectors.rows)} {config.word_unit} with vectors of {vectors.matrix.shape[1]}"


def _fit_postprocessing(config: FitBaselineOptions, folder: pathlib.Path) -> str:
    embeddings, encoder = _embed_corpus(config, folder)
    description: dict[str, Any] = {
        "pooling": encoder.pooling,
        "sentences": len(embeddings),
        "settings": config.to_dict(),
    }
    checkpoints.write_max_sequence_length(folder, encoder.max_sequence_length)
    if config.kind == "whitening":
        return _fit_whitening(config, folder, description, embeddings)
    settings = FlowSettings(
        depth=config.depth,
        hidden_dim=config.hidden_dim,
        steps=config.steps,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        seed=config.seed,
    )
    fitted = fit_flow(embeddings, settings)
    figures = {"before": fitted.before, "after": fitted.after, "held_out": fitted.held_out}
    figures["best_step"] = fitted.best_step
    files.write_flow(folder, {**description, "log_likelihood": figures}, fitted.flow)
    return (
        f"flow fitted to {len(embeddings) - fitted.held_out} sentences, taken after step "
        f"{fitted.best_step}; log-likelihood a dimension of {fitted.held_out} others: "
        f"{fitted.before:.3f} before, {fitted.after:.3f} after"
    )


def _fit_whitening(
    config: FitBaselineOptions,
    folder: pathlib.Path,
    description: dict[str, Any],
    embeddings: np.ndarray,
) -> str:
    fitted = fit_whitening(embeddings, config.dimensions)
    dim, kept = fitted.map.matrix.shape
    if fitted.rank < dim:
        logging.info(
            "the embeddings of %d sentences vary in %d of %d directions; the others cannot be "
            "whitened and are left out",
            len(embeddings),
            fitted.rank,
            dim,
        )
    figures = {"rank": fitted.rank, "explained": fitted.explained}
    files.write_whitening(folder, {**description, **figures}, fitted)
    return (
        f"whitening fitted to {len(embeddings)} sentences: {dim} to {kept} dimensions, which have "
        f"{100 * fitted.explained:.2f}% of the variance"
    )


def _embed_corpus(
    config: FitBaselineOptions, folder: pathlib.Path
) -> tuple[np.ndarray, EncoderGraph]:
    """Embeds the sample, copies the encoder into the folder; also gives the encoder."""
    data_dir = pathlib.Path(config.data_dir)
    source = checkpoints.resolve_checkpoint(config.encoder, "encoder")
    files.refuse_baseline(source, "encoder")
    sentence_modules.refuse_maps(source, "encoder")
    manifest = read_manifest(data_dir, read_vocabulary(source).fingerprint())
    backend = load_checkpoint(
        source,
        ModelOptions(
            model=str(source),
            pooling=config.pooling,
            max_sequence_length=config.max_sequence_length,
            batch_tokens=config.batch_tokens,
        ),
    )
    utterances = sample_utterances(data_dir, manifest, config.max_sentences, config.seed)
    if utterances.nrows() < 2:
        raise InputError(
            f"`data_dir`={data_dir}: expected two distinct utterances or more in the train split, "
            f"found {int(utterances.nrows())}"
        )
    token_ids = _cut(utterances, backend.graph.max_sequence_length)
    lengths = token_ids.row_lengths().numpy()
    progress = Progress("tokens of the corpus")
    embeddings = embed_inputs(backend, token_ids, lengths, progress=progress.update)
    checkpoints.copy_checkpoint(source, folder)
    return embeddings, backend.graph


def _cut(token_ids: tf.RaggedTensor, length: int) -> tf.RaggedTensor:
    """Utterances `[n, (tokens)]` of at most so many tokens, the last one, [SEP], kept."""
    return tf.concat([token_ids[:, :-1][:, : length - 1], token_ids[:, -1:]], axis=1)
