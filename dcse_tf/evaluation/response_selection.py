"""Response selection on held-out sessions: ranks the true response among others.

Whoever chooses a response has only heard the turns before it. So a context consists of earlier
turns. The paper's context is bidirectional: it also has the turns after the response, which often
repeat it. Scores with such contexts are named apart, such as cosine_bidirectional_r1.
"""

import collections
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dcse_tf.data.dialogue import Context, Utterance, make_session
from dcse_tf.data.formats.messages import parse_dialogue
from dcse_tf.data.formats.reading import read_json_lines
from dcse_tf.encoder.unit_length import normalize
from dcse_tf.evaluation import geometry, metrics
from dcse_tf.evaluation.metrics import Encode, Evaluation
from dcse_tf.evaluation.names import PROJECTED, RECALLS, bidirectional
from dcse_tf.files import hash_number
from dcse_tf.input_files import BadLines
from dcse_tf.matching.head_files import HeadMaps, project

# A function from contexts and candidates to scores, float `[samples, candidates]`, higher is
# better.
Score = Callable[[list[list[str]], list[list[str]]], np.ndarray]

_CHUNK = 1000  # contexts whose embeddings are held at a time


class HeldOutSession(NamedTuple):
    """A session to draw a response from.

    Attributes:
        session_id: its id.
        turns: its turns, in order.
        dialogue: the id of the dialogue that the session is a piece of, as those prepared with
            candidates are; None for a whole dialogue.
    """

    session_id: str
    turns: tuple[Utterance, ...]
    dialogue: str | None = None

    @property
    def part_of(self) -> str:
        """The id of the dialogue."""
        return self.dialogue or self.session_id

    @property
    def texts(self) -> list[str]:
        """The texts of the turns."""
        return [turn.text for turn in self.turns]


@dataclasses.dataclass(frozen=True)
class Sample:
    """Context turns in order, and candidate responses, the true ones first.

    Attributes:
        context, candidates: the texts.
        positives: number of candidates that are true responses.
        roles: the speaker of each turn of the context; None if unknown.
        responder: the speaker of the response; None if unknown.
        later: the turns after the response, as many as the context may have.
        of_role: number of negatives that speakers of the responder's role said; None if it has too
            few responses to be known as a role.
    """

    # A set of samples is identified by a hash of its repr, which contains only the texts.
    context: list[str]
    candidates: list[str]
    positives: int = dataclasses.field(default=1, repr=False)
    roles: list[str] | None = dataclasses.field(default=None, repr=False)
    responder: str | None = dataclasses.field(default=None, repr=False)
    later: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    of_role: int | None = dataclasses.field(default=None, repr=False)

    def with_later_turns(self) -> "Sample":
        """The sample with a bidirectional context, whose speakers are left out."""
        return dataclasses.replace(self, context=[*self.context, *self.later], roles=None)


# A function from samples to scores, float `[candidates]` for each sample, higher is better. Samples
# may have different numbers of candidates.
SampleScore = Callable[[Sequence[Sample]], Sequence[np.ndarray]]


def score_texts(score: Score) -> SampleScore:
    """Scores samples with a function of texts; groups samples with equal numbers of candidates."""

    def score_samples(samples: Sequence[Sample]) -> list[np.ndarray]:
        rows = [np.zeros(0)] * len(samples)
        lengths = np.array([len(sample.candidates) for sample in samples], np.int64)
        for length in np.unique(lengths):
            places = np.flatnonzero(lengths == length).tolist()
            found = score(
                [samples[place].context for place in places],
                [samples[place].candidates for place in places],
            )
            for place, row in zip(places, found, strict=True):
                rows[place] = row
        return rows

    return score_samples


def score_dialogues(score: Callable[..., Sequence[np.ndarray]]) -> SampleScore:
    """Scores samples with a re-ranker's `score`; passes the speakers if all samples have them."""

    def score_samples(samples: Sequence[Sample]) -> Sequence[np.ndarray]:
        told = all(sample.roles and sample.responder is not None for sample in samples)
        return score(
            [sample.context for sample in samples],
            [sample.candidates for sample in samples],
            [sample.roles for sample in samples] if told else None,
            [sample.responder for sample in samples] if told else None,
        )

    return score_samples


def read_sessions(path: pathlib.Path, join: bool = False) -> list[HeldOutSession]:
    """Reads the sessions of a jsonl file that have at least two turns.

    Args:
        path: the file.
        join: whether to join consecutive turns of one speaker. Not for files that prepare_data
            wrote, which have the turns as training sees them.
    """

    def parse(number: int, line: dict[str, Any]) -> HeldOutSession:
        session = make_session(*parse_dialogue(line), join=join)
        dialogue = line.get("dialogue")
        named = dialogue if isinstance(dialogue, str) else None
        return HeldOutSession(session.session_id, session.turns, named)

    sessions = read_json_lines(path, BadLines(0, option=""), parse)
    return [session for session in sessions if len(session.turns) > 1]


def read_dialogues(path: pathlib.Path, join: bool = False) -> list[tuple[str, list[str]]]:
    """Like `read_sessions`, as (id, texts of the turns)."""
    return [(session.session_id, session.texts) for session in read_sessions(path, join)]


def make_samples(
    sessions: Sequence[HeldOutSession],
    *,
    candidates: int,
    context_turns: int,
    max_samples: int,
    seed: int,
    same_role: bool = True,
) -> list[Sample]:
    """Draws one response per session, and its negatives from the responses of other sessions.

    Negatives are drawn without replacement and differ, ignoring case, from the true response and
    from each other. Which response is drawn depends only on the seed and the session.

    If any session names its dialogue, they are pieces of dialogues, each with its response at its
    end: that is the response, and what its dialogue says anywhere, ignoring case, is no negative.

    Customers and agents speak differently, so that a negative said by the other party can be told
    without the context. Hence negatives are responses of the responder's role if there are enough;
    a role with fewer is taken for a name, which is known in too few sessions.

    Args:
        sessions: sessions of two turns or more.
        candidates: number of candidates per sample, including the true response.
        context_turns: maximum number of turns before the response.
        max_samples: largest number of sessions, which are drawn at random; 0 for all.
        seed: seed of all draws.
        same_role: whether negatives are of the responder's role, where it has enough.

    Returns:
        The samples; empty if there are fewer distinct responses than candidates.
    """
    said = _list_said(sessions)
    ordered = sorted(sessions, key=lambda session: _draw(seed, "order", session.session_id))
    chosen = ordered[:max_samples] if max_samples else ordered
    drawn = [_draw_response(session, context_turns, seed, bool(said)) for session in chosen]
    roles_of = collections.defaultdict(set)
    for sample in drawn:
        roles_of[sample.candidates[0]].add(sample.responder)
    texts = sorted(roles_of)
    keys = np.array([text.casefold() for text in texts])
    roles = {sample.responder for sample in drawn}
    of_roles = {role: np.array([role in roles_of[text] for text in texts]) for role in roles}

    samples, rivals = [], candidates - 1
    for session, sample in zip(chosen, drawn, strict=True):
        rng = np.random.default_rng(_draw(seed, "rivals", session.session_id))
        order, of_role = rng.permutation(len(texts)), of_roles[sample.responder]
        own = said.get(session.part_of) or {sample.candidates[0].casefold()}
        negatives = _pick(order[of_role[order]], keys, own, rivals) if same_role else []
        negatives = negatives or _pick(order, keys, own, rivals)
        if not negatives:
            return []
        together = [*sample.candidates, *(texts[place] for place in negatives)]
        shared = int(of_role[negatives].sum()) if of_role.sum() > rivals else None
        samples.append(dataclasses.replace(sample, candidates=together, of_role=shared))
    return samples


def _list_said(sessions: Sequence[HeldOutSession]) -> dict[str, set[str]]:
    """What each dialogue says, ignoring case; empty unless sessions are pieces of dialogues."""
    said: dict[str, set[str]] = {}
    if any(session.dialogue for session in sessions):
        for session in sessions:
            said.setdefault(session.part_of, set()).update(map(str.casefold, session.texts))
    return said


def _pick(places: np.ndarray, keys: np.ndarray, own: set[str], count: int) -> list[int]:
    """The first `count` places with keys that differ and are not among `own`; none if too few."""
    picked: dict[str, int] = {}
    for place in places:
        if keys[place] not in own:
            picked.setdefault(keys[place], place)
        if len(picked) == count:
            return list(picked.values())
    return []


def _draw(seed: int, purpose: str, session_id: str) -> int:
    return hash_number(f"{seed}:{purpose}:{session_id}")


def _draw_response(session: HeldOutSession, context_turns: int, seed: int, last: bool) -> Sample:
    """A sample with the true response, drawn or the `last` turn, as its only candidate."""
    turns = session.turns
    rng = np.random.default_rng(_draw(seed, "response", session.session_id))
    response = int(rng.integers(len(turns) - 1 if last else 1, len(turns)))
    around = Context(context_turns, "both").of(len(turns), response)
    earlier = [turns[turn] for turn in around if turn < response]
    later = [turns[turn] for turn in around if turn > response]
    return Sample(
        [turn.text for turn in earlier],
        [turns[response].text],
        roles=[turn.role for turn in earlier],
        responder=turns[response].role,
        later=tuple(turn.text for turn in later),
    )


def evaluate_both_contexts(
    samples: Sequence[Sample], score: Score, similarity: str
) -> dict[str, Evaluation]:
    """Evaluates with the turns before each response, and with those after it too.

    Args:
        samples: as for `evaluate_samples`.
        score: computes a similarity of contexts and candidates.
        similarity: its name.

    Returns:
        The evaluation by the similarity and, unless nothing is said after any response, the one
        with bidirectional contexts, by name.
    """
    # In one call, so that a text that both contexts have is encoded once.
    around = []
    if any(sample.later for sample in samples):
        around = [sample.with_later_turns() for sample in samples]
    rows = score_texts(score)([*samples, *around])
    found = {similarity: _evaluate_rows(samples, rows[: len(samples)], similarity)}
    if around:
        name = bidirectional(similarity)
        found[name] = _evaluate_rows(around, rows[len(samples) :], name)
    return found


def evaluate_response_selection(
    samples: list[Sample], score: Score, similarity: str = "matching"
) -> Evaluation:
    """Like `evaluate_samples`, with a function of texts as the score."""
    return evaluate_samples(samples, score_texts(score), similarity)


def evaluate_samples(samples: Sequence[Sample], score: SampleScore, similarity: str) -> Evaluation:
    """R@k and MRR in percent; ties count as the mean over all orders.

    Args:
        samples: samples with one true response each and equal numbers of candidates.
        score: computes a similarity of contexts and candidates.
        similarity: its name, the prefix of the scores' names.

    Returns:
        Scores: those of `rank_scores`, such as matching_r1, and the same with "chance_" for a
        random ranking; tie_share, the percentage of candidates with the same score as another one
        of their sample; samples, the number of samples; role_r1, where any role is known, R@1 of
        a ranking that knows nothing but the candidates' roles. Items: one per sample.
    """
    return _evaluate_rows(samples, score(samples), similarity)


def _evaluate_rows(
    samples: Sequence[Sample], scores: Sequence[np.ndarray], similarity: str
) -> Evaluation:
    """`evaluate_samples`, given the scores of each sample's candidates."""
    rows = [_score_sample(row, similarity) for row in scores]
    chance = _score_sample(np.zeros(len(samples[0].candidates)), similarity)
    items = {name: 100.0 * np.array([row[name] for row in rows]) for name in chance}
    means = {name: float(np.mean(values)) for name, values in items.items()}
    means |= {f"chance_{k}": 100.0 * v for k, v in chance.items() if k != "tie_share"}
    of_roles = [sample.of_role for sample in samples]
    if any(count is not None for count in of_roles):
        most = len(samples[0].candidates) - 1
        hits = [1 / (1 + (most if count is None else count)) for count in of_roles]
        means["role_r1"] = 100.0 * float(np.mean(hits))
    return Evaluation({**means, "samples": float(len(samples))}, items)


def _score_sample(scores: np.ndarray, similarity: str) -> dict[str, float]:
    relevant = np.arange(len(scores)) == 0
    ranks = [k for k in RECALLS if k < len(scores)]
    return {
        **{f"{similarity}_r{k}": metrics.recall_at(k, scores) for k in ranks},
        f"{similarity}_mrr": metrics.reciprocal_rank(scores, relevant),
        "tie_share": metrics.tied_share(scores),
    }


def cosine_score(encode: Encode, heads: HeadMaps | None = None) -> Score:
    """Scores candidates by their cosine with the mean of the context's embeddings.

    This does not use the matching, so it shows what the matching adds.

    Args:
        encode: embeds texts.
        heads: projection heads, applied to the mean and to the candidates' embeddings; None for
            none.
    """

    def score(contexts: list[list[str]], candidates: list[list[str]]) -> np.ndarray:
        parts = [slice(start, start + _CHUNK) for start in range(0, len(contexts), _CHUNK)]
        return np.concatenate([score_part(contexts[part], candidates[part]) for part in parts])

    def score_part(contexts: list[list[str]], candidates: list[list[str]]) -> np.ndarray:
        rows = embed_groups([*contexts, *candidates], encode)
        means = np.stack([rows(group).mean(axis=0) for group in contexts])
        responses = [rows(group) for group in candidates]
        if heads:
            means = project(means, heads["context"])
            responses = [project(group, heads["response"]) for group in responses]
        pairs = zip(responses, normalize(means), strict=True)
        return np.stack([normalize(group) @ mean for group, mean in pairs])

    return score


def embed_samples(samples: list[Sample], encode: Encode) -> Encode:
    """Encodes the samples' texts, to score them in several ways.

    Returns:
        A function from these texts to their embeddings.
    """
    groups = [[*each.context, *each.candidates, *each.later] for each in samples]
    return embed_groups(groups, encode)


def evaluate_by_embeddings(
    samples: list[Sample], encode: Encode, heads: HeadMaps
) -> dict[str, Evaluation]:
    """The evaluation by each comparison of sentence embeddings, which are computed once.

    Args:
        samples: the samples.
        encode: embeds texts.
        heads: projection heads; empty for none.

    Returns:
        "cosine", by `cosine_score`; with heads, also "projected", the cosine behind them; and both
        with bidirectional contexts, see `evaluate_both_contexts`. "cosine" has the figures of
        `geometry.describe` over all turns of contexts and candidates, where the mean of a context
        and its true response are a positive pair.
    """
    rows = embed_samples(samples, encode)
    found = evaluate_both_contexts(samples, cosine_score(rows), "cosine")
    if heads:
        found |= evaluate_both_contexts(samples, cosine_score(rows, heads), PROJECTED)

    texts = sorted({text for sample in samples for text in (*sample.context, *sample.candidates)})
    means = normalize(np.stack([rows(sample.context).mean(axis=0) for sample in samples]))
    responses = normalize(rows([sample.candidates[0] for sample in samples]))
    distances = geometry.squared_distances(means, responses)
    shape = geometry.describe(texts, normalize(rows(texts)), distances)
    found["cosine"] = dataclasses.replace(
        found["cosine"], scores={**found["cosine"].scores, **shape}
    )
    return found


def embed_groups(groups: Sequence[list[str]], encode: Encode) -> Encode:
    """Encodes each distinct text once; returns a function from these texts to embeddings."""
    texts = sorted({text for group in groups for text in group})
    index = {text: place for place, text in enumerate(texts)}
    embeddings = np.asarray(encode(texts), np.float64)
    return lambda group: embeddings[[index[text] for text in group]]
