"""The TensorFlow graph from strings to sentence embeddings, and its loading from a checkpoint or a
baseline that was fitted to one.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from dcse_tf.baselines.registry import is_baseline, read_baseline
from dcse_tf.bert.checkpoints import approximates_gelu, read_config, read_max_sequence_length
from dcse_tf.bert.encoder_options import EncoderOptions
from dcse_tf.bert.fused_bert import FusedBert, Hold
from dcse_tf.bert.sentence_modules import read_modules
from dcse_tf.bert.token_rows import TokenRows, UnknownTokens
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.vocabulary import NO_CANDIDATE, Vocabulary, is_blank
from dcse_tf.bert.weights import read_bert_tensors
from dcse_tf.encoder.backend import BATCH_TOKENS, Backend, batch_by_length, hash_arrays, hash_maps
from dcse_tf.errors import InputError
from dcse_tf.matching import equations
from dcse_tf.matching.head_files import read_heads
from dcse_tf.matching.heads import AffineMaps
from dcse_tf.progress import Progress

_CHUNK = 1000  # contexts whose token embeddings are held in memory at a time
_ROWS = 16  # contexts matched at a time


@dataclasses.dataclass(eq=False, repr=False)
class EncoderGraph(Backend):
    """Tokenizer, BERT and pooling, as they are trained, evaluated, exported and served.

    The weights may change between calls, as they do during training.
    """

    bert: Callable[..., tf.Tensor]  # see `build_bert_encoder`; or a `FusedBert`, which is faster
    vocabulary: Vocabulary
    max_sequence_length: int  # longest sentence in tokens; the rest is cut off
    pooling: str  # "mean" over the last layer's real tokens, including [CLS] and [SEP], or "cls"
    # Applied to the pooled embeddings, float `[n, dim]` to `[n, k]`.
    postprocessing: keras.layers.Layer | None = None
    attention: equations.TurnAttention | None = None  # of the matching; None for the mean
    source: pathlib.Path | None = None  # the weights' checkpoint; None while they are being trained
    postprocessing_fingerprint: str = ""  # a hash of what the postprocessing computes
    maps_tokens: bool = False  # whether it is applied to the token embeddings, as in a training
    batch_tokens: int = BATCH_TOKENS
    compute_dtype: str = "float32"  # what `bert` computes in

    def __post_init__(self) -> None:
        names = "max_sequence_length", "pooling", "compute_dtype"
        settings = {name: getattr(self, name) for name in names}
        settings |= {"prefix": self.vocabulary.prefix} if self.vocabulary.prefix else {}
        super().__init__(self.batch_tokens, settings, self._hash)
        self.tokenizer = self.vocabulary.make_tokenizer()
        # With postprocessing that was fitted to sentence embeddings, there is no matching; nor
        # heads, or with [CLS], on whose embeddings they were not trained.
        if not self.postprocessing or self.maps_tokens:
            self.match = self.score
            if self.source and self.pooling == "mean":
                self.heads = read_heads(self.source)
        self._unknown = UnknownTokens.of(self.vocabulary)
        self._tokenize = self.tokenizer.as_graph(self.max_sequence_length)
        ids = [tf.TensorSpec([None, None], tf.int32)]
        self._pool = tf.function(self.pool_tokens, input_signature=ids, autograph=False)
        self._encode = tf.function(self.encode_tokens, input_signature=ids, autograph=False)
        self._matching: Any = None

    def tokenize(self, sentences: tf.Tensor) -> tf.RaggedTensor:
        """Tokenizes strings `[n]` to token ids, int32 `[n, (tokens)]`."""
        return self.tokenizer.tokenize(sentences, self.max_sequence_length)[0]

    def encode_tokens(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Encodes token ids, int32 `[n, tokens]`, to float32 `[n, tokens, dim]`.

        Also returns the mask, bool `[n, tokens]`, True for real tokens. If none is given, tokens
        with the id 0 are padding.
        """
        padding_mask = token_ids != 0 if padding_mask is None else padding_mask
        inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
        embeddings = tf.cast(self.bert(inputs, training=False), tf.float32)
        if self.postprocessing and self.maps_tokens:
            embeddings = self.postprocessing(embeddings)
        return embeddings, padding_mask

    def pool_tokens(self, token_ids: tf.Tensor, padding_mask: tf.Tensor | None = None) -> tf.Tensor:
        """Sentence embeddings float32 `[n, dim]`, not normalised; see `encode_tokens`."""
        embeddings, padding_mask = self.encode_tokens(token_ids, padding_mask)
        if self.pooling == "cls":
            # Equal to [:, 0], but also works for an empty batch, which has no columns.
            pooled = tf.reduce_sum(embeddings[:, :1], axis=1)
        else:
            pooled = equations.masked_mean(embeddings, padding_mask)
        if self.postprocessing is None or self.maps_tokens:
            return pooled
        return tf.cast(self.postprocessing(pooled), tf.float32)

    def _hash(self) -> str:
        """SHA-256 over everything that the sentence embeddings depend on.

        It is a hash of values, not of files: an export has its checkpoint's fingerprint, unless it
        changes the embeddings. The compute dtype is not part of it.
        """
        if self.source is None:
            raise ValueError("only an encoder that was read from a checkpoint has a fingerprint")
        config = read_config(self.source)
        settings = {
            "vocabulary": self.vocabulary.fingerprint(),
            "max_sequence_length": self.max_sequence_length,
            "pooling": self.pooling,
            "num_attention_heads": config["num_attention_heads"],
            "layer_norm_eps": config["layer_norm_eps"],
            "approximate_gelu": approximates_gelu(config),
            "postprocessing": self.postprocessing_fingerprint,
        }
        return hash_arrays(read_bert_tensors(self.source, config), settings)

    def read(self, texts: list[str]) -> tuple[TokenRows, np.ndarray, np.ndarray]:
        # Byte pairs take memory for words times the longest word: of a part at a time.
        parts = (tf.constant(texts[n : n + 1000]) for n in range(0, len(texts), 1000))
        found = zip(*map(self._tokenize, parts), strict=True)
        token_ids, truncated = (tf.concat(each, axis=0) for each in found)
        rows = TokenRows(token_ids.values.numpy(), token_ids.row_splits.numpy())
        self._unknown.add(rows.values, len(texts))
        return rows, rows.lengths, truncated.numpy()

    def read_tokens(self, token_ids: tf.RaggedTensor) -> tuple[TokenRows, np.ndarray]:
        """Like `read`, for sentences that are already tokenized: int32 `[n, (tokens)]`, with [CLS]
        and [SEP]; without saying which are truncated.
        """
        # Truncation keeps the last token, [SEP].
        first = token_ids[:, :-1][:, : self.max_sequence_length - 1]
        token_ids = tf.concat([first, token_ids[:, -1:]], axis=1)
        rows = TokenRows(token_ids.values.numpy(), token_ids.row_splits.numpy())
        return rows, rows.lengths

    def embed(self, inputs: TokenRows, tokens: int) -> np.ndarray:
        return self._pool(inputs.to_table(tokens)).numpy()

    def embed_tokens(self, texts: list[str]) -> dict[str, np.ndarray]:
        """Text -> its token embeddings, float32 `[tokens, dim]`, without padding."""
        texts = sorted(set(texts))
        rows, lengths, _ = self.read(texts)
        encoded = {}
        for places in batch_by_length(lengths, self.batch_tokens):
            table, _ = self._encode(rows[places].to_table(int(lengths[places[-1]])))
            for place, embeddings in zip(places, table.numpy(), strict=True):
                encoded[texts[place]] = embeddings[: lengths[place]].copy()
        return encoded

    def score(
        self, contexts: list[list[str]], candidates: list[list[str]], chunk: int = _CHUNK
    ) -> np.ndarray:
        """The matching similarity, see `Match`; blank texts are no turns, and the worst candidates.

        In a chunk, the contexts whose token embeddings are held in memory at a time, every distinct
        text is encoded once.
        """
        scores, progress = [], Progress("contexts", len(contexts))
        contexts = [[turn for turn in context if not is_blank(turn)] for context in contexts]
        pairs = list(zip(contexts, candidates, strict=True))
        for begin in range(0, len(pairs), chunk):
            part = pairs[begin : begin + chunk]
            encoded = self.embed_tokens([t for pair in part for group in pair for t in group])
            for start in range(0, len(part), _ROWS):
                rows = part[start : start + _ROWS]
                texts = sorted({text for pair in rows for group in pair for text in group})
                place = {text: index for index, text in enumerate(texts)}
                turns, responses = ([[place[t] for t in g] for g in side] for side in zip(*rows))
                table = tf.ragged.stack([encoded[text] for text in texts])
                ragged = tf.ragged.constant(turns, tf.int32)
                if self._matching is None:
                    matching = equations.build_matching(encoded[texts[0]].shape[1], self.attention)
                    self._matching = tf.function(matching, reduce_retracing=True)
                similarity = self._matching(
                    {
                        "token_embeddings": table.to_tensor(),
                        "padding_mask": tf.sequence_mask(table.row_lengths()),
                        "context_index": ragged.to_tensor(),
                        "turn_mask": tf.sequence_mask(ragged.row_lengths()),
                        "candidate_index": tf.constant(responses),
                    }
                )
                scores.append(similarity.numpy())
                progress.update(begin + start + len(rows))
        blank = [[is_blank(text) for text in group] for group in candidates]
        return np.where(blank, np.float32(NO_CANDIDATE), np.concatenate(scores))


def load_graph(
    folder: pathlib.Path,
    options: EncoderOptions | None = None,
    batch_tokens: int = BATCH_TOKENS,
    compute_dtype: str = "float32",
    hold: Hold | None = None,
) -> EncoderGraph:
    """Loads a folder that holds a BERT, see `find_folder`, and maybe a baseline that was fitted to
    it, by the checkpoint's own options unless others are given; for the rest see `EncoderGraph`,
    `FusedBert` and, for errors, `load_backend`.
    """
    config, options = read_config(folder), options or EncoderOptions()
    bert = FusedBert(read_bert_tensors(folder, config), config, compute_dtype, hold)
    positions = config["max_position_embeddings"]
    length = options.max_sequence_length or min(read_max_sequence_length(folder), positions)
    if length > positions:
        raise InputError(f"`max_sequence_length`={length}: {folder} has {positions} positions")
    vocabulary = read_vocabulary(folder)
    if options.prefix:
        vocabulary = vocabulary.with_prefix(options.prefix)
    vocabulary.require_room(length)
    pooling, layer, fingerprint = _read_pooling(folder, options, config["hidden_size"])
    # A run that began with Dense modules was trained behind them, not behind a head or a baseline.
    trained = equations.has_matching(folder) or bool(read_heads(folder))
    maps_tokens = trained and not options.projection and not is_baseline(folder)
    return EncoderGraph(
        *(bert, vocabulary, length, pooling, layer, equations.read_attention(folder), folder),
        *(fingerprint, maps_tokens, batch_tokens, compute_dtype),
    )


def _read_pooling(
    folder: pathlib.Path, options: EncoderOptions, dim: int
) -> tuple[str, keras.layers.Layer | None, str]:
    """The pooling, "mean" or "cls"; the layer applied to pooled embeddings `[n, dim]`, if any; and
    a hash of what it computes: as the user asks, or by default as the checkpoint was made.
    """
    side, fitted = options.projection, is_baseline(folder)
    heads = read_heads(folder) if side and not fitted else {}
    if side and not heads:
        raise InputError(
            f"`projection`={side}: {folder} has no projection heads; expected the run of a "
            "training with `projection_dim`"
        )
    if fitted:
        baseline = read_baseline(folder)
        pooling, layer = str(baseline.pooling), baseline.make(dim)
        fingerprint = hash_arrays(baseline.fitted.tensors, baseline.fitted.facts)
    else:
        modules = read_modules(folder, dim)
        maps = (*modules.maps, *(heads[side] if side else ()))
        layer = AffineMaps(maps, name=f"{side}_head" if side else "dense") if maps else None
        pooling, fingerprint = "mean" if side else modules.pooling or "mean", hash_maps(maps)
        if modules.unit_norm and not side:
            what = "%s has Normalize; here embeddings keep their length, export has `unit_norm`"
            logging.info(what, folder)
    # What was fitted or trained behind one pooling has no meaning behind another.
    if layer is not None and options.pooling not in ("", pooling):
        raise InputError(f"`pooling`={options.pooling}: {folder} was made for `pooling`={pooling}")
    return options.pooling or pooling, layer, fingerprint
