"""What scores the sequences of a re-ranker; TensorFlow is imported only for a checkpoint."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dcse_tf.bert import checkpoints
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.vocabulary import END_OF_TURN, Vocabulary
from dcse_tf.bert.weights import head_shapes, read_bert_tensors, read_tensors
from dcse_tf.encoder.backend import hash_arrays
from dcse_tf.encoder.exported_models import INPUTS, OnnxFile, is_onnx
from dcse_tf.errors import InputError
from dcse_tf.reading import reranker_files
from dcse_tf.reading.reranker_files import RERANKER_FILE, RerankerSettings

if TYPE_CHECKING:
    import tensorflow as tf

    from dcse_tf.bert.fused_bert import FusedBert
    from dcse_tf.reading.cross_encoder import ReaderScorer

BERT, LSTMS = "bert", ("dual_lstm", "esim")
# The inputs and the output of a re-ranker's ONNX model, besides an encoder's inputs.
SEGMENTS, SPEAKERS, OUTPUT = "token_type_ids", "speaker_ids", "scores"


@dataclasses.dataclass
class Scorer:
    """Scores the sequences of a `Reranker`."""

    # Maps token_ids, segment_ids and speaker_ids int32, and padding_mask bool, each `[pairs,
    # tokens]`, by name to logits, float32 `[pairs]`; speaker_ids is 0 for what the responder says,
    # else 1.
    score: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    fingerprint: Callable[[], str]  # of everything the scores depend on; empty in training
    # `compute_dtype` of an export, None if the model has changed since.
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class RerankerFolder:
    """A re-ranker's folder, and what is in it besides its weights: settings, and a vocabulary that
    has [EOT] and no prefix, see `PairRule`.
    """

    path: pathlib.Path
    settings: RerankerSettings
    vocabulary: Vocabulary


def read_reranker(name: str, option: str) -> RerankerFolder:
    """Finds a re-ranker, an ONNX export or what `resolve_checkpoint` takes, and reads what is
    beside its weights; `option` is the option that gives the name. Raises InputError if there is
    none, it is an encoder or a SavedModel, or a file is damaged.
    """
    folder = pathlib.Path(name)
    if (folder / checkpoints.SAVED_MODEL_FILE).is_file():
        raise InputError(
            f"`{option}`={name}: is a SavedModel, for servers; expected a re-ranker's run "
            "directory, its checkpoint folder or its export to ONNX"
        )
    if not is_onnx(folder):
        folder = checkpoints.resolve_checkpoint(name, option)
    if not reranker_files.is_reranker(folder):
        raise InputError(
            f"`{option}`={name}: is a sentence encoder, not a re-ranker: it has no {RERANKER_FILE}"
        )
    vocabulary = read_vocabulary(folder)
    if END_OF_TURN not in vocabulary.tokens:
        raise InputError(f"{folder}: the vocabulary lacks {END_OF_TURN}, which ends every turn")
    settings = reranker_files.read_reranker_settings(folder)
    return RerankerFolder(folder, settings, vocabulary.with_prefix(""))


def load_onnx_scorer(folder: RerankerFolder) -> Scorer:
    """Scores by an ONNX export; raises InputError if it is damaged, see `OnnxFile`."""
    speakers = {SPEAKERS: "speaker_ids"} if folder.settings.speakers else {}
    inputs = dict(zip(INPUTS, ("token_ids", "padding_mask"))) | {SEGMENTS: "segment_ids"} | speakers
    file = OnnxFile(folder.path, tuple(inputs), OUTPUT, "a re-ranker")
    facts = dataclasses.asdict(folder.settings), folder.vocabulary.fingerprint()
    return Scorer(
        lambda sequences: file.run(*(sequences[name] for name in inputs.values())),
        functools.partial(file.fingerprint, *facts),
        {"compute_dtype": file.written.get("compute_dtype")},
    )


def load_checkpoint_scorer(folder: RerankerFolder, compute_dtype: str = "float32") -> Scorer:
    """Scores by a checkpoint's weights; for arguments and errors, see `build_model`."""
    fingerprint = functools.partial(hash_reranker, folder)
    return make_graph_scorer(build_model(folder, compute_dtype).score, fingerprint)


def make_graph_scorer(
    score: "Callable[[dict[str, tf.Tensor]], tf.Tensor]", fingerprint: Callable[[], str] = str
) -> Scorer:
    """Scores by a function in TensorFlow's graph from the inputs of `Scorer.score` to logits, such
    as that of a model in training: its weights may change between calls.
    """
    import tensorflow as tf

    ids = tf.TensorSpec([None, None], tf.int32)
    signature = dict.fromkeys(("token_ids", "segment_ids", "speaker_ids"), ids)
    signature |= {"padding_mask": tf.TensorSpec([None, None], tf.bool)}
    compute = tf.function(score, input_signature=[signature], autograph=False)
    return Scorer(lambda x: compute({k: tf.constant(v) for k, v in x.items()}).numpy(), fingerprint)


def build_model(
    folder: RerankerFolder, compute_dtype: str = "float32", hold: Any = None
) -> "FusedBert | ReaderScorer":
    """Builds the model of a checkpoint, with a function `score` from sequences to logits, `hold` as
    `FusedBert` does. Raises InputError if a file is damaged, the architecture does not support
    `compute_dtype`, or a sequence can have more tokens than the BERT has positions.
    """
    from dcse_tf.bert.fused_bert import FusedBert

    tensors, settings = read_weights(folder), folder.settings
    if settings.architecture == BERT:
        config = checkpoints.read_config(folder.path)
        longest = settings.first_tokens + settings.second_tokens
        if longest > (positions := config["max_position_embeddings"]):
            told = f"{folder.path / RERANKER_FILE}: first_tokens and second_tokens are {longest}"
            raise InputError(f"{told} together, but the BERT has {positions} positions")
        return FusedBert(tensors, config, compute_dtype, hold)
    if compute_dtype != "float32":
        raise InputError(
            f"`compute_dtype`={compute_dtype}: {settings.architecture} computes in float32"
        )
    from dcse_tf.reading.cross_encoder import ReaderScorer, build_head, read_with_matcher
    from dcse_tf.reading.matchers import read_matcher

    return ReaderScorer(read_with_matcher(read_matcher(folder.path)), build_head(tensors))


def read_weights(folder: RerankerFolder) -> dict[str, np.ndarray]:
    """The weights that scores depend on; a BERT's by HuggingFace's names without "bert."."""
    architecture = folder.settings.architecture
    if architecture == BERT:
        config = checkpoints.read_config(folder.path)
        heads = head_shapes(config["hidden_size"], folder.settings.speakers)
        return read_bert_tensors(folder.path, config, heads)
    if architecture in LSTMS:
        return read_tensors(folder.path)
    raise InputError(
        f"{folder.path / RERANKER_FILE}: architecture {architecture!r:.40}, expected "
        f"{' or '.join((BERT, *LSTMS))}"
    )


def hash_reranker(folder: RerankerFolder) -> str:
    """SHA-256 over everything that scores depend on: the values, not the files."""
    if folder.settings.architecture == BERT:
        config = checkpoints.read_config(folder.path)
        facts = {name: config[name] for name in ("num_attention_heads", "layer_norm_eps")}
        facts["approximate_gelu"] = checkpoints.approximates_gelu(config)
    else:
        facts = reranker_files.read_matcher_settings(folder.path)
    settings = dataclasses.asdict(folder.settings)
    settings |= {**facts, "vocabulary": folder.vocabulary.fingerprint()}
    return hash_arrays(read_weights(folder), settings)
