"""Builds grouped candidates from dialogues: a context, its true response, and negatives.

Negatives are responses from other sessions, of the responder's role if there are enough. Most
random negatives are easy to tell from the true response; those that BM25 or an encoder finds
nearest to the context are hard. The very nearest may answer the context as well as the true
response does, so some of them can be skipped.
"""

import collections
import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from dcse_tf.data.corpus import content_key, read_sessions
from dcse_tf.data.dialogue import Session, Utterance
from dcse_tf.data.formats.candidates import CandidateGroup
from dcse_tf.data.manifest import SPLITS
from dcse_tf.data.words import make_splitter
from dcse_tf.encoder.unit_length import normalize
from dcse_tf.errors import InputError
from dcse_tf.evaluation.metrics import Encode, quantize
from dcse_tf.files import atomic_file, hash_number, refuse_existing
from dcse_tf.progress import Progress
from dcse_tf.sets.retrieval_set import Bm25
from dcse_tf.sets.set_options import BuildCandidatesOptions

# From the texts of a context to scores of all responses of the pool, float `[pool]`. One that
# cannot be near, such as a response without a word of the context by BM25, has minus infinity.
Rank = Callable[[Sequence[str]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Response:
    """A turn that candidates are made for.

    Attributes:
        session: its session.
        name: a unique name of the session.
        dialogue: the id that decides about its split: that of the session's dialogue or, if the
            session is a copy, of the first copy (see `Splitter`).
        turn: the index of the turn in the session, at least 1.
    """

    session: Session
    name: str
    dialogue: str
    turn: int

    @property
    def utterance(self) -> Utterance:
        return self.session.turns[self.turn]


def choose_responses(sessions: Sequence[Session], responses: str, seed: int) -> list[Response]:
    """Chooses the turns that serve as responses, in the order of the sessions.

    Args:
        sessions: sessions whose consecutive turns of one speaker are already joined.
        responses: "one" per session, drawn by the seed and the session's id, or "all"; always
            turns with a turn before them.
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
        turns = list(range(1, len(session.turns)))
        if responses == "one" and turns:
            rng = np.random.default_rng(hash_number(f"{seed}:response:{name}"))
            turns = [turns[int(rng.integers(len(turns)))]]
        dialogue = session.dialogue
        if not session.given and (key := content_key(session.turns)) is not None:
            dialogue = first_copies.setdefault(key, dialogue)
        chosen += [Response(session, name, dialogue, turn) for turn in turns]
    return chosen


class Pool:
    """The distinct responses of a split, ignoring case, that negatives are chosen from.

    Args:
        responses: the responses that candidates are made for.

    Attributes:
        texts: the sorted texts; of texts that differ only in case, the first in that order.
    """

    def __init__(self, responses: Sequence[Response]):
        first: dict[str, str] = {}
        for text in sorted({response.utterance.text for response in responses}):
            first.setdefault(text.casefold(), text)
        self.texts = list(first.values())
        self._places = {key: place for place, key in enumerate(first)}
        of_role: dict[str, set[int]] = collections.defaultdict(set)
        # What each dialogue says, for sessions that are pieces of one.
        self._said: dict[str, set[int]] = collections.defaultdict(set)
        for response in responses:
            of_role[response.utterance.role] |= self._find([response.utterance])
            if response.session.given:
                self._said[response.session.dialogue] |= self._find(response.session.turns)
        self._of_role = {role: np.array(sorted(places)) for role, places in of_role.items()}

    def _find(self, turns: Sequence[Utterance]) -> set[int]:
        keys = {turn.text.casefold() for turn in turns}
        return {self._places[key] for key in keys if key in self._places}

    def own(self, response: Response) -> set[int]:
        """Indices of what the response's own dialogue says: none of it is a negative."""
        session = response.session
        return self._said[session.dialogue] if session.given else self._find(session.turns)

    def among(self, role: str | None, banned: set[int], count: int) -> np.ndarray:
        """The indices to choose from: what the role says or, without one or if it says fewer than
        `count` that are not banned, all; a role may be a name that hardly any session shares.
        """
        own = self._of_role[role] if role is not None else np.zeros(0)
        enough = len(own) - np.isin(own, list(banned)).sum() >= count
        return own if enough else np.arange(len(self.texts))


def make_rank(responses: Sequence[Response], pool: Sequence[str], encode: Encode | None) -> Rank:
    """Ranks a pool by the cosine with a context's mean embedding, or without `encode` by BM25.

    Args:
        responses: whose contexts will be ranked.
        pool: the texts to rank.
        encode: embeds texts.
    """
    if encode:
        turns = (turn.text for response in responses for turn in response.session.turns)
        texts = list(dict.fromkeys([*pool, *turns]))
        rows = dict(zip(texts, np.asarray(encode(texts), np.float32), strict=True))
        embeddings = normalize(np.stack([rows[text] for text in pool])).astype(np.float32)

        def rank_by_cosine(context: Sequence[str]) -> np.ndarray:
            mean = np.mean([rows[text] for text in context], axis=0, keepdims=True)
            # Rounded, so that equal texts' ties do not depend on their places.
            return quantize(embeddings @ normalize(mean).astype(np.float32)[0])

        return rank_by_cosine

    split = make_splitter("auto")
    words = [split(text) for text in pool]
    if not any(words):
        raise InputError("no response has a word")
    index = Bm25(words)

    def rank_by_bm25(context: Sequence[str]) -> np.ndarray:
        scores = index.scores([word for text in context for word in split(text)])
        return np.where(scores > 0.0, scores, -np.inf)

    return rank_by_bm25


def make_group(
    response: Response, config: BuildCandidatesOptions, pool: Pool, rank: Rank | None
) -> tuple[CandidateGroup, int]:
    """The group of a response, and how many of its negatives were drawn at random.

    Args:
        response: the response.
        config: the settings.
        pool: the responses that negatives are chosen from.
        rank: finds the nearest responses; None to draw all negatives at random.

    Raises:
        InputError: other sessions of the split have too few different responses.
    """
    name, true = f"{response.name}:{response.turn}", response.utterance
    first = max(0, response.turn - config.context_turns) if config.context_turns else 0
    context = response.session.turns[first : response.turn]
    wanted, skip = config.candidates - 1, config.skip_top
    banned = pool.own(response)
    among = pool.among(true.role if config.same_role else None, banned, wanted + skip)
    near: list[int] = []
    if rank:
        scores = rank([turn.text for turn in context])[among]
        order = among[np.argsort(-scores, kind="stable")][: np.isfinite(scores).sum()]
        found = order[~np.isin(order, list(banned))][: skip + wanted].tolist()
        near, banned = found[skip:], banned | set(found)

    # Drawing as many more as are banned leaves enough without filtering all places.
    rng = np.random.default_rng(hash_number(f"{config.seed}:rivals:{name}"))
    missing = wanted - len(near)
    places = rng.choice(among, min(len(among), missing + len(banned)), replace=False)
    drawn = [place for place in places.tolist() if place not in banned][:missing]
    if len(drawn) < missing:
        raise InputError(
            f"session {response.name!r}: only {len(near) + len(drawn)} responses of other "
            f"sessions of its split, too few for `candidates`={wanted + 1} and `skip_top`={skip}"
        )
    texts = (true.text, *(pool.texts[place] for place in (*near, *drawn)))
    labels = (1, *[0] * wanted)
    group = CandidateGroup(name, context, texts, labels, true.role, response.dialogue)
    return group, len(drawn)


def build_candidates(config: BuildCandidatesOptions) -> str:
    """Builds a file of grouped candidates from dialogues.

    Returns:
        What was built and what was left out, in two lines.

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
    responses = choose_responses(sessions, config.responses, config.seed)
    if not responses:
        raise InputError(
            f"`input`={','.join(config.input)}: no response with a turn before it "
            f"({len(read)} sessions read)"
        )
    encode: Encode | None = None
    if config.negatives_from == "model":
        from dcse_tf.encoder.sentence_encoder import SentenceEncoder  # starts TensorFlow

        encode = SentenceEncoder.load(config.model).encode

    drawn = done = pooled = 0
    with (
        atomic_file(output, config.overwrite) as partial,
        partial.open("w", encoding="utf-8") as file,
        Progress("groups", len(responses)) as progress,
    ):
        for split in SPLITS:
            own = [each for each in responses if config.split_of(each.dialogue) == split]
            pool = Pool(own)
            pooled += len(pool.texts)
            ranked = own and config.negatives_from != "random"
            rank = make_rank(own, pool.texts, encode) if ranked else None
            for response in own:
                group, at_random = make_group(response, config, pool, rank)
                file.write(json.dumps(group.to_dict(), ensure_ascii=False) + "\n")
                drawn, done = drawn + at_random, done + 1
                progress.update(done)

    used = len({response.name for response in responses})
    return (
        f"{len(responses)} groups of {config.candidates} candidates from {used} sessions with "
        f"{pooled} different responses; {drawn} negatives drawn at random\n"
        f"left out: {bad_lines.count} bad lines, {len(read) - len(sessions)} short sessions, "
        f"{left_out['empty_utterances']} empty utterances"
    )
