"""`python -m dcse_tf.cli.score_candidates` is `dcse score_candidates`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("score_candidates")
