"""`python -m dcse_tf.cli.serve` is `dcse serve`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("serve")
