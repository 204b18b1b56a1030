"""The command lines: the only place that knows of flags."""
