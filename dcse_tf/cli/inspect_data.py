"""Says what is in a corpus of dialogues, and what of the evaluation sets stands in it."""

from dcse_tf.cli.flags import run
from dcse_tf.tools.options import InspectOptions


def inspect_data(config: InspectOptions) -> None:
    from dcse_tf.tools import inspect as job

    print(job.inspect_data(config))
    print(f"\nreport.html, report.json and leaks.tsv are in {config.output_dir}")


if __name__ == "__main__":
    run(InspectOptions, inspect_data)
