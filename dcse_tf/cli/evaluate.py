"""`python -m dcse_tf.cli.evaluate` is `dcse evaluate`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("evaluate")
