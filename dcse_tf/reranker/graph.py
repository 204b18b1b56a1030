"""The TensorFlow graph from strings to scores, as it is evaluated, exported and served."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from dcse_tf.bert.blanks import BLANK, NO_CANDIDATE
from dcse_tf.bert.pair_rule import PairRule
from dcse_tf.bert.pairs import end_turns, find_rows, join_turns, place_segments, strip_ends
from dcse_tf.bert.vocabulary import END_OF_TURN, Vocabulary
from dcse_tf.reading.reranker_files import RerankerSettings

_NO_LIMIT = 2**31 - 1


class PairModel(Protocol):
    """The interface of an architecture.

    The arguments of `score` are ragged, int32 `[pairs, (tokens)]`: `first`, the turns of the
    context, each followed by [EOT]; `second`, the response; and `speakers`, for each token of
    `first` 0 if the speaker of the response said it, else 1. They have no [CLS] or [SEP], and are
    not truncated yet.
    """

    def count_tokens(self, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        """The cost of pairs in tokens, int `[pairs]`, from the lengths of their segments."""

    def score(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor, speakers: tf.RaggedTensor
    ) -> tf.Tensor:
        """Logits, float32 `[pairs]`."""


class SequenceScorer(Protocol):
    """Scores sequences, with its own weights."""

    def score(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Logits, float32 `[pairs]`, for inputs from `SequenceModel.make_inputs`."""


class SequenceModel(tf.Module):
    """Scores pairs as sequences [CLS] u1 [EOT] ... um [EOT] [SEP] response [SEP].

    Args:
        scorer: scores the sequences.
        rule: how a pair becomes a sequence.
        speakers: whether the scorer takes speaker ids.
    """

    def __init__(self, scorer: SequenceScorer, rule: PairRule, speakers: bool):
        super().__init__()
        self.scorer = scorer
        self.rule = rule
        self.speakers = speakers

    def count_tokens(self, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        """Tokens of the sequences, int `[pairs]`, from the lengths of their segments."""
        most = self.rule.first_tokens - 2, self.rule.second_tokens - 1
        return tf.minimum(first, most[0]) + tf.minimum(second, most[1]) + 3

    def make_inputs(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor, speakers: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        """The inputs token_ids, segment_ids, padding_mask and, if the scorer takes them,
        speaker_ids, each `[pairs, tokens]`; for the arguments, see `PairModel`.
        """
        rule = self.rule
        places = place_segments(first, second, rule.first_tokens, rule.second_tokens)
        inputs = {
            "token_ids": places.fill(first.values, second.values, rule.marks),
            "segment_ids": places.segment_ids(),
            "padding_mask": tf.sequence_mask(places.lengths),
        }
        if self.speakers:
            # [CLS], [SEP] and the response always have speaker 0.
            inputs["speaker_ids"] = places.fill(speakers.values, tf.zeros_like(second.values))
        return inputs

    def score(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor, speakers: tf.RaggedTensor
    ) -> tf.Tensor:
        """Logits of pairs, float32 `[pairs]`; see `PairModel`."""
        return self.scorer.score(self.make_inputs(first, second, speakers))


class RerankerGraph(tf.Module):
    """Tokenizer and model of a re-ranker.

    Args:
        model: scores pairs.
        settings: the re-ranker's settings.
        vocabulary: the vocabulary, which contains [EOT]. Its prefix is left out, see `PairRule`.
        source: the folder of the checkpoint.
    """

    written: Mapping[str, Any] = {}

    def __init__(
        self,
        model: PairModel,
        settings: RerankerSettings,
        vocabulary: Vocabulary,
        source: pathlib.Path,
    ):
        super().__init__()
        self.model = model
        self.settings = settings
        self.vocabulary = vocabulary.with_prefix("")
        self.source = source
        self.tokenizer = self.vocabulary.make_tokenizer()
        self._end = vocabulary.index(END_OF_TURN)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Tokenizes strings `[texts]` without [CLS] and [SEP]; int32 `[texts, (tokens)]`.

        Texts are not truncated here, because a long context is truncated at its start as a whole.
        """
        return strip_ends(self.tokenizer.tokenize(texts, _NO_LIMIT))

    def read(self, texts: list[str]) -> tuple[tf.RaggedTensor, np.ndarray]:
        """See `dcse_tf.reranker.reranker.PairScorer`."""
        token_ids = self.tokenize(tf.constant(texts))
        return token_ids, token_ids.values.numpy()

    def join(
        self, texts: tf.RaggedTensor, turns: Sequence[Sequence[int]], who: Sequence[Sequence[int]]
    ) -> tf.RaggedTensor:
        """See `dcse_tf.reranker.reranker.PairScorer`."""
        return self.join_turns(
            texts, tf.ragged.constant(turns, tf.int32), tf.ragged.constant(who, tf.int32)
        )

    def make_score(self) -> Callable[..., tf.Tensor]:
        """`score_rows`, traced once for all batches."""
        rows = tf.TensorSpec([None], tf.int32)
        return tf.function(
            self.score_rows,
            input_signature=[
                tf.RaggedTensorSpec([None, None, 2], tf.int32, ragged_rank=1),
                tf.RaggedTensorSpec([None, None], tf.int32),
                rows,
                rows,
            ],
            autograph=False,
        )

    def fingerprint(self) -> str:
        """A hash of everything that scores depend on."""
        from dcse_tf.reranker.checkpoint import fingerprint

        return fingerprint(self)

    def join_turns(
        self, texts: tf.RaggedTensor, turns: tf.RaggedTensor, speakers: tf.RaggedTensor
    ) -> tf.RaggedTensor:
        """Makes the first segments, from the turns of contexts.

        Args:
            texts: token ids, see `tokenize`.
            turns: rows of `texts`, int `[contexts, (turns)]`.
            speakers: the turns' speakers, int32 of the same shape, see `PairModel`.

        Returns:
            The id and the speaker of each token, int32 `[contexts, (tokens), 2]`.
        """
        tokens = tf.gather(end_turns(texts, self._end), turns)
        who = tf.gather(speakers.values, find_rows(tokens.values))
        return join_turns(tokens.with_flat_values(tf.stack([tokens.flat_values, who], axis=1)))

    def score_rows(
        self,
        contexts: tf.RaggedTensor,
        texts: tf.RaggedTensor,
        context_rows: tf.Tensor,
        text_rows: tf.Tensor,
    ) -> tf.Tensor:
        """Logits of pairs of a context and a text, float32 `[pairs]`.

        Args:
            contexts: see `join_turns`.
            texts: see `tokenize`.
            context_rows, text_rows: each pair's rows of `contexts` and `texts`, int `[pairs]`.
        """
        first = tf.gather(contexts, context_rows)
        ids, speakers = (first.with_values(first.values[:, i]) for i in range(2))
        return self.model.score(ids, tf.gather(texts, text_rows), speakers)

    def count_tokens(
        self,
        contexts: tf.RaggedTensor,
        texts: tf.RaggedTensor,
        context_rows: tf.Tensor,
        text_rows: tf.Tensor,
    ) -> tf.Tensor:
        """The cost in tokens of the pairs of `score_rows`, int `[pairs]`."""
        return self.model.count_tokens(
            tf.gather(contexts.row_lengths(), context_rows),
            tf.gather(texts.row_lengths(), text_rows),
        )

    def score_texts(
        self,
        context: tf.Tensor,
        candidates: tf.Tensor,
        speakers: tf.Tensor | None,
        batch_tokens: int,
    ) -> tf.Tensor:
        """Scores strings, in batches that are formed in the graph.

        Args:
            context: `[n, turns]`, the oldest turn first, padded with empty strings; blank texts are
                no turns.
            candidates: `[n, candidates]`, padded likewise.
            speakers: int32 `[n, turns]`, see `PairModel`. None if speakers alternate, and the last
                turn and the response have different speakers.
            batch_tokens: most tokens in a batch, including padding, unless one pair has more.

        Returns:
            float32 `[n, candidates]`, `NO_CANDIDATE` for blank candidates.
        """
        strings = tf.concat([tf.reshape(context, [-1]), tf.reshape(candidates, [-1])], 0)
        strings, rows = tf.unique(strings)
        texts = self.tokenize(strings)
        is_turn = ~tf.strings.regex_full_match(context, BLANK)
        if speakers is None:
            later = tf.cumsum(tf.cast(is_turn, tf.int32), axis=1, exclusive=True, reverse=True)
            speakers = 1 - later % 2
        turn_rows = tf.reshape(rows[: tf.size(context)], tf.shape(context))
        contexts = self.join_turns(
            texts,
            tf.ragged.boolean_mask(turn_rows, is_turn),
            tf.ragged.boolean_mask(speakers, is_turn),
        )
        is_candidate = ~tf.strings.regex_full_match(candidates, BLANK)
        places = tf.where(is_candidate)  # int64 [pairs, 2]
        text_rows = tf.reshape(rows[tf.size(context) :], tf.shape(candidates))
        text_rows = tf.gather_nd(text_rows, places)
        scores = self._score_in_batches(contexts, texts, places[:, 0], text_rows, batch_tokens)
        nothing = tf.fill(tf.shape(candidates), NO_CANDIDATE)
        return tf.tensor_scatter_nd_update(nothing, places, scores)

    def _score_in_batches(
        self,
        contexts: tf.RaggedTensor,
        texts: tf.RaggedTensor,
        context_rows: tf.Tensor,
        text_rows: tf.Tensor,
        batch_tokens: int,
    ) -> tf.Tensor:
        """`score_rows` in batches of at most `batch_tokens`, the longest pairs first."""
        lengths = self.count_tokens(contexts, texts, context_rows, text_rows)
        order = tf.argsort(lengths, direction="DESCENDING", stable=True)
        count = tf.size(order)

        def run(start: tf.Tensor, done: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            longest = tf.cast(lengths[order[start]], tf.int32)
            stop = tf.minimum(start + tf.maximum(1, batch_tokens // longest), count)
            part = order[start:stop]
            found = self.score_rows(
                contexts, texts, tf.gather(context_rows, part), tf.gather(text_rows, part)
            )
            return stop, tf.concat([done, found], 0)

        _, scores = tf.while_loop(
            lambda start, done: start < count,
            run,
            (tf.constant(0), tf.zeros([0])),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
            parallel_iterations=1,
        )
        return tf.scatter_nd(order[:, tf.newaxis], scores, tf.shape(order))
