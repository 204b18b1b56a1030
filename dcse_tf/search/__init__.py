"""Search for the nearest texts in NumPy; of a model it needs only embeddings and a fingerprint."""
