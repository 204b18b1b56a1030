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


def rank_scores(similarity: str) -> tuple[str, ...]:
    """The scores of response selection by a similarity: matching_r1, ..."""
    return (*(f"{similarity}_r{k}" for k in RECALLS), f"{similarity}_mrr")


def bidirectional(similarity: str) -> str:
    """The name of a similarity whose contexts also have the turns after the response."""
    return f"{similarity}_bidirectional"


def all_contexts(similarities: Sequence[str]) -> tuple[str, ...]:
    """Similarities and, of embeddings, those with bidirectional contexts; none of a re-ranker."""
    embedded = [similarity for similarity in similarities if similarity != RERANKER]
    return (*similarities, *map(bidirectional, embedded))


def group_scores(similarity: str, candidates: int) -> tuple[str, ...]:
    """The scores of grouped candidates by a similarity: matching_r1, ..., matching_map, _mrr.

    R@k is included only for k below the number of candidates. `matching_r1_of_2` ranks the true
    response against just one other; for groups of two candidates it is the same as `matching_r1`
    and left out.
    """
    recalls = [f"{similarity}_r{k}" for k in RECALLS if k < candidates]
    pair = [f"{similarity}_r1_of_2"] if candidates != 2 else []
    return (*recalls, *pair, f"{similarity}_map", f"{similarity}_mrr")
