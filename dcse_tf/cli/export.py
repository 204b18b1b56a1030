"""Exports a trained encoder for serving."""

from dcse_tf.cli.flag_options import run
from dcse_tf.config import ExportConfig


def export(config: ExportConfig) -> None:
    from dcse_tf.jobs import export as job

    job.export(config)
    print(f"the {config.format} is in {config.output_dir}")


if __name__ == "__main__":
    run(ExportConfig, export)
