"""`python -m dcse_tf.cli.merge_sts` is `dcse merge_sts`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("merge_sts")
