"""Functional models built from the layers, and the checkpoints they start from."""
