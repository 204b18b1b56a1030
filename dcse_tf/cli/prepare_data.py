"""`python -m dcse_tf.cli.prepare_data` is `dcse prepare_data`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("prepare_data")
