"""The job that fits a baseline to the sentences of a corpus."""

import functools
import pathlib

import numpy as np
import tensorflow as tf

from dcse_tf.baselines.registry import (
    BASELINES,
    BaselineOptions,
    FittedToEmbeddings,
    FittedToTexts,
    refuse_baseline,
    write_baseline,
)
from dcse_tf.bert import checkpoints, sentence_modules
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.utterance_sample import sample_utterances, spell_utterances
from dcse_tf.encoder.checkpoint import load_checkpoint
from dcse_tf.encoder.graph import GraphBackend
from dcse_tf.encoder.model_options import ModelOptions
from dcse_tf.errors import InputError
from dcse_tf.files import atomic_directory
from dcse_tf.progress import Progress


def fit_baseline(options: BaselineOptions) -> str:
    """Fits a baseline and writes it to a folder that other jobs take as `model`.

    Args:
        options: the options of a registered baseline, such as `WhiteningOptions`.

    Returns:
        A one-sentence summary of what was fitted.

    Raises:
        InputError: the encoder, the corpus or the vectors cannot be used.
        FileExistsError: the output exists and may not be replaced.
    """
    spec = next(each for each in BASELINES.values() if each.options is type(options))
    with atomic_directory(pathlib.Path(options.output_dir), options.overwrite) as folder:
        corpus = Corpus(options)
        fitted = spec.fit(options, corpus)
        pooling = None
        if spec.make_layer:
            graph = corpus.encoder.graph
            assert graph.source
            checkpoints.copy_checkpoint(graph.source, folder)
            checkpoints.write_max_sequence_length(folder, graph.max_sequence_length)
            sentence_modules.write_prefix(folder, graph.vocabulary.prefix)
            pooling = graph.pooling
        write_baseline(folder, spec.name, fitted, pooling, options)
    return fitted.summary


class Corpus:
    """The sentences that a baseline is fitted to: distinct utterances of the train split.

    Its methods compute their result when called, for the same utterances in the same order.

    Args:
        options: the baseline's options.
    """

    def __init__(self, options: BaselineOptions):
        self._options = options

    def texts(self) -> list[str]:
        """The utterances, spelled from their tokens. The options must be a `FittedToTexts`."""
        assert isinstance(self._options, FittedToTexts)
        vocabulary = read_vocabulary(pathlib.Path(self._options.data_dir) / "vocabulary")
        return spell_utterances(self._token_ids, vocabulary)

    def embeddings(self) -> np.ndarray:
        """The encoder's embeddings, float32 `[utterances, dim]`. The options must be a
        `FittedToEmbeddings`.
        """
        return embed_utterances(self.encoder, self._token_ids)

    @functools.cached_property
    def encoder(self) -> GraphBackend:
        """The encoder, which is not trained."""
        options = self._options
        assert isinstance(options, FittedToEmbeddings)
        source = checkpoints.resolve_checkpoint(options.encoder, "encoder")
        refuse_baseline(source, "encoder")
        sentence_modules.refuse_maps(source, "encoder")
        names = ("pooling", "prefix", "max_sequence_length", "batch_tokens")
        settings = {name: getattr(options, name) for name in names}
        return load_checkpoint(source, ModelOptions(model=options.encoder, **settings))

    @functools.cached_property
    def _token_ids(self) -> tf.RaggedTensor:
        options = self._options
        assert isinstance(options, FittedToTexts)
        data_dir = pathlib.Path(options.data_dir)
        vocabulary = None
        if isinstance(options, FittedToEmbeddings):
            vocabulary = self.encoder.graph.vocabulary.fingerprint()
        manifest = read_manifest(data_dir, vocabulary)
        found = sample_utterances(data_dir, manifest, options.max_sentences, options.seed)
        if found.nrows() < 2:
            raise InputError(
                f"`data_dir`={data_dir}: expected at least two distinct utterances in the train "
                f"split, found {int(found.nrows())}"
            )
        return found


def embed_utterances(encoder: GraphBackend, token_ids: tf.RaggedTensor) -> np.ndarray:
    """Embeds utterances of a corpus prepared with the encoder's vocabulary, cut to its length.

    Args:
        encoder: the encoder.
        token_ids: int32 `[utterances, (tokens)]`, with [CLS] and [SEP].

    Returns:
        float32 `[utterances, dim]`.
    """
    progress = Progress("tokens of the corpus")
    return encoder.embed_inputs(*encoder.read_tokens(token_ids), progress=progress.update)
