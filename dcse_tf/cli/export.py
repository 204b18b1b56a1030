"""Exports a trained encoder for serving."""

import sys

from dcse_tf.cli.flags import run
from dcse_tf.export.options import ExportOptions


def export(config: ExportOptions) -> None:
    from dcse_tf.errors import LockedError
    from dcse_tf.export import job

    try:
        folder = job.export(config)
    except LockedError as error:
        sys.exit(f"error: {error}")
    print(f"the {config.format} is in {folder}")


if __name__ == "__main__":
    run(ExportOptions, export)
