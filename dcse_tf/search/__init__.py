"""Search for the nearest texts, their order by a re-ranker, and when none is an answer."""
