"""`python -m dcse_tf.cli.export` is `dcse export`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("export")
