"""The job that fits a baseline to a corpus, and the sentences that it is fitted to."""

import functools
import pathlib
from typing import TypeVar

import numpy as np
import tensorflow as tf

from dcse_tf.baselines.files import refuse_baseline, write_baseline
from dcse_tf.baselines.registry import (
    BaselineOptions,
    FittedToEmbeddings,
    FittedToTexts,
    find_baseline,
)
from dcse_tf.data.manifest import Manifest, read_manifest
from dcse_tf.data.records import parse_session, shard_paths
from dcse_tf.encoder.batching import embed_inputs
from dcse_tf.encoder.graph import GraphBackend
from dcse_tf.encoder.load import load_checkpoint
from dcse_tf.encoder.options import ModelOptions
from dcse_tf.errors import InputError
from dcse_tf.files import atomic_directory
from dcse_tf.model import checkpoints
from dcse_tf.model.tokenizer import read_vocabulary
from dcse_tf.progress import Progress

T = TypeVar("T", bound=BaselineOptions)


def fit_baseline(options: BaselineOptions) -> str:
    """Fits a baseline and writes it as a folder for `model`.

    Args:
        options: of a registered baseline, for example `WhiteningOptions`.

    Returns:
        What was fitted, in a sentence.

    Raises:
        InputError: the encoder, the corpus or the vectors cannot be used.
        FileExistsError: the output exists and may not be replaced.
    """
    spec = find_baseline(options)
    with atomic_directory(pathlib.Path(options.output_dir), options.overwrite) as folder:
        corpus = _Sample(options)
        fitted = spec.fit(options, corpus)
        pooling = None
        if spec.make_layer:
            pooling = corpus.copy_encoder(folder)
        write_baseline(folder, spec.name, fitted, pooling, options)
    return fitted.summary


class _Sample:
    """The utterances of a corpus that a baseline is fitted to; see `Corpus`."""

    def __init__(self, options: BaselineOptions):
        self._options = options

    def texts(self) -> list[str]:
        options = self._fitted_to(FittedToTexts)
        tokens = read_vocabulary(pathlib.Path(options.data_dir) / "vocabulary").tokens
        pieces = [[tokens[i] for i in ids[1:-1]] for ids in self._token_ids.to_list()]
        return [" ".join(row).replace(" ##", "") for row in pieces]

    def embeddings(self) -> np.ndarray:
        inputs = self._encoder.read_tokens(self._token_ids)
        progress = Progress("tokens of the corpus")
        return embed_inputs(self._encoder, *inputs, progress=progress.update)

    def copy_encoder(self, folder: pathlib.Path) -> str:
        """Copies the encoder's files into a folder; returns its pooling."""
        graph = self._encoder.graph
        assert graph.source
        checkpoints.copy_checkpoint(graph.source, folder)
        checkpoints.write_max_sequence_length(folder, graph.max_sequence_length)
        return graph.pooling

    @functools.cached_property
    def _token_ids(self) -> tf.RaggedTensor:
        options = self._fitted_to(FittedToTexts)
        data_dir = pathlib.Path(options.data_dir)
        vocabulary = None
        if isinstance(options, FittedToEmbeddings):
            vocabulary = self._encoder.graph.vocabulary.fingerprint()
        manifest = read_manifest(data_dir, vocabulary)
        found = sample_utterances(data_dir, manifest, options.max_sentences, options.seed)
        if found.nrows() < 2:
            raise InputError(
                f"`data_dir`={data_dir}: expected at least two distinct utterances in the train "
                f"split, found {int(found.nrows())}"
            )
        return found

    @functools.cached_property
    def _encoder(self) -> GraphBackend:
        options = self._fitted_to(FittedToEmbeddings)
        source = checkpoints.resolve_checkpoint(options.encoder, "encoder")
        refuse_baseline(source, "encoder")
        checkpoints.refuse_maps(source, "encoder")
        return load_checkpoint(
            source,
            ModelOptions(
                model=options.encoder,
                pooling=options.pooling,
                max_sequence_length=options.max_sequence_length,
                batch_tokens=options.batch_tokens,
            ),
        )

    def _fitted_to(self, kind: type[T]) -> T:
        if not isinstance(self._options, kind):
            raise TypeError(f"{type(self._options).__name__} is not a {kind.__name__}")
        return self._options


def sample_utterances(
    folder: pathlib.Path, manifest: Manifest, count: int, seed: int, sessions_at_a_time: int = 256
) -> tf.RaggedTensor:
    """Draws distinct utterances of the train split.

    Token ids and seed give every distinct utterance a key; those with the smallest keys are drawn,
    in the order of their keys. So the first n of a larger sample are the sample of n.

    Args:
        folder: what `prepare_data` wrote.
        manifest: of the folder.
        count: number of utterances, at most; 0 for all.
        seed: decides which.
        sessions_at_a_time: that are read.

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
    for batch in records.ragged_batch(sessions_at_a_time).prefetch(1):
        keys = _draw_keys(batch["utterances"].flat_values.numpy(), seed)
        turns = batch["token_ids"].merge_dims(0, 1)
        ids, splits = turns.values.numpy(), turns.row_splits.numpy()
        for place in np.flatnonzero(keys <= limit):
            # A copy, because a view would keep the whole batch in memory.
            found = ids[splits[place] : splits[place + 1]].copy()
            kept.setdefault(int(keys[place]), found)
        if count and len(kept) > 2 * count:  # only now and then, because it sorts
            kept = {key: kept[key] for key in sorted(kept)[:count]}
            limit = np.uint64(max(kept))
        progress.update(progress.done + int(batch["session"].shape[0]), split.sessions)

    chosen = [kept[key] for key in sorted(kept)[: count or None]]
    values = np.concatenate([np.zeros(0, np.int32), *chosen])
    lengths = np.array([len(ids) for ids in chosen], np.int64)
    return tf.RaggedTensor.from_row_lengths(values, lengths)


def _draw_keys(fingerprints: np.ndarray, seed: int) -> np.ndarray:
    """A random-looking uint64 for each int64, all different (splitmix64; Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = fingerprints.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
