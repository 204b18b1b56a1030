"""`python -m dcse_tf.cli.merge` is `dcse merge`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("merge")
