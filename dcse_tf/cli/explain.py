"""`python -m dcse_tf.cli.explain` is `dcse explain`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("explain")
