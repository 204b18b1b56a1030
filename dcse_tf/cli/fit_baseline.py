"""`python -m dcse_tf.cli.fit_baseline` is `dcse fit_baseline`."""

from dcse_tf.cli.commands import run

if __name__ == "__main__":
    run("fit_baseline")
