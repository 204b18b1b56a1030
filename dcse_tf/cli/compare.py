"""`python -m dcse_tf.cli.compare` is `dcse compare`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("compare")
