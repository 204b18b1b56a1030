"""`python -m dcse_tf.cli.build_sts` is `dcse build_sts`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("build_sts")
