"""The optimizer, and the inner and outer loops of training."""
