"""`python -m dcse_tf.cli JOB` is `dcse JOB`, for where the script is not installed."""

from dcse_tf.cli.commands import main

if __name__ == "__main__":
    main()
