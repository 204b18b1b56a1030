"""Converts chunks of sessions to records: joins, filters, tokenises and assigns them to splits."""

import collections
import dataclasses
import hashlib
import json
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.data.corpus import Chunk, join_session
from dcse_tf.data.dialogue import Session, session_to_dict
from dcse_tf.data.manifest import SPLITS
from dcse_tf.data.options import PrepareOptions
from dcse_tf.data.records import GivenTokens, SplitRecords
from dcse_tf.data.splits import Findings, content_key


class ChunkRecords(NamedTuple):
    """The records made from a chunk of sessions.

    Attributes:
        splits: the records of each split, in the order of the sessions.
        content: a 16-byte digest of each kept session, for the fingerprint of the corpus.
        findings: what deserves attention.
        dropped: number of sessions, utterances and negatives left out, by reason.
    """

    splits: dict[str, SplitRecords]
    content: bytes
    findings: Findings
    dropped: collections.Counter[str]


class _Tokens(NamedTuple):
    """The tokens of texts.

    Attributes:
        ids: int32 `[tokens]`, all texts concatenated.
        lengths: int64 `[texts]`, number of tokens; 0 if the tokenizer finds nothing in a text.
        cut: bool `[texts]`, whether the text was truncated.
        places: int64 `[texts + 1]`, where the tokens of each text begin in `ids`.
    """

    ids: np.ndarray
    lengths: np.ndarray
    cut: np.ndarray
    places: np.ndarray

    def of(self, start: int, end: int) -> "_Tokens":
        """The tokens of the texts from `start` to `end` (exclusive)."""
        first = self.places[start]
        return _Tokens(
            self.ids[first : self.places[end]],
            self.lengths[start:end],
            self.cut[start:end],
            self.places[start : end + 1] - first,
        )


class ChunkSerializer:
    """Joins, filters, tokenises and serialises the sessions of a chunk.

    The result for a session does not depend on other sessions, so chunks can be processed in
    parallel.
    """

    def __init__(self, vocabulary: Vocabulary, config: PrepareOptions):
        self._config = config
        tokenizer = vocabulary.make_tokenizer()
        # One token more than is kept shows which texts must be truncated.
        longest = config.max_sequence_length + 1
        self._tokenize = tf.function(
            lambda texts: tokenizer.tokenize(texts, longest),
            input_signature=[tf.TensorSpec([None], tf.string)],
        )
        # The length of a text without tokens of its own: [CLS] and [SEP], and the prefix between.
        self._empty = int(tokenizer.tokenize(tf.constant([""]), longest).row_lengths()[0])
        self._unk_id = vocabulary.unk_id

    def __call__(self, chunk: Chunk) -> ChunkRecords:
        dropped: collections.Counter[str] = collections.Counter()
        sessions = [join_session(raw, self._config, dropped) for raw in chunk.sessions()]

        # One call for all texts, because the overhead of a call outweighs many texts.
        texts = [turn.text for session in sessions for turn in session.turns]
        begin = len(texts)
        texts += [text for s in sessions if s.given for text in s.given.negatives]
        tokens = self._cut(self._tokenize(tf.constant(texts, tf.string)))
        # Lists are faster than arrays for access session by session.
        lengths, places = tokens.lengths.tolist(), tokens.places.tolist()
        cut = [0, *np.cumsum(tokens.cut).tolist()]

        splits = {name: SplitRecords(texts=None if name == "train" else []) for name in SPLITS}
        content = []
        findings = Findings()
        findings.tokens = len(tokens.ids) - self._empty * int(np.count_nonzero(tokens.lengths))
        findings.unknown = int(np.count_nonzero(tokens.ids == self._unk_id))
        end = 0
        for session, split in zip(sessions, chunk.splits, strict=True):
            start, end = end, end + len(session.turns)
            given = None
            if session.given:
                first, begin = begin, begin + len(session.given.negatives)
                response, negatives = tokens.of(max(start, end - 1), end), tokens.of(first, begin)
                session, given = _choose_given(session, response, negatives, dropped)
                if not given:
                    continue
            kept, kept_lengths = _drop_turns_without_tokens(session, lengths[start:end])
            dropped["empty_utterances"] += len(session.turns) - len(kept.turns)
            if len(kept.turns) < self._config.min_turns:
                dropped["short_sessions"] += 1
                continue
            content.append(_describe(kept))
            if key := content_key(kept.turns):
                findings.keys[split].append(key)
            splits[split].add(
                kept,
                tokens.ids[places[start] : places[end]],
                kept_lengths,
                cut[end] - cut[start],
                given,
            )
        return ChunkRecords(splits, b"".join(content), findings, dropped)

    def _cut(self, ids: tf.RaggedTensor) -> _Tokens:
        """Truncates the token ids of texts, `[texts, (tokens)]`, to the maximum length."""
        splits, limit = ids.row_splits.numpy(), self._config.max_sequence_length
        lengths = np.diff(splits)
        read, cut = lengths > self._empty, lengths > limit
        kept = np.repeat(read, lengths)
        kept[splits[1:][cut] - 2] = False  # drops the token before [SEP]
        kept_lengths = np.where(read, np.minimum(lengths, limit), 0)
        places = np.concatenate([[0], np.cumsum(kept_lengths)])
        return _Tokens(ids.values.numpy()[kept], kept_lengths, cut, places)


def _drop_turns_without_tokens(session: Session, lengths: list[int]) -> tuple[Session, list[int]]:
    """Drops the turns in which the tokenizer finds nothing, from the session and its lengths."""
    if 0 not in lengths:
        return session, lengths
    turns = tuple(turn for turn, length in zip(session.turns, lengths) if length)
    kept = Session(session.session_id, turns, session.given)
    return kept, [length for length in lengths if length]


def _choose_given(
    session: Session, response: _Tokens, negatives: _Tokens, dropped: collections.Counter[str]
) -> tuple[Session, GivenTokens | None]:
    """Keeps the negatives whose token ids differ from the response's and from each other's.

    The encoder cannot tell texts with equal token ids apart. Returns None in place of the tokens if
    the response has no token or no negative is left; `dropped` counts the reasons.
    """
    given = session.given
    assert given is not None
    texts = {response.ids.tobytes()}
    kept = []
    for place in range(len(given.negatives)):
        negative = negatives.of(place, place + 1)
        if not len(negative.ids):
            dropped["empty_negatives"] += 1
        elif negative.ids.tobytes() in texts:
            dropped["repeated_negatives"] += 1
        else:
            texts.add(negative.ids.tobytes())
            kept.append(place)
    if not len(response.ids) or not kept:
        reason = "negative" if len(response.ids) else "response"
        dropped[f"sessions_without_{reason}"] += 1
        return session, None
    scores = given.scores[:1] + tuple(given.scores[1 + place] for place in kept if given.scores)
    chosen = given._replace(negatives=tuple(given.negatives[i] for i in kept), scores=scores)
    token_ids = np.concatenate([negatives.of(place, place + 1).ids for place in kept])
    tokens = GivenTokens(given.dialogue, token_ids, negatives.lengths[kept].tolist(), scores)
    return dataclasses.replace(session, given=chosen), tokens


def _describe(session: Session) -> bytes:
    """A digest of a session's whole content, for the fingerprint of the corpus."""
    content = session_to_dict(session)
    text = json.dumps({**content, "given": session.given} if session.given else content)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
