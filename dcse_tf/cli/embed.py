"""`python -m dcse_tf.cli.embed` is `dcse embed`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("embed")
