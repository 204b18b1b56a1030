"""`python -m dcse_tf.cli.build_retrieval` is `dcse build_retrieval`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("build_retrieval")
