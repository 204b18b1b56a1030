"""Builds grouped candidates from dialogues: a context, its true response, and negatives.

Negatives are responses from other sessions, of the responder's role if there are enough. Most
random negatives are easy to tell from the true response; those that BM25 finds nearest to the
context are hard. The very nearest may answer the context as well as the true response does, so some
of them can be skipped.
"""

import collections
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dcse_tf.data.corpus import SplitOptions, content_key, read_long_sessions
from dcse_tf.data.dialogue import Session, Utterance, make_splitter
from dcse_tf.data.formats.candidates import CandidateGroup
from dcse_tf.data.manifest import SPLITS
from dcse_tf.errors import InputError
from dcse_tf.files import atomic_file, hash_number
from dcse_tf.options import option
from dcse_tf.progress import Progress
from dcse_tf.sets.retrieval_set import Bm25


class BuildCandidatesOptions(SplitOptions):
    """Builds grouped candidates from dialogues: each context with its response and negatives."""

    output: str = option(
        "", "The file to write, one JSON object a context.", required=True, path="writes"
    )
    responses: str = option(
        "one",
        "Responses of a session: one, drawn, or all that have a turn before them.",
        choices=("one", "all"),
    )
    context_turns: int = option(
        10, "Turns before the response to use as its context, at most. 0: all.", minimum=0
    )
    candidates: int = option(
        10, "Candidates for a context, including the true response.", minimum=2, maximum=10_000
    )
    negatives_from: str = option(
        "random",
        "The other candidates are responses of other sessions, drawn or those that BM25 finds "
        "nearest to the context. They are of the split of their response, so that none is held "
        "out: give the fractions and seed of prepare_data.",
        choices=("random", "bm25"),
    )
    skip_top: int = option(
        0,
        "With bm25: nearest ones to skip, as they may be as good as the true response.",
        minimum=0,
        maximum=1_000_000,
    )
    same_role: bool = option(
        True,
        "Choose negatives among what the responder's role says, if that is enough; else who "
        "speaks tells many from the true response.",
    )
    dev_fraction: float = 0.0  # no split: negatives come from all other sessions
    test_fraction: float = 0.0
    overwrite: bool = option(False, "Replace the output if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.negatives_from == "random" and self.skip_top:
            self.refuse("skip_top", "has no meaning with `negatives_from`=random")


class Response(NamedTuple):
    """A turn that candidates are made for."""

    session: Session  # with an id of its own
    # The id that decides about its split: that of the session's dialogue or, if the session is a
    # copy, of the first copy (see `Splitter`).
    dialogue: str
    turn: int  # index in the session, at least 1

    @property
    def utterance(self) -> Utterance:
        return self.session.turns[self.turn]


def _choose_responses(sessions: Iterable[Session], responses: str, seed: int) -> list[Response]:
    """The turns with a turn before them, or only "one" of each session, which has two or more; what
    is drawn depends on the seed and the session's id.
    """
    times: collections.Counter[str] = collections.Counter()
    first_copies: dict[int, str] = {}
    chosen = []
    for session in sessions:
        dialogue, name = session.dialogue, session.session_id
        if not session.given and (key := content_key(session.turns)) is not None:
            dialogue = first_copies.setdefault(key, dialogue)
        times[name] += 1
        if times[name] > 1:  # the same id in two files
            session = Session(f"{name}#{times[name]}", session.turns, session.given)
        turns = list(range(1, len(session.turns)))
        if responses == "one":
            rng = np.random.default_rng(hash_number(f"{seed}:response:{session.session_id}"))
            turns = [turns[int(rng.integers(len(turns)))]]
        chosen += [Response(session, dialogue, turn) for turn in turns]
    return chosen


class _Pool:
    """The distinct responses of a split, ignoring case, that negatives are chosen from; `texts` are
    sorted, and of those that differ only in case the first in that order.
    """

    def __init__(self, responses: Sequence[Response], config: BuildCandidatesOptions):
        self._config = config
        first: dict[str, str] = {}
        for text in sorted({response.utterance.text for response in responses}):
            first.setdefault(text.casefold(), text)
        self.texts = list(first.values())
        places = {key: place for place, key in enumerate(first)}
        of_role: dict[str, set[int]] = collections.defaultdict(set)
        self._said: dict[str, set[int]] = collections.defaultdict(set)
        for response in responses:
            of_role[response.utterance.role].add(places[response.utterance.text.casefold()])
            keys = {turn.text.casefold() for turn in response.session.turns}
            # Sessions may be pieces of a dialogue, of which no text is a negative.
            self._said[response.session.dialogue] |= {places[key] for key in keys if key in places}
        self._of_role = {role: np.array(sorted(own)) for role, own in of_role.items()}
        self._all = np.arange(len(self.texts))
        self._index, self._split = None, make_splitter("auto")
        if config.negatives_from == "bm25" and responses:
            words = [self._split(text) for text in self.texts]
            if not any(words):
                raise InputError("no response has a word")
            self._index = Bm25(words)

    def make_group(self, response: Response) -> tuple[CandidateGroup, int]:
        """The group of a response, and how many of its negatives were drawn at random."""
        config = self._config
        session, true = response.session, response.utterance
        name = f"{session.session_id}:{response.turn}"
        context = session.turns[: response.turn][-config.context_turns :]  # of 0 all
        wanted, skip = config.candidates - 1, config.skip_top
        banned = self._said[session.dialogue]
        among, own = self._all, self._of_role[true.role]
        if config.same_role:
            # A role with too few responses may be a name that hardly any session shares.
            first, last = (np.searchsorted(own, [*banned], side) for side in ("left", "right"))
            among = own if len(own) - (last - first).sum() >= wanted + skip else among
        near: list[int] = []
        if self._index:
            words = [word for turn in context for word in self._split(turn.text)]
            scores = self._index.scores(words)[among]
            # What has no word of the context is not near.
            order = among[np.argsort(-scores, kind="stable")][: np.count_nonzero(scores > 0.0)]
            found = order[~np.isin(order, list(banned))][: skip + wanted].tolist()
            near, banned = found[skip:], banned | set(found)

        # Drawing as many more as are banned leaves enough without filtering all places.
        rng = np.random.default_rng(hash_number(f"{config.seed}:rivals:{name}"))
        missing = wanted - len(near)
        drawn = rng.choice(among, min(len(among), missing + len(banned)), replace=False).tolist()
        drawn = [place for place in drawn if place not in banned][:missing]
        if len(drawn) < missing:
            raise InputError(
                f"session {session.session_id!r}: only {len(near) + len(drawn)} responses of other "
                f"sessions of its split, too few for `candidates`={wanted + 1} and "
                f"`skip_top`={skip}"
            )
        texts = (true.text, *(self.texts[place] for place in (*near, *drawn)))
        labels, dialogue = (1, *[0] * wanted), response.dialogue
        return CandidateGroup(name, context, texts, labels, true.role, dialogue), len(drawn)


def build_candidates(config: BuildCandidatesOptions) -> str:
    """Builds a file of grouped candidates from dialogues; returns what was built and what was left
    out.
    """
    with atomic_file(pathlib.Path(config.output), config.overwrite) as partial:
        left_out = collections.Counter[str]()
        sessions = list(read_long_sessions(config, left_out))
        responses = _choose_responses(sessions, config.responses, config.seed)
        drawn = done = pooled = 0
        with (
            partial.open("w", encoding="utf-8") as file,
            Progress("groups", len(responses)) as progress,
        ):
            for split in SPLITS:
                own = [each for each in responses if config.split_of(each.dialogue) == split]
                pool = _Pool(own, config)
                pooled += len(pool.texts)
                for response in own:
                    group, at_random = pool.make_group(response)
                    file.write(json.dumps(group.to_dict(), ensure_ascii=False) + "\n")
                    drawn, done = drawn + at_random, done + 1
                    progress.update(done)
    told = ", ".join(f"{count} {what}" for what, count in left_out.items())
    return (
        f"{len(responses)} groups of {config.candidates} candidates from {len(sessions)} sessions "
        f"with {pooled} different responses; {drawn} negatives drawn at random\n"
        f"left out: {told}"
    )
