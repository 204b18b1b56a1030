"""`python -m dcse_tf.cli.inspect_data` is `dcse inspect_data`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("inspect_data")
