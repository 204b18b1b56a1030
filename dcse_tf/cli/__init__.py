"""The command lines: jobs from flags, their help and their messages."""
