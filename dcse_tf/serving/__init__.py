"""An encoder, perhaps with a re-ranker, behind interfaces that clients already have."""
