"""The job that fits a baseline to the sentences of a corpus."""

import dataclasses
import pathlib

import numpy as np

from dcse_tf.baselines.registry import (
    BASELINES,
    BaselineOptions,
    FittedToEmbeddings,
    refuse_baseline,
    write_baseline,
)
from dcse_tf.bert import checkpoints, sentence_modules
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.records import sample_utterances
from dcse_tf.encoder.graph import EncoderGraph, load_graph
from dcse_tf.files import atomic_directory
from dcse_tf.progress import Progress


def fit_baseline(options: BaselineOptions) -> str:
    """Fits a baseline, given its own options, and writes it to a folder that other jobs take as
    `model`; returns a sentence about the fit. See `dcse_tf.fit_baseline`.
    """
    spec = next(each for each in BASELINES.values() if each.options is type(options))
    with atomic_directory(pathlib.Path(options.output_dir), options.overwrite) as folder:
        if not isinstance(options, FittedToEmbeddings):
            fitted = spec.fit(options, None)
            write_baseline(folder, spec.name, fitted, None, options)
            return fitted.summary
        source = checkpoints.resolve_checkpoint(options.encoder, "encoder")
        refuse_baseline(source, "encoder")
        sentence_modules.refuse_maps(source, "encoder")
        encoder = load_graph(source, options, options.batch_tokens)
        fitted = spec.fit(options, EncodedCorpus(options, encoder))
        checkpoints.copy_checkpoint(source, folder)
        checkpoints.write_max_sequence_length(folder, encoder.max_sequence_length)
        sentence_modules.write_prefix(folder, encoder.vocabulary.prefix)
        write_baseline(folder, spec.name, fitted, encoder.pooling, options)
    return fitted.summary


@dataclasses.dataclass(frozen=True)
class EncodedCorpus:
    """The sentences that a baseline is fitted to: distinct utterances of the train split."""

    options: FittedToEmbeddings
    encoder: EncoderGraph

    def embeddings(self) -> np.ndarray:
        """The encoder's embeddings of the utterances, float32 `[utterances, dim]`."""
        options, data_dir = self.options, pathlib.Path(self.options.data_dir)
        manifest = read_manifest(data_dir, self.encoder.vocabulary.fingerprint())
        token_ids = sample_utterances(data_dir, manifest, options.max_sentences, options.seed)
        read = self.encoder.read_tokens(token_ids)  # cut to the encoder's longest length
        progress = Progress("tokens of the corpus")
        return self.encoder.embed_inputs(*read, progress=progress.update)
