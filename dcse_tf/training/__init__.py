"""The optimizer, the inner loop, the outer loop."""
