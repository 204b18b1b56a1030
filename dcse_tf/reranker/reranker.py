"""The re-ranker class that all jobs use: scores candidate responses in their contexts."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np

from dcse_tf.bert.blanks import NO_CANDIDATE, is_blank
from dcse_tf.bert.unknown import UnknownTokens
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.encoder.batching import BATCH_TOKENS, split_by_length
from dcse_tf.encoder.sentence_encoder import read_text_lists, read_texts
from dcse_tf.options import OptionError
from dcse_tf.progress import Progress
from dcse_tf.reading.reranker_files import RerankerSettings
from dcse_tf.reranker.load import load_reranker
from dcse_tf.stores import fetch

_COMPUTE_DTYPES = ("float32", "bfloat16")

# The turns of a context, and for each of them 0 if its speaker also gives the response, else 1.
_Context = tuple[tuple[str, ...], tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A candidate in a ranking.

    Attributes:
        place: its index in the list of candidates, from 0.
        text: the candidate.
        score: a logit, higher is better; its sigmoid is the probability.
    """

    place: int
    text: str
    score: float


class PairScorer(Protocol):
    """Computes the scores of a `Reranker`: a `RerankerGraph`, or an `OnnxReranker`.

    Attributes:
        settings: the re-ranker's settings.
        vocabulary: its vocabulary.
        written: the settings that were written with an export.
    """

    settings: RerankerSettings
    vocabulary: Vocabulary

    @property
    def written(self) -> Mapping[str, Any]: ...

    def read(self, texts: list[str]) -> tuple[Any, np.ndarray]:
        """The texts in the form that the other methods take; their token ids, concatenated."""

    def join(self, texts: Any, turns: Sequence[Sequence[int]], who: Sequence[Sequence[int]]) -> Any:
        """The contexts, from rows of the texts and from the turns' speakers (see `_Context`)."""

    def count_tokens(
        self, contexts: Any, texts: Any, context_rows: np.ndarray, text_rows: np.ndarray
    ) -> Any:
        """The cost in tokens of pairs of a context and a text, int `[pairs]`."""

    def make_score(self) -> Callable[..., Any]:
        """A function of the same arguments: logits, float32 `[pairs]`."""

    def fingerprint(self) -> str:
        """A hash of everything the scores depend on."""


class Reranker:
    """A cross-encoder, which reads a context and a response together and scores the response.

        reranker = dcse_tf.Reranker.load("run")
        ranked = reranker.rank(["where is my parcel", "it left today"], ["thanks", "i like tea"])
        print(ranked[0].text, ranked[0].score)

    It ranks better than the similarity of embeddings, but is far slower, because it processes every
    candidate together with every context. Search by embeddings first and re-rank the results.

    A score is a logit: `1 / (1 + exp(-score))` is the probability that the response belongs to the
    context. Probabilities of the best of many candidates would round to 1 and tie.

    Args:
        graph: the model.
        name: the name that messages use for the model.
        batch_tokens: most tokens in a batch, including padding.

    Attributes:
        graph, name, batch_tokens: as given.
    """

    def __init__(
        self, graph: PairScorer, name: str = "the re-ranker", batch_tokens: int = BATCH_TOKENS
    ):
        self.graph = graph
        self.name = name
        self.batch_tokens = batch_tokens
        vocabulary = graph.vocabulary
        self._unknown = UnknownTokens(vocabulary.unk_id, vocabulary.special.unk)
        self._score_rows = graph.make_score()

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
            path: a run directory, a checkpoint folder, an export to ONNX, package:NAME, a hub name,
                or the URL of one in a store.
            batch_tokens: tokens scored at a time, including padding.
            compute_dtype: "float32" or "bfloat16"; scores are float32 either way. For an export
                only "float32" is accepted, and it computes in the type it was written in.
            option: the name that messages use for `path`.

        Raises:
            OptionError: a setting has a value that is not allowed.
            InputError: there is no such model, or it is not a re-ranker.
        """
        if batch_tokens < 1:
            raise OptionError(f"`batch_tokens`={batch_tokens}: expected 1 or more")
        if compute_dtype not in _COMPUTE_DTYPES:
            raise OptionError(
                f"`compute_dtype`={compute_dtype}: expected {' or '.join(_COMPUTE_DTYPES)}"
            )
        name = os.fspath(path)
        return cls(load_reranker(fetch(name), option, compute_dtype), name, batch_tokens)

    @property
    def settings(self) -> dict[str, Any]:
        """The re-ranker's settings, for the results file of an evaluation."""
        written = {k: v for k, v in self.graph.written.items() if k == "compute_dtype"}
        return {**dataclasses.asdict(self.graph.settings), **written}

    @functools.cached_property
    def _fingerprint(self) -> str:
        return self.graph.fingerprint()

    def fingerprint(self) -> str:
        """A hash of everything the scores depend on, except for the compute dtype."""
        return self._fingerprint

    def rank(
        self,
        context: str | Sequence[str],
        candidates: Iterable[str],
        roles: Sequence[str] | None = None,
        responder: str | None = None,
    ) -> list[Ranked]:
        """Ranks candidate responses, the best first; ties keep the order given.

        Args:
            context: the turns before the response, the oldest first; a string is one turn.
            candidates: the candidate responses.
            roles, responder: this context's entries of the arguments of `score`.
        """
        turns = [context] if isinstance(context, str) else context
        texts = read_texts(candidates, "candidates")
        (scores,) = self.score(
            [turns],
            [texts],
            None if roles is None else [roles],
            None if responder is None else [responder],
            show_progress=False,
        )
        order = np.argsort(-scores, kind="stable").tolist()
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
            TypeError, ValueError: an element is not a valid text; a context has no turns; or the
                lists' lengths do not agree.
        """
        turns = read_text_lists(contexts, "contexts")
        texts = read_text_lists(candidates, "candidates")
        read = _read_contexts(turns, len(texts), roles, responders)
        if not self.graph.settings.speakers:
            read = [(context, (0,) * len(context)) for context, _ in read]
        scores = self._score_pairs(read, texts, show_progress)
        ends = np.cumsum([len(group) for group in texts])[:-1]
        return np.split(scores, ends) if texts else []

    def _score_pairs(
        self,
        contexts: list[_Context],
        candidates: list[list[str]],
        show_progress: bool,
    ) -> np.ndarray:
        """The scores of all candidates, the lists concatenated; float32 `[all]`."""
        real = np.array([not is_blank(text) for group in candidates for text in group], bool)
        found = np.full(len(real), NO_CANDIDATE, np.float32)
        if not real.any():
            return found
        groups = (*(turns for turns, _ in contexts), *candidates)
        strings = list(dict.fromkeys(text for group in groups for text in group))
        place = {text: row for row, text in enumerate(strings)}
        row = {context: index for index, context in enumerate(dict.fromkeys(contexts))}
        asked = np.array(
            [(row[c], place[text]) for c, group in zip(contexts, candidates) for text in group],
            np.int32,
        )
        pairs, where = np.unique(asked[real], axis=0, return_inverse=True)

        texts, token_ids = self.graph.read(strings)
        self._unknown.add(token_ids, len(strings))
        turns = [[place[text] for text in context] for context, _ in row]
        joined = self.graph.join(texts, turns, [who for _, who in row])
        scores = self._score_in_batches(joined, texts, pairs, show_progress)
        found[real] = scores[where.reshape(-1)]
        return found

    def _score_in_batches(
        self,
        contexts: Any,
        texts: Any,
        pairs: np.ndarray,
        show_progress: bool,
    ) -> np.ndarray:
        lengths = np.asarray(self.graph.count_tokens(contexts, texts, pairs[:, 0], pairs[:, 1]))
        order = np.argsort(lengths, kind="stable")
        scores = np.empty([len(pairs)], np.float32)
        progress = Progress("tokens", int(lengths.sum())) if show_progress else None
        done = 0
        for start, stop in split_by_length(lengths[order], self.batch_tokens):
            part = order[start:stop]
            scores[part] = self._score_rows(contexts, texts, pairs[part, 0], pairs[part, 1])
            done += int(lengths[part].sum())
            if progress:
                progress.update(done)
        return scores


def _read_contexts(
    contexts: list[list[str]],
    groups: int,
    roles: Sequence[Sequence[str]] | None,
    responders: Sequence[str] | None,
) -> list[_Context]:
    """The turns of each context that are not blank, with their speakers; see `Reranker.score`."""
    if groups != len(contexts):
        raise ValueError(f"candidates: {groups} lists for {len(contexts)} contexts")
    real = [[not is_blank(turn) for turn in turns] for turns in contexts]
    empty = [place for place, turns in enumerate(real) if not any(turns)]
    if empty:
        raise ValueError(f"contexts[{empty[0]}]: expected at least one turn that is not blank")
    kept = [tuple(itertools.compress(*each)) for each in zip(contexts, real, strict=True)]
    if roles is None and responders is None:
        return [(turns, tuple((len(turns) - i) % 2 for i in range(len(turns)))) for turns in kept]
    if roles is None or responders is None:
        raise ValueError("expected roles and responders together, or neither")
    lengths = [len(turns) for turns in contexts]
    if [len(each) for each in roles] != lengths or len(responders) != len(contexts):
        raise ValueError("roles, responders: expected a role for each turn, a responder a context")
    return [
        (turns, tuple(int(role != responder) for role in itertools.compress(each, is_real)))
        for turns, each, is_real, responder in zip(kept, roles, real, responders, strict=True)
    ]
