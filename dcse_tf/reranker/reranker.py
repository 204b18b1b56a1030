"""The re-ranker class that all jobs use: scores candidate responses in their contexts."""

import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from dcse_tf.bert.encoder_options import ModelOptions
from dcse_tf.bert.token_rows import UnknownTokens, make_rule
from dcse_tf.bert.vocabulary import NO_CANDIDATE, Vocabulary, is_blank
from dcse_tf.encoder.backend import BATCH_TOKENS, batch_by_length
from dcse_tf.encoder.exported_models import is_onnx
from dcse_tf.encoder.sentence_encoder import read_text_lists, read_texts
from dcse_tf.errors import InputError, name_missing_tensorflow
from dcse_tf.progress import Progress
from dcse_tf.reading.reranker_files import RerankerSettings
from dcse_tf.reranker import scorers

# The turns of a context, and for each of them 0 if its speaker also gives the response, else 1.
_Context = tuple[tuple[str, ...], tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A candidate in a ranking."""

    place: int  # its index in the list of candidates, from 0
    text: str  # the candidate
    score: float  # a logit, higher is better; its sigmoid is the probability


@dataclasses.dataclass(eq=False, repr=False)
class Reranker:
    """A cross-encoder, which reads a context and a response together and scores the response.

        reranker = dcse_tf.Reranker.load("run")
        ranked = reranker.rank(["where is my parcel", "it left today"], ["thanks", "i like tea"])
        print(ranked[0].text, ranked[0].score)

    It ranks better than the similarity of embeddings, but is far slower, because it processes every
    candidate together with every context. Search by embeddings first and re-rank the results.

    A score is a logit: `1 / (1 + exp(-score))` is the probability that the response belongs to the
    context. Probabilities of the best of many candidates would round to 1 and tie.
    """

    scorer: scorers.Scorer  # scores sequences of token ids
    form: RerankerSettings  # what the model was trained with
    vocabulary: Vocabulary  # which has [EOT]
    name: str = "the re-ranker"  # what messages call it
    batch_tokens: int = BATCH_TOKENS  # most tokens in a batch, including padding

    def __post_init__(self) -> None:
        self._rule = make_rule(self.vocabulary, self.form.first_tokens, self.form.second_tokens)
        self._split = self.vocabulary.with_prefix("").make_split()
        self._unknown = UnknownTokens(self.vocabulary.unk_id, self.vocabulary.special.unk)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        batch_tokens: int = BATCH_TOKENS,
        compute_dtype: str = "float32",
        option: str = "path",
    ) -> Self:
        """Loads a re-ranker.

        Args:
            path: a run directory, a checkpoint folder, an export to ONNX, package:NAME or a hub
                name.
            batch_tokens: tokens scored at a time, including padding.
            compute_dtype: "float32" or "bfloat16"; scores are float32 either way. For an export
                only "float32" is accepted, and it computes in the type it was written in.
            option: the name that messages use for `path`.

        Raises:
            OptionError: a setting has a value that is not allowed.
            InputError: there is no such model, or it is not a re-ranker.
        """
        given = {"compute_dtype": compute_dtype, "batch_tokens": batch_tokens}
        name = ModelOptions.from_dict({"model": path, **given}).model
        folder = scorers.read_reranker(name, option)
        if not is_onnx(folder.path):
            with name_missing_tensorflow(f"`{option}`={name}: a checkpoint"):
                scorer = scorers.load_checkpoint_scorer(folder, compute_dtype)
        elif compute_dtype == "float32":
            scorer = scorers.load_onnx_scorer(folder)
        else:
            raise InputError(
                f"`{option}`={name}: an export computes as it was exported; leave out "
                "`compute_dtype`, or name the run directory"
            )
        return cls(scorer, folder.settings, folder.vocabulary, name, batch_tokens)

    @classmethod
    def from_options(cls, options: ModelOptions, option: str) -> Self:
        """Loads the re-ranker that one of the options names; see `load`."""
        path, tokens, dtype = getattr(options, option), options.batch_tokens, options.compute_dtype
        return cls.load(path, batch_tokens=tokens, compute_dtype=dtype, option=option)

    @property
    def settings(self) -> dict[str, Any]:
        """The re-ranker's settings."""
        return {**dataclasses.asdict(self.form), **self.scorer.settings}

    def fingerprint(self) -> str:
        """A hash of everything the scores depend on, except for the compute dtype."""
        return self.scorer.fingerprint()

    def rank(
        self,
        context: str | Sequence[str],
        candidates: Iterable[str],
        roles: Sequence[str] | None = None,
        responder: str | None = None,
        none_below: float = -math.inf,
    ) -> list[Ranked]:
        """Ranks candidate responses, the best first; ties keep the order given.

        Args:
            context: the turns before the response, the oldest first; a string is one turn.
            candidates: the candidate responses.
            roles, responder: this context's entries of the arguments of `score`.
            none_below: a score that the best has to exceed, or else nothing is returned: none of
                them is an answer. `Calibration.threshold` gives it.
        """
        turns = [context] if isinstance(context, str) else context
        texts = read_texts(candidates, "candidates")
        told: list[Any] = [value if value is None else [value] for value in (roles, responder)]
        (scores,) = self.score([turns], [texts], told[0], told[1], show_progress=False)
        order = np.argsort(-scores, kind="stable").tolist()
        if not (scores > none_below).any():
            return []
        return [Ranked(place, texts[place], float(scores[place])) for place in order]

    def score(
        self,
        contexts: Sequence[Sequence[str]],
        candidates: Sequence[Sequence[str]],
        roles: Sequence[Sequence[str]] | None = None,
        responders: Sequence[str] | None = None,
        show_progress: bool = True,
    ) -> list[np.ndarray]:
        """Scores candidate responses; each distinct pair of context and response is computed once.

        A blank text, such as the empty string, is no turn, and as a candidate the worst.

        Args:
            contexts: for each context, the turns before the response, the oldest first.
            candidates: for each context, any number of candidate responses.
            roles: for each context, the speaker of each turn. Only a model with speaker embeddings
                uses them; without them it assumes that two speakers alternate, and that the last
                turn and the response have different speakers.
            responders: for each context, the speaker of the response; give it with `roles`.
            show_progress: whether to show the progress of long jobs on stderr.

        Returns:
            For each context its candidates' logits, float32 `[candidates]`, higher is better; -1e9
            for a blank one. The last bits depend on which pairs are scored together.

        Raises:
            TypeError, ValueError: a text or a role is not a valid text; a context has no turns; or
                the lists' lengths do not agree.
        """
        turns = read_text_lists(contexts, "contexts")
        texts = read_text_lists(candidates, "candidates")
        if len(turns) != len(texts):
            raise ValueError(f"candidates: {len(texts)} lists for {len(turns)} contexts")
        read = _read_contexts(turns, roles, responders)
        if not self.form.speakers:
            read = [(context, (0,) * len(context)) for context, _ in read]

        asked = [(context, text) for context, group in zip(read, texts) for text in group]
        pairs = [pair for pair in dict.fromkeys(asked) if not is_blank(pair[1])]
        scores = dict(zip(pairs, self._score_pairs(pairs, show_progress).tolist(), strict=True))
        found = np.array([scores.get(pair, NO_CANDIDATE) for pair in asked], np.float32)
        return np.split(found, np.cumsum([len(group) for group in texts])[:-1]) if texts else []

    def _score_pairs(self, pairs: list[tuple[_Context, str]], show_progress: bool) -> np.ndarray:
        """Logits of distinct pairs of a context and a response, float32 `[pairs]`."""
        scores = np.empty([len(pairs)], np.float32)
        if not pairs:
            return scores
        contexts = list(dict.fromkeys(context for context, _ in pairs))
        groups = (*(turns for turns, _ in contexts), [text for _, text in pairs])
        strings = list(dict.fromkeys(text for group in groups for text in group))
        ids = dict(zip(strings, self._split(strings), strict=True))
        every = np.fromiter(itertools.chain.from_iterable(ids.values()), np.int32)
        self._unknown.add(every, len(strings))

        # The tokens next to the response matter most, so a context keeps its last ones.
        rule, firsts = self._rule, {}
        for turns, speakers in contexts:
            ended = [[*ids[turn], rule.end_of_turn_id] for turn in turns]
            tokens = [token for turn in ended for token in turn]
            said_by = np.repeat(speakers, [len(turn) for turn in ended])
            first = np.array([tokens, said_by], np.int32)
            firsts[turns, speakers] = first[:, -(rule.first_tokens - 2) :]
        seconds = {text: ids[text][: rule.second_tokens - 1] for _, text in pairs}

        lengths = np.array([firsts[c].shape[1] + len(seconds[text]) + 3 for c, text in pairs])
        progress = Progress("tokens").update if show_progress else None
        for part in batch_by_length(lengths, self.batch_tokens, progress=progress):
            batch = [(firsts[pairs[place][0]], seconds[pairs[place][1]]) for place in part]
            scores[part] = self.scorer.score(self._make_sequences(batch, int(lengths[part[-1]])))
        return scores

    def _make_sequences(
        self, pairs: Sequence[tuple[np.ndarray, list[int]]], tokens: int
    ) -> Mapping[str, np.ndarray]:
        """The sequences [CLS] u1 [EOT] ... um [EOT] [SEP] response [SEP], see `Scorer.score`, at
        most `tokens` long, of the ids and speakers of a context's tokens, int32 `[2, tokens]`, and
        the ids of a response's.
        """
        rule = self._rule
        ids, mask, segments, speakers = np.zeros([4, len(pairs), tokens], np.int32)
        for row, (first, second) in enumerate(pairs):
            middle = 1 + first.shape[1]
            end = middle + 1 + len(second)
            ids[row, : end + 1] = rule.cls_id, *first[0], rule.sep_id, *second, rule.sep_id
            mask[row, : end + 1] = 1
            segments[row, middle + 1 : end + 1] = 1
            speakers[row, 1:middle] = first[1]
        told = {"segment_ids": segments, "speaker_ids": speakers}
        return {"token_ids": ids, "padding_mask": mask != 0, **told}


def _read_contexts(
    contexts: list[list[str]],
    roles: Sequence[Sequence[str]] | None,
    responders: Sequence[str] | None,
) -> list[_Context]:
    """The turns of each context that are not blank, with their speakers; see `Reranker.score`."""
    real = [[not is_blank(turn) for turn in turns] for turns in contexts]
    empty = [place for place, turns in enumerate(real) if not any(turns)]
    if empty:
        raise ValueError(f"contexts[{empty[0]}]: expected at least one turn that is not blank")
    kept = [tuple(itertools.compress(*each)) for each in zip(contexts, real, strict=True)]
    if roles is None and responders is None:
        return [(turns, tuple((len(turns) - i) % 2 for i in range(len(turns)))) for turns in kept]
    if roles is None or responders is None:
        raise ValueError("expected roles and responders together, or neither")
    roles, responders = read_text_lists(roles, "roles"), read_texts(responders, "responders")
    if [*map(len, roles)] != [*map(len, contexts)] or len(responders) != len(contexts):
        raise ValueError("roles, responders: expected a role for each turn, a responder a context")
    return [
        (turns, tuple(int(role != responder) for role in itertools.compress(each, is_real)))
        for turns, each, is_real, responder in zip(kept, roles, real, responders, strict=True)
    ]
