"""The evaluation job.

If many settings are tried on a set, the best one is best partly by chance, and its score on that
set is biased upwards. Its score on queries or pairs that were not used for the choice is unbiased,
which is why sets can be split into halves.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np
from absl import logging

from dcse_tf.bert.checkpoints import ENCODER_FOLDER, resolve_checkpoint
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.evaluation import report, response_selection
from dcse_tf.evaluation.candidate_groups import (
    CandidateSet,
    evaluate_groups,
    read_candidate_set,
)
from dcse_tf.evaluation.metrics import Encode, Evaluation
from dcse_tf.evaluation.names import PROJECTED, RERANKER
from dcse_tf.evaluation.options import EvaluateOptions
from dcse_tf.evaluation.report import Result, make_result
from dcse_tf.evaluation.response_selection import (
    SampleScore,
    read_sessions,
    score_dialogues,
    score_texts,
)
from dcse_tf.evaluation.retrieval import RetrievalSet, evaluate_retrieval, read_retrieval_set
from dcse_tf.evaluation.sts import StsSet, evaluate_sts, read_sts_set
from dcse_tf.files import hash_bytes, hash_file
from dcse_tf.input_files import resolve_inputs
from dcse_tf.reading.reranker_files import is_reranker
from dcse_tf.reranker.reranker import Reranker

ALL = "all"
CHOOSE = "choose"
REPORT = "report"


def find_half(*texts: str) -> str:
    """The half that a query or a pair belongs to, by a hash of its texts in any order.

    The same texts are in the same half of every set, whatever else is in the set.
    """
    first_byte = hash_bytes("\n".join(sorted(texts)).encode())[:2]
    return REPORT if int(first_byte, 16) % 2 else CHOOSE


def halve_retrieval_set(path: pathlib.Path, retrieval_set: RetrievalSet, half: str) -> RetrievalSet:
    """Keeps the queries of one half, or all; sentences and candidates stay as they are.

    Queries with the same text are in the same half.

    Args:
        path: the set's file, for the message.
        retrieval_set: the whole set.
        half: "choose", "report" or "all".

    Raises:
        InputError: no query is in this half.
    """
    sentences = retrieval_set.sentences
    queries = [q for q in retrieval_set.queries if half in (ALL, find_half(sentences[q.sentence]))]
    if not queries:
        raise InputError(f"{path}: none of its queries is in the half of `half`={half}")
    return dataclasses.replace(retrieval_set, queries=queries)


def halve_sts_set(path: pathlib.Path, sts_set: StsSet, half: str) -> StsSet:
    """Keeps the pairs of one half, or all; a pair and its reverse are in the same half.

    Pairs that share one sentence may be in different halves. If they were kept together, a pair's
    half would depend on the other lines: adding a pair could move others to the other half, and
    chains of shared sentences could put nearly all pairs into one half. So a sentence can occur in
    both halves, like the candidates of retrieval.

    Args:
        path: the set's file, for the message.
        sts_set: the whole set.
        half: "choose", "report" or "all".

    Raises:
        InputError: fewer than two pairs are in this half.
    """
    pairs = list(zip(sts_set.first, sts_set.second, strict=True))
    places = [i for i, pair in enumerate(pairs) if half in (ALL, find_half(*pair))]
    if len(places) < 2:
        raise InputError(
            f"{path}: expected at least two pairs in the half of `half`={half}, "
            f"found {len(places)} of {len(pairs)}"
        )
    first, second = ([column[i] for i in places] for column in (sts_set.first, sts_set.second))
    return StsSet(sts_set.degrees[np.array(places)], first, second)


def evaluate(
    config: EvaluateOptions, show: Callable[[list[Result]], None] = lambda results: None
) -> list[Result]:
    """Scores an encoder on every set that the settings name.

    Args:
        config: the settings.
        show: called with the results before they are written, so that they are not lost if writing
            fails.

    Raises:
        InputError: a model or a set cannot be used.
        OutputError: the results cannot be written; this is checked before the work if possible.
    """
    # All sets are read first, so that an error in the last does not waste the encoding of others.
    retrieval = {
        str(p): halve_retrieval_set(p, read_retrieval_set(p), config.half)
        for p in resolve_inputs(config.retrieval, "retrieval")
    }
    sts = {
        str(p): halve_sts_set(p, read_sts_set(p), config.half)
        for p in resolve_inputs(config.sts, "sts")
    }
    dialogues = {
        str(p): _make_samples(p, config)
        for p in resolve_inputs(config.response_selection, "response_selection")
    }
    candidates = {
        str(p): read_candidate_set(p, config)
        for p in resolve_inputs(config.candidates_file, "candidates_file")
    }
    if config.output:
        report.refuse_unwritable(pathlib.Path(config.output))
    model = load_scored(config)
    results = []
    with contextlib.ExitStack() as stack:
        if isinstance(model, SentenceEncoder):
            stack.enter_context(model.gather_truncated())
            results += _score_embeddings(model.encode, retrieval, sts, config.half)
        if dialogues or candidates:
            results += _score_responses(model, dialogues, candidates)
    show(results)
    if config.output:
        settings = {**config.to_dict(), **model.settings}
        report.write_json(pathlib.Path(config.output), config.model, settings, results)
    return results


def _score_embeddings(
    encode: Encode, retrieval: dict[str, RetrievalSet], sts: dict[str, StsSet], half: str
) -> list[Result]:
    results = []
    for source, retrieval_set in retrieval.items():
        logging.info("semantic retrieval on %s", source)
        found = evaluate_retrieval(retrieval_set, encode)
        results.append(make_result("retrieval", source, _fingerprint(source, half), found))
    for source, sts_set in sts.items():
        logging.info("sts on %s", source)
        found = evaluate_sts(sts_set, encode)
        results.append(make_result("sts", source, _fingerprint(source, half), found))
    return results


def _score_responses(
    model: SentenceEncoder | Reranker,
    dialogues: dict[str, list[response_selection.Sample]],
    candidates: dict[str, CandidateSet],
) -> list[Result]:
    results, ways = [], list_similarities(model)
    for source, samples in dialogues.items():
        logging.info("response selection on %s", source)
        drawn = hash_bytes(repr(samples).encode())
        for way, found in _select_responses(samples, ways, model).items():
            results.append(make_result(f"response_{way}", source, drawn, found))
    for source, groups in candidates.items():
        logging.info("grouped candidates of %s", source)
        for way, score in ways.items():
            found = evaluate_groups(groups.samples, score, way)
            results.append(make_result(f"candidates_{way}", source, groups.fingerprint, found))
    return results


def _make_samples(path: pathlib.Path, config: EvaluateOptions) -> list[response_selection.Sample]:
    sessions = read_sessions(path, config.join_consecutive)
    if not config.join_consecutive and sessions != read_sessions(path, join=True):
        logging.warning(
            "%s: consecutive turns of one speaker stay apart, as they are in the file; "
            "`join_consecutive` makes one turn of them",
            path,
        )
    samples = response_selection.make_samples(
        sessions,
        candidates=config.candidates,
        context_turns=config.context_turns,
        max_samples=config.max_samples,
        seed=config.seed,
        same_role=config.same_role,
    )
    if not samples:
        raise InputError(
            f"{path}: too few different responses for `candidates`={config.candidates}"
        )
    return samples


def load_scored(config: EvaluateOptions) -> SentenceEncoder | Reranker:
    """Loads the model to score: a sentence encoder or a re-ranker.

    Raises:
        InputError: there is no such model; a setting needs embeddings, which a re-ranker does not
            have, or would show it the turns after a response; responses are to be ranked by one of
            two projection heads; or `matching` is given for a model that has its own matching or
            cannot have one.
    """
    place = pathlib.Path(config.model)
    folders = [place / ENCODER_FOLDER, place]
    if not place.exists() and (config.model.startswith("package:") or "/" in config.model):
        # A package or a name on the hub; both are checkpoints.
        folders = [resolve_checkpoint(config.model, "model")]
    if not any(map(is_reranker, folders)):
        encoder = SentenceEncoder.from_options(config)
        side = encoder.settings.get("projection")
        if side and (config.response_selection or config.candidates_file):
            raise InputError(
                f"`model`={config.model}: an export that embeds behind its {side} head, and "
                "response selection needs both heads; evaluate what it was exported from"
            )
        return encoder
    for name in (
        "retrieval",
        "sts",
        "pooling",
        "projection",
        "prefix",
        "max_sequence_length",
        "truncate_dim",
    ):
        if config.is_given(name):
            raise InputError(
                f"`{name}`: {config.model} is a re-ranker, which gives no embeddings; it is for "
                "`response_selection` and `candidates_file`"
            )
    return Reranker.load(
        config.model,
        batch_tokens=config.batch_tokens,
        compute_dtype=config.compute_dtype,
        option="model",
    )


def list_similarities(model: SentenceEncoder | Reranker) -> dict[str, SampleScore]:
    """The similarities by which a model scores responses, by name; scores begin with that name.

    "reranker" is a re-ranker's score. For an encoder, "matching" is its own similarity, if it has
    one, and "cosine" the cosine of a candidate and the mean of the context's embeddings;
    "projected" is this cosine behind the projection heads, if there are any.
    """
    if isinstance(model, Reranker):
        return {RERANKER: score_dialogues(model.score)}
    ways: dict[str, SampleScore] = {}
    if model.match:
        ways["matching"] = score_texts(model.match)
    else:
        logging.warning(
            "%s has only sentence embeddings, no token embeddings: response selection by "
            "cosine only",
            model.name,
        )
    ways["cosine"] = score_texts(response_selection.cosine_score(model.encode))
    if model.heads:
        projected = response_selection.cosine_score(model.encode, model.heads)
        ways[PROJECTED] = score_texts(projected)
    return ways


def _select_responses(
    samples: list[response_selection.Sample],
    ways: dict[str, SampleScore],
    model: SentenceEncoder | Reranker,
) -> dict[str, Evaluation]:
    """The evaluation by each similarity; those of embeddings come with their geometry."""
    if isinstance(model, Reranker):  # reads only what was said before a response
        return {RERANKER: response_selection.evaluate_samples(samples, ways[RERANKER], RERANKER)}
    found: dict[str, Evaluation] = {}
    if model.match:
        found |= response_selection.evaluate_both_contexts(samples, model.match, "matching")
    return found | response_selection.evaluate_by_embeddings(samples, model.encode, model.heads)


def _fingerprint(source: str, half: str) -> str:
    """Identifies the file and the half that was scored; different halves cannot be compared."""
    digest = hash_file(pathlib.Path(source))
    return digest if half == ALL else f"{digest}:{half}"
