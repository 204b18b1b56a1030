"""The job that merges a trained encoder with the one it started from, or centres an encoder."""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from dcse_tf.baselines.files import refuse_baseline
from dcse_tf.baselines.fit_baseline import embed_utterances
from dcse_tf.bert import checkpoints, sentence_modules
from dcse_tf.bert.tokenizer import number_as_written, read_vocabulary
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.bert.weights import read_bert_tensors, shift_tokens, write_bert
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.prepare import VOCABULARY_FOLDER
from dcse_tf.data.utterance_sample import sample_utterances
from dcse_tf.encoder.checkpoint import load_checkpoint
from dcse_tf.encoder.graph import GraphBackend
from dcse_tf.encoder.load import refuse_reranker
from dcse_tf.encoder.options import ModelOptions
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.evaluation.metrics import Encode
from dcse_tf.files import atomic_directory
from dcse_tf.matching.head_files import HeadMaps, center_heads, read_heads, write_heads
from dcse_tf.training.merge_options import MergeOptions
from dcse_tf.training.merge_share import (
    Choice,
    Judge,
    Measured,
    compare_shares,
    describe_measured,
    read_judge,
)
from dcse_tf.training.merging import MergeRecord, Origin, average_tensors, require_alike

SHARES_FILE = "shares.json"


@dataclasses.dataclass(frozen=True)
class Merged:
    """What `merge` wrote.

    Attributes:
        folder: the folder of the encoder.
        share: the weight of the trained encoder; 0 if the start was only centred.
        choice: how the share was chosen; None if it was given.
    """

    folder: pathlib.Path
    share: float
    choice: Choice | None


@dataclasses.dataclass(frozen=True)
class _Checkpoint:
    """An encoder to merge: its name as given, folder, vocabulary, configuration and weights."""

    name: str
    folder: pathlib.Path
    vocabulary: Vocabulary
    config: dict[str, Any]
    tensors: dict[str, np.ndarray]

    @property
    def modules(self) -> sentence_modules.SentenceModules | None:
        return sentence_modules.read_modules(self.folder)

    @property
    def pooling(self) -> str:
        return self.modules.pooling if self.modules else "mean"

    def describe(self) -> Origin:
        return Origin(self.name, checkpoints.hash_files(self.folder))


def merge(options: MergeOptions) -> Merged:
    """Writes (1 - share) start + share trained as an encoder, with `center` also centred.

    The mean that is subtracted is that of sentence embeddings, because it is their cosines that
    matter. The mean of token embeddings differs: it gives long sentences more weight. Subtracting a
    constant from all tokens shifts their mean and [CLS] alike, so both poolings are centred.

    Raises:
        InputError: an encoder, the corpus or a guard cannot be used, or the encoders differ in
            architecture or vocabulary.
        FileExistsError: the output exists and may not be replaced.
    """
    start = _read(options.start, "start")
    trained = _read(options.trained, "trained") if options.trained else start
    _require_pair(start, trained)
    if options.data_dir:  # the corpus' prefix becomes the encoder's
        prefix = sentence_modules.read_prefix(pathlib.Path(options.data_dir) / VOCABULARY_FOLDER)
        trained = dataclasses.replace(trained, vocabulary=trained.vocabulary.with_prefix(prefix))
    corpus = _Corpus(options, trained) if options.needs_data else None
    judge = read_judge(options) if options.is_auto else None

    with atomic_directory(pathlib.Path(options.output_dir), options.overwrite) as folder:
        _copy_rest(folder, trained)
        choice = _choose(options, start, trained, corpus, judge) if judge and corpus else None
        share = choice.share if choice else options.share if options.trained else 0.0
        tensors = average_tensors(start.tensors, trained.tensors, share)
        record = MergeRecord(
            start.describe(), trained.describe() if options.trained else None, share
        )
        if options.center and corpus:
            mean = corpus.mean_embedding(_load(trained, tensors))
            tensors = shift_tokens(tensors, trained.config["num_hidden_layers"], mean)
            if heads := read_heads(folder):
                write_heads(folder, center_heads(heads, mean))
            record = dataclasses.replace(
                record, centered_on=corpus.fingerprint, utterances=corpus.utterances
            )
        write_bert(folder, trained.config, tensors)
        record.write(folder)
        if choice:
            text = json.dumps(choice.to_dict(), indent=1, ensure_ascii=False) + "\n"
            (folder / SHARES_FILE).write_text(text, encoding="utf-8")
    return Merged(pathlib.Path(options.output_dir), share, choice)


def _read(name: str, option: str) -> _Checkpoint:
    folder = checkpoints.resolve_checkpoint(name, option)
    refuse_baseline(folder, option)
    refuse_reranker(folder, name, option)
    sentence_modules.refuse_maps(folder, option)
    config = checkpoints.read_config(folder)
    return _Checkpoint(
        name, folder, read_vocabulary(folder), config, read_bert_tensors(folder, config)
    )


def _require_pair(start: _Checkpoint, trained: _Checkpoint) -> None:
    """Refuses encoders that cannot be merged; warns if their pooling differs."""
    problem = f"`trained`={trained.name}: is not an encoder like `start`={start.name}"
    require_alike(start.config, trained.config, problem)
    fingerprints = [each.vocabulary.with_prefix("").fingerprint() for each in (start, trained)]
    if fingerprints[0] != fingerprints[1]:
        raise InputError(
            f"{problem}: another vocabulary; expected an encoder trained from this start"
        )
    if start.pooling != trained.pooling:
        logging.warning(
            "%s pools by %s and %s by %s; the merged encoder will pool like the latter",
            *(start.name, start.pooling, trained.name, trained.pooling),
        )


def _copy_rest(folder: pathlib.Path, trained: _Checkpoint) -> None:
    """Copies everything except the weights from the trained encoder."""
    checkpoints.copy_checkpoint(trained.folder, folder, weights=False)
    number_as_written(trained.vocabulary, trained.config).write(folder)
    length = checkpoints.read_max_sequence_length(trained.folder)
    checkpoints.write_max_sequence_length(folder, length)
    if trained.modules:
        sentence_modules.write_modules(folder, trained.modules, trained.config["hidden_size"])


def _load(trained: _Checkpoint, tensors: dict[str, np.ndarray]) -> GraphBackend:
    """Loads the trained encoder with the given weights instead of its own."""
    options = ModelOptions(model=trained.name)
    return load_checkpoint(trained.folder, options, tensors, trained.vocabulary)


class _Corpus:
    """The utterances of a prepared corpus on which encoders are centred.

    Raises:
        InputError: the corpus does not fit the encoder, or has no utterance.

    Attributes:
        fingerprint: the corpus' fingerprint.
        utterances: the number of utterances used; 0 without `center`.
    """

    def __init__(self, options: MergeOptions, trained: _Checkpoint):
        data_dir = pathlib.Path(options.data_dir)
        manifest = read_manifest(data_dir, trained.vocabulary.fingerprint())
        self.fingerprint = manifest.corpus_fingerprint
        self._token_ids: tf.RaggedTensor | None = None
        self.utterances = 0
        if options.center:
            self._token_ids = sample_utterances(
                data_dir, manifest, options.max_utterances, options.seed
            )
            self.utterances = int(self._token_ids.nrows())
            if not self.utterances:
                raise InputError(f"`data_dir`={data_dir}: the train split has no utterance")

    def mean_embedding(self, encoder: GraphBackend) -> np.ndarray:
        """The mean sentence embedding, float64 `[dim]`."""
        return embed_utterances(encoder, self._token_ids).mean(axis=0, dtype=np.float64)


def _choose(
    options: MergeOptions,
    start: _Checkpoint,
    trained: _Checkpoint,
    corpus: _Corpus,
    judge: Judge,
) -> Choice:
    """Measures the start and every share, and chooses one.

    Share 0 is the start's weights with what all shares have: the projection heads of the trained
    encoder, if any, and with `center` a mean of zero. So neither counts as a gain of a share.
    """
    heads = read_heads(trained.folder)

    def embed(tensors: dict[str, np.ndarray]) -> tuple[GraphBackend, Encode]:
        backend = _load(trained, tensors)
        return backend, judge.embed(SentenceEncoder(backend).encode)

    def finish(backend: GraphBackend, look_up: Encode) -> tuple[Encode, HeadMaps | None]:
        if not options.center:
            return look_up, heads
        mean = corpus.mean_embedding(backend)
        return lambda texts: look_up(texts) - mean, center_heads(heads, mean) if heads else None

    def measure(name: str, look_up: Encode, heads: HeadMaps | None = None) -> Measured:
        found = judge.measure(look_up, heads)
        logging.info("%s: %s", name, describe_measured(found))
        return found

    plain = embed(start.tensors)
    as_it_is = base = measure("the start", plain[1])
    if options.center or heads:
        base = measure("share 0", *finish(*plain))
    shares = {}
    for share in options.list_shares():
        tensors = average_tensors(start.tensors, trained.tensors, share)
        shares[share] = measure(f"share {share:g}", *finish(*embed(tensors)))
    return compare_shares(judge, as_it_is, base, shares, options.keep, options.guard_tolerance)
