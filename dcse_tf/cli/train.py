"""`python -m dcse_tf.cli.train` is `dcse train`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("train")
