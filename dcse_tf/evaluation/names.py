"""The names of scores, which are the same in logs, TensorBoard, JSON, tables and `best_metric`.

During training, the name of a score on dev data has the prefix "dev/", such as dev/matching_r1.
"""

from collections.abc import Sequence

# The name of a re-ranker's similarity; a re-ranker reads context and response together.
RERANKER = "reranker"
# The cosine of a context and a response behind projection heads.
PROJECTED = "projected"
RECALLS = (1, 2, 5)
RETRIEVAL = ("map", "mrr")
STS = ("spearman",)
# Number of responses among which a dev response is ranked, so the least number of dev sessions.
CANDIDATES = 10
_BIDIRECTIONAL = "_bidirectional"


def rank_scores(similarity: str, candidates: int = CANDIDATES) -> tuple[str, ...]:
    """The scores of response selection by a similarity: matching_r1, ..., matching_mrr.

    R@k is included only for k below the number of candidates.
    """
    return (*(f"{similarity}_r{k}" for k in RECALLS if k < candidates), f"{similarity}_mrr")


def bidirectional(similarity: str) -> str:
    """The name of a similarity whose contexts also have the turns after the response."""
    return f"{similarity}{_BIDIRECTIONAL}"


def describe_context(similarity: str, turns: int) -> str:
    """Which turns around the response the contexts of a similarity hold, such as "3 before".

    Args:
        similarity: the similarity, or a score by it.
        turns: the number of turns on a side, at most; 0 for all.
    """
    count = turns or "all"
    after = f", {count} after" if _BIDIRECTIONAL in similarity else ""
    return f"{count} before{after}"


def all_contexts(similarities: Sequence[str]) -> tuple[str, ...]:
    """Similarities and, of embeddings, those with bidirectional contexts; none of a re-ranker."""
    embedded = [similarity for similarity in similarities if similarity != RERANKER]
    return (*similarities, *map(bidirectional, embedded))


def group_scores(similarity: str, candidates: int) -> tuple[str, ...]:
    """The scores of grouped candidates by a similarity: matching_r1, ..., matching_map, _mrr.

    Like `rank_scores`, and `matching_r1_of_2` ranks the true response against just one other; for
    groups of two candidates it is the same as `matching_r1` and left out.
    """
    *recalls, mrr = rank_scores(similarity, candidates)
    pair = [f"{similarity}_r1_of_2"] if candidates != 2 else []
    return (*recalls, *pair, f"{similarity}_map", mrr)
