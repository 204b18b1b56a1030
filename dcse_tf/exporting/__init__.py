"""Exports encoders and re-rankers to the formats in which users serve them."""
