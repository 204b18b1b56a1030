"""`python -m dcse_tf.cli.changes` is `dcse changes`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("changes")
