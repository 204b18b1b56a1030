"""Files and heads that several tasks share: an encoder's folder, BERT's prediction head.

Unlike the tasks' own modules, which commands import for their options, this one needs TensorFlow.
"""

import pathlib
from typing import Any

import keras
import keras_hub
from absl import logging

from dcse_tf.bert import bert, checkpoints, masked_lm
from dcse_tf.bert.tokenizer import number_as_written
from dcse_tf.bert.vectors import compute_token_embeddings, fold_case, read_word_vectors
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.bert.weights import SPEAKER_TABLE
from dcse_tf.errors import InputError
from dcse_tf.files import write_json
from dcse_tf.matching.head_files import list_head_maps, write_heads
from dcse_tf.matching.matching import write_matching
from dcse_tf.reading.cross_encoder import Reader, build_speaker_embedding, read_with_bert
from dcse_tf.reading.reranker_files import RerankerSettings, write_reranker_settings
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.tasks.sequence_options import SequenceOptions
from dcse_tf.tasks.spec import Setup


def read_sequences(setup: Setup[SequenceOptions]) -> Reader:
    """BERT as the reader of sequences, with speaker embeddings if the options ask for them."""
    options, speakers = setup.options, None
    if options.speaker_embeddings:
        seed = options.seed + 10
        speakers = build_speaker_embedding(setup.backbone.hidden_dim, seed, setup.tensors)
    elif SPEAKER_TABLE in setup.tensors:
        logging.warning(
            "the encoder has speaker embeddings, which are left out; "
            "`speaker_embeddings` keeps them"
        )
    return read_with_bert(setup.backbone, speakers)


def build_prediction_head(
    setup: Setup[TrainOptions], reader: Reader
) -> keras_hub.layers.MaskedLMHead:
    """BERT's prediction head, from the checkpoint or, if it has none, from random weights."""
    head = masked_lm.build_head(reader.token_embedding, setup.backbone)
    head.build((None, None, reader.dim))
    source = setup.options.encoder or setup.options.encoder_size
    if not masked_lm.load_head(head, setup.tensors, source):
        bert.initialize_weights(masked_lm.own_variables(head), setup.options.seed + 1)
    return head


def read_base_config(setup: Setup[TrainOptions]) -> dict[str, Any]:
    """The content of config.json for the BERT that is trained."""
    backbone = setup.backbone
    if not setup.source:
        sizes = backbone.num_layers, backbone.hidden_dim, backbone.vocabulary_size
        return bert.make_bert_config(*sizes)
    return {**checkpoints.read_config(setup.source), "vocab_size": backbone.vocabulary_size}


def write_sentence_encoder(setup: Setup[TrainOptions], folder: pathlib.Path) -> None:
    """Writes the encoder as an ordinary checkpoint folder, for the options `encoder` and `model`.

    Args:
        setup: the run's setup.
        folder: an empty folder.
    """
    parts = setup.parts
    mean = parts.centering.mean().numpy() if parts.centering else None
    bert.save_backbone(folder, setup.backbone, read_base_config(setup), mean)
    if parts.matching:
        write_matching(folder, parts.matching)
    if parts.heads:
        write_heads(folder, list_head_maps(parts.heads))
    write_tokenization(setup, folder)


def write_tokenization(setup: Setup[TrainOptions], folder: pathlib.Path) -> None:
    """Writes the encoder's vocabulary and the length to which it truncates sentences."""
    number_as_written(setup.vocabulary, read_base_config(setup)).write(folder)
    checkpoints.write_max_sequence_length(folder, setup.manifest.max_sequence_length)


def write_bert_files(setup: Setup[TrainOptions], folder: pathlib.Path, architecture: str) -> None:
    """Writes the files of a BERT's folder other than its weights.

    Args:
        setup: the run's setup.
        folder: an existing folder.
        architecture: the HuggingFace class that the weights are for.
    """
    config = {**read_base_config(setup), "architectures": [architecture]}
    write_json(folder / "config.json", config, sort_keys=True)
    write_tokenization(setup, folder)


def write_reranker_files(
    setup: Setup[TrainOptions], folder: pathlib.Path, settings: RerankerSettings
) -> None:
    """Writes the files of a re-ranker's folder other than its weights.

    Args:
        setup: the run's setup.
        folder: an existing folder.
        settings: the re-ranker's settings.
    """
    if setup.backbone:
        config = {
            **read_base_config(setup),
            "architectures": ["BertForSequenceClassification"],
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "num_labels": 1,
        }
    else:
        # Code that looks for a checkpoint reads config.json: this one says that it is no BERT.
        config = {"model_type": settings.architecture, "vocab_size": len(setup.vocabulary.tokens)}
    write_json(folder / "config.json", config, sort_keys=True)
    setup.vocabulary.write(folder)
    write_reranker_settings(folder, settings)


def start_from_vectors(
    weights: keras.Variable, vocabulary: Vocabulary, options: TrainOptions
) -> None:
    """Initialises token embeddings from a file of word or character vectors."""
    path = pathlib.Path(options.token_vectors)
    vectors = read_word_vectors(path, None)
    if vocabulary.lowercase:
        vectors = fold_case(vectors)
    try:
        embeddings, count = compute_token_embeddings(vectors, vocabulary, weights.numpy())
    except InputError as error:
        raise InputError(f"`token_vectors`={path}: {error}") from error
    weights.assign(embeddings)
    total = len(vocabulary.tokens)
    logging.info(
        "%d of %d entries of the vocabulary (%.1f%%) start from a vector of %s (%d wide, the "
        "encoder %d)",
        count,
        total,
        100.0 * count / total,
        path,
        vectors.matrix.shape[1],
        embeddings.shape[1],
    )
