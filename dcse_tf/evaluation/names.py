"""The names of scores, the same in logs, TensorBoard, JSON, tables and `best_metric`.

A score on dev data while training has "dev/" before its name, such as dev/matching_r1.
"""

RECALLS = (1, 2, 5)
RETRIEVAL = ("map", "mrr")
STS = ("spearman",)


def rank_scores(similarity: str) -> tuple[str, ...]:
    """The scores of response selection by a similarity, "matching" or "cosine": matching_r1, ..."""
    return (*(f"{similarity}_r{k}" for k in RECALLS), f"{similarity}_mrr")
