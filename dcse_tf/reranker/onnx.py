"""Runs a re-ranker's ONNX export. No TensorFlow here."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dcse_tf.bert.pair_rule import PairRule
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.encoder.onnx import INPUTS, OnnxFile
from dcse_tf.reading.reranker_files import RerankerSettings

SEGMENTS, SPEAKERS, OUTPUT = "token_type_ids", "speaker_ids", "scores"


class OnnxReranker:
    """Makes the sequences [CLS] u1 [EOT] ... um [EOT] [SEP] response [SEP], and scores them.

    It is a `PairScorer`: texts are lists of token ids, and a context is an array of the ids and the
    speakers of its tokens, int32 `[2, tokens]`.

    Args:
        folder: the export's folder.
        settings: the re-ranker's settings.
        vocabulary: the vocabulary. Its prefix is left out, see `PairRule`.
        rule: how a pair becomes a sequence.

    Attributes:
        file: the model file.

    Raises:
        InputError: see `OnnxFile`.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        settings: RerankerSettings,
        vocabulary: Vocabulary,
        rule: PairRule,
    ):
        self.settings = settings
        self.vocabulary = vocabulary.with_prefix("")
        self._rule = rule
        self._split = self.vocabulary.make_split()
        names = (*INPUTS, SEGMENTS, *([SPEAKERS] if settings.speakers else []))
        self.file = OnnxFile(folder, names, OUTPUT, "a re-ranker")

    @property
    def written(self) -> Mapping[str, Any]:
        """The settings that were written with the export."""
        return {"compute_dtype": None, **self.file.written}

    def read(self, texts: list[str]) -> tuple[list[list[int]], np.ndarray]:
        """See `PairScorer`."""
        found = self._split(texts)
        return found, np.array([token for ids in found for token in ids], np.int32)

    def join(
        self, texts: list[list[int]], turns: Sequence[Sequence[int]], who: Sequence[Sequence[int]]
    ) -> list[np.ndarray]:
        """See `PairScorer`."""
        contexts = []
        for rows, speakers in zip(turns, who, strict=True):
            ended = [[*texts[row], self._rule.end_of_turn_id] for row in rows]
            ids = [token for turn in ended for token in turn]
            said_by = np.repeat(speakers, [len(turn) for turn in ended])
            contexts.append(np.array([ids, said_by], np.int32))
        return contexts

    def count_tokens(
        self,
        contexts: list[np.ndarray],
        texts: list[list[int]],
        context_rows: np.ndarray,
        text_rows: np.ndarray,
    ) -> np.ndarray:
        """See `PairScorer`."""
        first, second = self._rule.first_tokens - 2, self._rule.second_tokens - 1
        before = np.array([min(context.shape[1], first) for context in contexts])
        behind = np.array([min(len(ids), second) for ids in texts])
        return before[context_rows] + behind[text_rows] + 3

    def make_score(self) -> Callable[..., np.ndarray]:
        """See `PairScorer`."""
        return self._score

    def _score(
        self,
        contexts: list[np.ndarray],
        texts: list[list[int]],
        context_rows: np.ndarray,
        text_rows: np.ndarray,
    ) -> np.ndarray:
        rule = self._rule
        shape = len(context_rows), self.count_tokens(contexts, texts, context_rows, text_rows).max()
        ids, mask, segments, speakers = np.zeros([4, *shape], np.int64)
        for row, (context, text) in enumerate(zip(context_rows, text_rows, strict=True)):
            # The first segment keeps the tokens next to the second.
            first = contexts[context][:, -(rule.first_tokens - 2) :]
            second = texts[text][: rule.second_tokens - 1]
            middle = 1 + first.shape[1]
            end = middle + 1 + len(second)
            ids[row, : end + 1] = rule.cls_id, *first[0], rule.sep_id, *second, rule.sep_id
            mask[row, : end + 1] = 1
            segments[row, middle + 1 : end + 1] = 1
            speakers[row, 1:middle] = first[1]
        given = (ids, mask, segments, speakers)
        return self.file.run(*given[: len(self.file.inputs)])

    def fingerprint(self) -> str:
        """See `OnnxFile.fingerprint`."""
        facts = dataclasses.asdict(self.settings)
        return self.file.fingerprint(facts, self.vocabulary.fingerprint())
