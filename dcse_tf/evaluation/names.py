"""The names of scores, the same in logs, TensorBoard, JSON, tables and `best_metric`.

A score on dev data while training has "dev/" before its name, such as dev/matching_r1.
"""

# The similarity of a re-ranker, which reads context and response together.
RERANKER = "reranker"
RECALLS = (1, 2, 5)
RETRIEVAL = ("map", "mrr")
STS = ("spearman",)


def rank_scores(similarity: str) -> tuple[str, ...]:
    """The scores of response selection by a similarity: matching_r1, ..."""
    return (*(f"{similarity}_r{k}" for k in RECALLS), f"{similarity}_mrr")


def group_scores(similarity: str, candidates: int) -> tuple[str, ...]:
    """The scores of grouped candidates by a similarity: matching_r1, ..., matching_map, _mrr.

    Of k only those below the number of candidates are in it. `matching_r1_of_2` ranks the true
    response against one other alone; where groups have two candidates it is `matching_r1`.
    """
    recalls = [f"{similarity}_r{k}" for k in RECALLS if k < candidates]
    pair = [f"{similarity}_r1_of_2"] if candidates != 2 else []
    return (*recalls, *pair, f"{similarity}_map", f"{similarity}_mrr")
