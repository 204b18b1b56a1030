"""`python -m dcse_tf.cli.search` is `dcse search`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("search")
