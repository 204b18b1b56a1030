"""Says what is in a corpus of dialogues, and what of the evaluation sets stands in it."""

from dcse_tf.cli.flag_options import run
from dcse_tf.config import InspectConfig


def inspect_data(config: InspectConfig) -> None:
    from dcse_tf.jobs import inspect_data as job

    print(job.inspect_data(config))
    print(f"\nreport.html, report.json and leaks.tsv are in {config.output_dir}")


if __name__ == "__main__":
    run(InspectConfig, inspect_data)
