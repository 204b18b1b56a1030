"""Response selection: ranks the true response of a context among others.

Whoever chooses a response has only heard the turns before it. So a context consists of earlier
turns. The paper's context is bidirectional: it also has the turns after the response, which often
repeat it. Scores with such contexts are named apart, such as cosine_bidirectional_r1.

Samples are drawn from held-out sessions, or are given as groups of candidates.
"""

import collections
import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dcse_tf.data.corpus import content_key
from dcse_tf.data.dialogue import Context, Session, make_session
from dcse_tf.data.formats.candidates import CandidateGroup
from dcse_tf.data.formats.reading import read_jsonl
from dcse_tf.encoder.backend import Match, normalize
from dcse_tf.evaluation import metrics
from dcse_tf.evaluation.metrics import PROJECTED, Encode, Evaluation
from dcse_tf.files import hash_number
from dcse_tf.input_files import BadLines
from dcse_tf.matching.head_files import HeadMaps, project

# Scores of the candidates of each sample, float `[candidates]` each, by the similarity's name.
Scores = Mapping[str, Sequence[np.ndarray]]

_CHUNK = 2000  # contexts whose embeddings, and those of their candidates, are held at a time


@dataclasses.dataclass(frozen=True)
class Sample:
    """Context turns in order, and candidate responses, the true ones first."""

    # A set of samples is identified by a hash of its repr, which contains only the texts.
    context: list[str]
    candidates: list[str]
    positives: int = dataclasses.field(default=1, repr=False)  # true responses among them
    # The speakers of the context's turns and of the response; None if unknown.
    roles: list[str] | None = dataclasses.field(default=None, repr=False)
    responder: str | None = dataclasses.field(default=None, repr=False)
    # The turns after the response, as many as the context may have.
    later: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    # How many negatives were said by speakers of the responder's role; None if it has too few
    # responses to be known as a role.
    of_role: int | None = dataclasses.field(default=None, repr=False)


def read_dialogues(path: pathlib.Path, copies: bool = False) -> list[Session]:
    """Reads the sessions of a jsonl file that have at least two turns, which stay as they are; of
    copies, whose turns would be wrong negatives of each other, the first alone, unless `copies`.

    `given`, without negatives, names the dialogue of a piece, as of those prepared with candidates.
    """
    found: dict[int, Session] = {}
    for number, (name, turns, *given) in enumerate(read_jsonl(path, BadLines())):
        session = make_session(name, turns, join=False)
        key = None if copies or given else content_key(turns)
        if len(session.turns) > 1:
            kept = dataclasses.replace(session, given=given[0] if given else None)
            found.setdefault(number if key is None else key, kept)
    return list(found.values())


def sample_group(group: CandidateGroup, turns: int = 0) -> Sample:
    """Turns a group into a sample: true responses first, otherwise in the file's order. Of the
    context the last `turns` are kept; 0 for all.
    """
    order = sorted(range(len(group.labels)), key=lambda place: -group.labels[place])
    context = group.context[-turns:]
    return Sample(
        [turn.text for turn in context],
        [group.candidates[place] for place in order],
        positives=sum(group.labels),
        roles=[turn.role for turn in context],
        responder=group.responder,
    )


def make_samples(
    sessions: Sequence[Session], *, candidates: int, context_turns: int, max_samples: int, seed: int
) -> list[Sample]:
    """Draws one response per session, and its negatives from the responses of other sessions.

    Negatives are drawn without replacement and differ, ignoring case, from the true response and
    from each other. Which response is drawn depends only on the seed and the session.

    If any session names its dialogue, they are pieces of dialogues, each with its response at its
    end: that is the response, and what its dialogue says anywhere, ignoring case, is no negative.

    A negative said by the other party could be told without the context, so negatives are of the
    responder's role if there are enough; a role with fewer is taken for a name.

    Sessions have two turns or more; for the settings, see `EvaluateOptions`. The result is empty if
    there are fewer distinct responses than candidates.
    """
    # What each dialogue says, ignoring case, if sessions are pieces of dialogues.
    said: dict[str, set[str]] = {}
    for session in sessions if any(session.given for session in sessions) else ():
        texts = (turn.text.casefold() for turn in session.turns)
        said.setdefault(session.dialogue, set()).update(texts)
    ordered = sorted(sessions, key=lambda each: hash_number(f"{seed}:order:{each.session_id}"))
    chosen = ordered[:max_samples] if max_samples else ordered
    drawn = [_draw_response(session, context_turns, seed, bool(said)) for session in chosen]
    roles_of = collections.defaultdict(set)
    for sample in drawn:
        roles_of[sample.candidates[0]].add(sample.responder)
    responses = sorted(roles_of)
    keys = [text.casefold() for text in responses]
    roles = {sample.responder for sample in drawn}
    of_roles = {role: np.array([role in roles_of[text] for text in responses]) for role in roles}

    samples, rivals = [], candidates - 1
    for session, sample in zip(chosen, drawn, strict=True):
        rng = np.random.default_rng(hash_number(f"{seed}:rivals:{session.session_id}"))
        order, of_role = rng.permutation(len(responses)), of_roles[sample.responder]
        own = said.get(session.dialogue) or {sample.candidates[0].casefold()}
        negatives = _pick(order[of_role[order]], keys, own, rivals)
        negatives = negatives or _pick(order, keys, own, rivals)
        if not negatives:
            return []
        together = [*sample.candidates, *(responses[place] for place in negatives)]
        shared = int(of_role[negatives].sum()) if of_role.sum() > rivals else None
        samples.append(dataclasses.replace(sample, candidates=together, of_role=shared))
    return samples


def _pick(places: np.ndarray, keys: Sequence[str], own: set[str], count: int) -> list[int]:
    """The first `count` places with keys that differ and are not among `own`; none if too few."""
    picked: dict[str, int] = {}
    for place in places:
        if keys[place] not in own:
            picked.setdefault(keys[place], place)
        if len(picked) == count:
            return list(picked.values())
    return []


def _draw_response(session: Session, context_turns: int, seed: int, last: bool) -> Sample:
    """A sample with the true response, drawn or the `last` turn, as its only candidate."""
    turns = session.turns
    rng = np.random.default_rng(hash_number(f"{seed}:response:{session.session_id}"))
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


def _score_contexts(
    samples: Sequence[Sample], score: Callable[[list[list[str]], list[list[str]]], Scores]
) -> Scores:
    """The scores of `score(contexts, candidates)` with the turns before each response and, unless
    nothing is said after any response, with those on both sides, named apart.
    """
    both = any(sample.later for sample in samples)
    ways: list[Callable[[str], str]] = [str, metrics.bidirectional] if both else [str]
    # Both contexts of a sample stand together, so that a text that both have is encoded once.
    contexts: list[list[str]] = []
    for sample in samples:
        contexts += [sample.context, [*sample.context, *sample.later]][: len(ways)]
    found = score(contexts, [sample.candidates for sample in samples for _ in ways])
    return {
        way(name): rows[place :: len(ways)]
        for name, rows in found.items()
        for place, way in enumerate(ways)
    }


def score_by_embeddings(samples: Sequence[Sample], encode: Encode, heads: HeadMaps) -> Scores:
    """Scores candidates by their cosine with the mean of the context's embeddings.

    This does not use the matching, so it shows what the matching adds. Each text of some thousand
    contexts is encoded once. The scores are "cosine" and, with projection heads, "projected": the
    cosine of the context's mean behind one head and the candidate behind the other. For contexts,
    see `_score_contexts`.
    """

    def compare(mean: np.ndarray, responses: np.ndarray) -> np.ndarray:
        return normalize(responses) @ normalize(mean)[0]

    def score(contexts: list[list[str]], candidates: list[list[str]]) -> Scores:
        found: dict[str, list[np.ndarray]] = collections.defaultdict(list)
        pairs = list(zip(contexts, candidates, strict=True))
        for start in range(0, len(pairs), _CHUNK):
            chunk = pairs[start : start + _CHUNK]
            texts = sorted({text for pair in chunk for group in pair for text in group})
            index = {text: place for place, text in enumerate(texts)}
            embeddings = np.asarray(encode(texts), np.float64)
            for pair in chunk:
                turns, responses = (embeddings[[index[text] for text in group]] for group in pair)
                mean = turns.mean(axis=0, keepdims=True)
                found["cosine"].append(compare(mean, responses))
                if heads:
                    ends = project(mean, heads["context"]), project(responses, heads["response"])
                    found[PROJECTED].append(compare(*ends))
        return found

    return _score_contexts(samples, score)


def score_by_matching(samples: Sequence[Sample], match: Match) -> Scores:
    """Scores candidates by a model's own similarity, `match`, as "matching"; see `Backend` and, for
    contexts, `_score_contexts`.
    """

    def score(contexts: list[list[str]], candidates: list[list[str]]) -> Scores:
        rows = [np.zeros(0)] * len(contexts)
        for length in {len(group) for group in candidates}:
            places = [place for place, group in enumerate(candidates) if len(group) == length]
            found = match([contexts[place] for place in places], [candidates[p] for p in places])
            for place, row in zip(places, found, strict=True):
                rows[place] = row
        return {"matching": rows}

    return _score_contexts(samples, score)


def score_by_reranker(
    samples: Sequence[Sample], score: Callable[..., Sequence[np.ndarray]]
) -> Scores:
    """Scores candidates by a re-ranker's `score`, as "reranker", which reads only what was said
    before a response, and who spoke if all samples say it.
    """
    texts = [sample.context for sample in samples], [sample.candidates for sample in samples]
    speakers: tuple[Any, Any] = None, None
    if all(x.roles and all(x.roles) and x.responder is not None for x in samples):
        speakers = [sample.roles for sample in samples], [sample.responder for sample in samples]
    return {metrics.RERANKER: score(*texts, *speakers)}


def evaluate_responses(
    samples: Sequence[Sample], scores: Scores, grouped: bool = False
) -> dict[str, Evaluation]:
    """The evaluation by each similarity, see `evaluate_scores`."""
    return {name: evaluate_scores(samples, rows, name, grouped) for name, rows in scores.items()}


def evaluate_scores(
    samples: Sequence[Sample], scores: Sequence[np.ndarray], similarity: str, grouped: bool = False
) -> Evaluation:
    """R@k, MRR and, of groups, MAP in percent; ties count as the mean over all orders.

    R@k, the share of the true responses that are among the first k, cannot be compared between
    different numbers of candidates. It is computed over the groups of the most frequent size, the
    larger one in a tie, for k below that size; R@1 of 2, MAP and MRR over all groups.

    Args:
        samples, grouped: the samples, and whether they are groups of a file.
        scores: those of each sample's candidates, float `[candidates]`, higher is better.
        similarity: its name, the prefix of the scores' names.

    Returns:
        Scores: those of `rank_scores`, or of `group_scores`, and the same with "chance_" for a
        random ranking; tie_share, the percentage of candidates with the same score as another one
        of their sample. Of drawn samples: samples, their number; role_r1, where any role is known,
        R@1 of a ranking that knows nothing but the candidates' roles. Of groups: groups, their
        number; groups_of_N, the number of groups with N candidates; and candidates, the N of R@k.
        Items: one per sample; for R@k of groups, one per group of N candidates.
    """
    sizes = collections.Counter(len(sample.candidates) for sample in samples)
    size = max(sizes, key=lambda length: (sizes[length], length))
    recalls = [f"{similarity}_r{k}" for k in metrics.RECALLS]
    list_names = metrics.group_scores if grouped else metrics.rank_scores
    pairs = zip(scores, samples, strict=True)
    rows = [(np.asarray(row), sample.positives) for row, sample in pairs]
    items: dict[str, np.ndarray] = {}
    chances: dict[str, float] = {}
    for name in list_names(similarity, size):
        counted = [row for row in rows if len(row[0]) == size or name not in recalls]
        items[name], chance = metrics.rate(name.removeprefix(f"{similarity}_"), counted)
        chances[f"chance_{name}"] = float(np.mean(chance))
    items["tie_share"], _ = metrics.rate("tie_share", rows)
    means = {name: float(np.mean(values)) for name, values in items.items()} | chances
    of_roles = [sample.of_role for sample in samples]
    if any(count is not None for count in of_roles):
        hits = [1 / (size if count is None else 1 + count) for count in of_roles]
        means["role_r1"] = 100.0 * float(np.mean(hits))
    if grouped:
        means |= {"groups": float(len(samples)), "candidates": float(size)}
        means |= {f"groups_of_{length}": float(sizes[length]) for length in sorted(sizes)}
    else:
        means["samples"] = float(len(samples))
    return Evaluation(means, items)
