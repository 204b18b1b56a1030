"""Training: its loops, evaluation while it runs, its verdict, baselines, and merging."""
