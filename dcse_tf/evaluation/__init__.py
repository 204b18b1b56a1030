"""Evaluation in NumPy. An encoder is a function `encode(list[str]) -> float [n, dim]`."""
