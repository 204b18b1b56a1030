"""Builds grouped candidates from dialogues: a context, its true response, and negatives.

Negatives are responses from other sessions, of the responder's role if there are enough. Most
random negatives are easy to tell from the true response; those that BM25 or an encoder finds
nearest to the context are hard. The very nearest may answer the context as well as the true
response does, so some of them can be skipped.
"""

import collections
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

import numpy as np

from dcse_tf.data.candidates import CandidateGroup, group_to_dict
from dcse_tf.data.corpus import read_sessions
from dcse_tf.data.dialogue import Session, Utterance
from dcse_tf.data.manifest import SPLITS
from dcse_tf.data.splits import content_key
from dcse_tf.data.words import make_splitter
from dcse_tf.encoder.unit_length import normalize
from dcse_tf.errors import InputError
from dcse_tf.evaluation import metrics
from dcse_tf.evaluation.metrics import Encode
from dcse_tf.files import atomic_file, hash_number, refuse_existing
from dcse_tf.progress import Progress
from dcse_tf.sets.options import BuildCandidatesOptions
from dcse_tf.sets.retrieval_set import Bm25

_CHUNK = 1000  # contexts whose embeddings are held at a time
_CELLS = 1 << 24  # float32 scores held at a time (64 MiB)


class Ranker(Protocol):
    """Scores how near the pool's responses are to a context.

    Attributes:
        floor: only responses with a higher score count as near. For BM25, a response that shares
            no word with the context is not near.
    """

    floor: float

    def score(self, contexts: list[list[str]]) -> Iterator[np.ndarray]:
        """Yields for each context, in order, the scores of all responses, float `[pool]`."""


class Bm25Ranker:
    """Scores by BM25, with the words of all turns of the context as the query."""

    floor = 0.0

    def __init__(self, pool: Sequence[str], words: str):
        self._split = make_splitter(words)
        split = [self._split(text) for text in pool]
        if not any(split):
            raise InputError("no response has a word")
        self._index = Bm25(split)

    def score(self, contexts: list[list[str]]) -> Iterator[np.ndarray]:
        for context in contexts:
            yield self._index.scores([word for text in context for word in self._split(text)])


class CosineRanker:
    """Scores by the cosine with the mean embedding of the context's turns."""

    floor = -np.inf

    def __init__(self, pool: Sequence[str], encode: Encode):
        self._encode = encode
        self._pool = normalize(encode(list(pool))).astype(np.float32)

    def score(self, contexts: list[list[str]]) -> Iterator[np.ndarray]:
        texts = sorted({text for context in contexts for text in context})
        place = {text: index for index, text in enumerate(texts)}
        rows = np.asarray(self._encode(texts), np.float64)
        means = [rows[[place[text] for text in context]].mean(axis=0) for context in contexts]
        queries = normalize(np.stack(means)).astype(np.float32)
        step = max(1, _CELLS // len(self._pool))
        for start in range(0, len(queries), step):
            # Rounded, so that ties do not depend on which contexts are scored together.
            yield from map(metrics.quantize, queries[start : start + step] @ self._pool.T)


@dataclasses.dataclass(frozen=True)
class Response:
    """A turn that candidates are made for.

    Attributes:
        session: its session.
        name: a unique name of the session.
        dialogue: the id that decides about its split: that of the session's dialogue or, if the
            session is a copy, of the first copy (see `Splitter`).
        turn: the index of the turn in the session.
    """

    session: Session
    name: str
    dialogue: str
    turn: int


def choose_responses(
    sessions: Sequence[Session], responses: str, roles: Collection[str], seed: int
) -> list[Response]:
    """Chooses the turns that serve as responses, in the order of the sessions.

    A response must have a turn before it.

    Args:
        sessions: sessions whose consecutive turns of one speaker are already joined.
        responses: "one" per session, drawn by the seed and the session's id, or "all".
        roles: speakers whose turns may be responses; empty for all speakers.
        seed: seed of the draw.
    """
    times: collections.Counter[str] = collections.Counter()
    first_copies: dict[int, str] = {}
    chosen = []
    for session in sessions:
        name = session.session_id
        times[name] += 1
        if times[name] > 1:  # the same id in two files
            name = f"{name}#{times[name]}"
        turns = [
            place
            for place, turn in enumerate(session.turns)
            if place and (not roles or turn.role in roles)
        ]
        if responses == "one" and turns:
            rng = np.random.default_rng(hash_number(f"{seed}:response:{name}"))
            turns = [turns[int(rng.integers(len(turns)))]]
        dialogue = session.dialogue
        if not session.given and (key := content_key(session.turns)) is not None:
            dialogue = first_copies.setdefault(key, dialogue)
        chosen += [Response(session, name, dialogue, turn) for turn in turns]
    return chosen


class Pool:
    """The distinct responses, ignoring case, that negatives are chosen from.

    Args:
        responses: the responses that candidates are made for.

    Attributes:
        texts: the sorted texts; of texts that differ only in case, the first in that order.
    """

    def __init__(self, responses: Sequence[Response]):
        said = {response.session.turns[response.turn].text for response in responses}
        first: dict[str, str] = {}
        for text in sorted(said):
            first.setdefault(text.casefold(), text)
        self.texts = list(first.values())
        self._places = {key: place for place, key in enumerate(first)}
        self._all = np.arange(len(first))
        of_role: dict[str, set[int]] = collections.defaultdict(set)
        for response in responses:
            turn = response.session.turns[response.turn]
            of_role[turn.role].add(self._places[turn.text.casefold()])
        self._of_role = {role: np.array(sorted(places)) for role, places in of_role.items()}
        self._role_sets = dict(of_role)

    def list_places(self, role: str | None, banned: Collection[int], count: int) -> np.ndarray:
        """The indices to choose from: those that the role says, or all without a role.

        All too if the role says fewer than `count` that are not banned: it may be a name that
        hardly any session shares.
        """
        own = self._role_sets[role] if role is not None else set()
        enough = len(own) - sum(place in own for place in banned) >= count
        return self._of_role[role] if role is not None and enough else self._all

    def places_of(self, turns: Sequence[Utterance]) -> set[int]:
        """The indices in the pool of those turns whose texts are in it."""
        keys = {turn.text.casefold() for turn in turns}
        return {self._places[key] for key in keys if key in self._places}

    def places_of_pieces(self, responses: Sequence[Response]) -> dict[str, set[int]]:
        """The indices of what a dialogue says, by its id; only of dialogues that come in pieces."""
        places: dict[str, set[int]] = collections.defaultdict(set)
        for session in (response.session for response in responses):
            if session.given:
                places[session.dialogue] |= self.places_of(session.turns)
        return places


def pick_nearest(
    scores: np.ndarray, banned: Collection[int], skip: int, count: int, floor: float
) -> tuple[list[int], list[int]]:
    """Picks the nearest allowed responses: the `skip` nearest, and at most `count` after them.

    Args:
        scores: float `[pool]`; ties are broken by the order of the pool.
        banned: indices that are left out; they do not count as skipped.
        skip: how many of the nearest to skip.
        count: how many are wanted.
        floor: only responses with a higher score are picked.

    Returns:
        The indices of those skipped and of those picked, nearest first.
    """
    most = skip + count + len(banned)
    near = np.flatnonzero(scores > floor)
    if len(near) > most:
        last = np.partition(scores[near], -most)[-most]
        near = near[scores[near] >= last]
    near = near[~np.isin(near, list(banned))]
    order = near[np.argsort(-scores[near], kind="stable")].tolist()
    return order[:skip], order[skip : skip + count]


def draw_places(
    rng: np.random.Generator, places: np.ndarray, banned: Collection[int], count: int
) -> list[int]:
    """Draws `count` of the places at random, or all that are not banned if there are fewer.

    Drawing `count` plus the number banned always leaves enough, without filtering all places.
    """
    drawn = rng.choice(places, min(len(places), count + len(banned)), replace=False)
    return [place for place in drawn.tolist() if place not in banned][:count]


@dataclasses.dataclass(frozen=True)
class Negatives:
    """How the negatives of a response are chosen.

    Attributes:
        pool: the responses they are chosen from.
        count: number of negatives for a response.
        seed: seed of random negatives.
        ranker: finds the nearest responses; None to draw all negatives at random.
        skip_top: how many of the nearest to skip.
        source: where the pool comes from, for an error.
        same_role: whether to choose only what the responder's role says, if that is enough.
    """

    pool: Pool
    count: int
    seed: int
    ranker: Ranker | None = None
    skip_top: int = 0
    source: str = "other sessions"
    same_role: bool = True

    def choose(
        self, responses: Sequence[Response], context_turns: int
    ) -> Iterator[tuple[CandidateGroup, int]]:
        """Yields the group of each response, and how many of its negatives were drawn at random.

        Args:
            responses: the responses to make groups for.
            context_turns: turns before the response to use as its context, at most; 0 for all.

        Raises:
            InputError: other sessions have too few different responses.
        """
        said = self.pool.places_of_pieces(responses)
        for start in range(0, len(responses), _CHUNK):
            chunk = responses[start : start + _CHUNK]
            contexts = [_cut_context(response, context_turns) for response in chunk]
            scores: Iterator[np.ndarray | None] = iter([None] * len(chunk))
            if self.ranker:
                scores = self.ranker.score([[turn.text for turn in c] for c in contexts])
            for response, context, row in zip(chunk, contexts, scores, strict=True):
                session = response.session
                own = (
                    said[session.dialogue] if session.given else self.pool.places_of(session.turns)
                )
                yield self._make_group(response, context, row, own)

    def _make_group(
        self,
        response: Response,
        context: tuple[Utterance, ...],
        scores: np.ndarray | None,
        banned: set[int],
    ) -> tuple[CandidateGroup, int]:
        name = f"{response.name}:{response.turn}"
        true = response.session.turns[response.turn]
        role = true.role if self.same_role else None
        among = self.pool.list_places(role, banned, self.count + self.skip_top)
        places: list[int] = []
        if scores is not None and self.ranker:
            out = np.ones(len(scores), bool)
            out[among] = False
            scores = np.where(out, -np.inf, scores)
            skipped, places = pick_nearest(
                scores, banned, self.skip_top, self.count, self.ranker.floor
            )
            banned = banned | {*skipped, *places}
        rng = np.random.default_rng(hash_number(f"{self.seed}:rivals:{name}"))
        drawn = draw_places(rng, among, banned, self.count - len(places))
        if len(places) + len(drawn) < self.count:
            raise InputError(
                f"session {response.name!r}: only {len(places) + len(drawn)} different responses "
                f"of {self.source}, too few for `candidates`={self.count + 1}"
                + (f" and `skip_top`={self.skip_top}" if self.skip_top else "")
            )
        negatives = [self.pool.texts[place] for place in (*places, *drawn)]
        labels = (1, *[0] * self.count)
        texts = (true.text, *negatives)
        group = CandidateGroup(name, context, texts, labels, true.role, response.dialogue)
        return group, len(drawn)


def _cut_context(response: Response, turns: int) -> tuple[Utterance, ...]:
    first = max(0, response.turn - turns) if turns else 0
    return response.session.turns[first : response.turn]


@dataclasses.dataclass(frozen=True)
class Built:
    """Counts of what was built and what was left out.

    Attributes:
        sessions: sessions used.
        groups: groups written.
        pool: different responses that negatives were chosen from, over all splits.
        drawn: negatives that were drawn at random.
        left_out: reason -> how many were left out.
    """

    sessions: int
    groups: int
    pool: int
    drawn: int
    left_out: dict[str, int]


def build_candidates(config: BuildCandidatesOptions) -> Built:
    """Builds a file of grouped candidates from dialogues.

    Raises:
        InputError: the input cannot be used or has too few different responses.
        FileExistsError: the output exists and may not be replaced.
    """
    output = pathlib.Path(config.output)
    refuse_existing(output, config.overwrite)
    bad_lines = config.count_bad_lines()
    left_out: collections.Counter[str] = collections.Counter(empty_utterances=0)
    read = list(read_sessions(config, bad_lines, left_out))
    sessions = [session for session in read if len(session.turns) >= config.min_turns]
    responses = choose_responses(sessions, config.responses, config.roles, config.seed)
    if not responses:
        raise InputError(
            f"`input`={','.join(config.input)}: no response with a turn before it "
            f"({len(read)} sessions read)"
        )

    make_ranker = _ranker_maker(config)
    divided = []
    for source, own in _divide(responses, config):
        pool = Pool(own)
        ranker = make_ranker(pool)
        negatives = Negatives(
            pool,
            config.candidates - 1,
            config.seed,
            ranker,
            config.skip_top,
            source,
            config.same_role,
        )
        divided.append((own, negatives))
    groups = itertools.chain.from_iterable(
        negatives.choose(own, config.context_turns) for own, negatives in divided
    )
    drawn = 0
    with (
        atomic_file(output, config.overwrite) as partial,
        partial.open("w", encoding="utf-8") as file,
        Progress("groups", len(responses)) as progress,
    ):
        for number, (group, at_random) in enumerate(groups, start=1):
            file.write(json.dumps(group_to_dict(group), ensure_ascii=False) + "\n")
            drawn += at_random
            progress.update(number)

    used = len({response.name for response in responses})
    counts = {
        "bad_lines": bad_lines.count,
        "short_sessions": len(read) - len(sessions),
        "sessions_without_response": len(sessions) - used,
        **left_out,
    }
    pooled = sum(len(negatives.pool.texts) for _, negatives in divided)
    return Built(used, len(responses), pooled, drawn, counts)


def _divide(
    responses: Sequence[Response], config: BuildCandidatesOptions
) -> Iterator[tuple[str, list[Response]]]:
    """Yields the responses of each split that has any, after the name of their sessions."""
    splits: dict[str, list[Response]] = {name: [] for name in SPLITS}
    for response in responses:
        splits[config.split_of(response.dialogue)].append(response)
    divided = config.dev_fraction or config.test_fraction
    for split, own in splits.items():
        if own:
            yield f"other sessions of the {split} split" if divided else "other sessions", own


def _ranker_maker(config: BuildCandidatesOptions) -> Callable[[Pool], Ranker | None]:
    """A function that makes the ranker of a pool, with an encoder that is loaded once."""
    if config.negatives_from == "bm25":
        return lambda pool: Bm25Ranker(pool.texts, config.words)
    if config.negatives_from == "random":
        return lambda pool: None
    from dcse_tf.encoder.sentence_encoder import SentenceEncoder  # starts TensorFlow

    encoder = SentenceEncoder.load(config.model)
    return lambda pool: CosineRanker(pool.texts, encoder.encode)
