"""The job that fits a baseline to the sentences of a corpus."""

import pathlib
import types

import numpy as np

from dcse_tf.baselines import registry
from dcse_tf.bert import checkpoints, sentence_modules
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.records import sample_utterances
from dcse_tf.encoder.graph import load_graph
from dcse_tf.encoder.load import refuse_reranker, resolve_transformer
from dcse_tf.files import atomic_directory
from dcse_tf.progress import Progress


def fit_baseline(options: registry.BaselineOptions) -> str:
    """Fits a baseline, given its own options, and writes it to a folder that other jobs take as
    `model`; returns a sentence about the fit. See `dcse_tf.fit_baseline`.
    """
    spec = next(each for each in registry.BASELINES.values() if each.options is type(options))
    with atomic_directory(pathlib.Path(options.output_dir), options.overwrite) as folder:
        corpus = pooling = None
        if isinstance(options, registry.FittedToEmbeddings):
            source, _ = resolve_transformer(options.encoder, "encoder")
            refuse_reranker(source, options.encoder, "encoder")
            encoder = load_graph(source, options, options.batch_tokens)

            def embed() -> np.ndarray:  # distinct utterances of train, [utterances, dim]
                data_dir, size = pathlib.Path(options.data_dir), options.max_sentences
                manifest = read_manifest(data_dir, encoder.vocabulary.fingerprint())
                token_ids = sample_utterances(data_dir, manifest, size, options.seed)
                read = encoder.read_tokens(token_ids)  # cut to the encoder's longest length
                return encoder.embed_inputs(*read, progress=Progress("tokens of the corpus").update)

            corpus, pooling = types.SimpleNamespace(embeddings=embed), encoder.pooling
            checkpoints.copy_checkpoint(source, folder)
            checkpoints.write_max_sequence_length(folder, encoder.max_sequence_length)
            sentence_modules.write_prefix(folder, encoder.vocabulary.prefix)
        fitted = spec.fit(options, corpus)
        registry.write_baseline(folder, spec.name, fitted, pooling, settings=options.to_dict())
    return fitted.summary
