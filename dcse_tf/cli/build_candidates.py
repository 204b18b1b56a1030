"""`python -m dcse_tf.cli.build_candidates` is `dcse build_candidates`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("build_candidates")
