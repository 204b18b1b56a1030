"""Chooses pairs of sentences for a dialogue STS set, and writes sheets for annotators."""

from dcse_tf.cli.flags import run
from dcse_tf.tools.options import BuildStsOptions


def build_sts(config: BuildStsOptions) -> None:
    from dcse_tf.tools import sts_set as job

    counts = job.build_sts(config)
    print(
        f"{sum(counts.values())} pairs: "
        + ", ".join(f"{count} by {strategy}" for strategy, count in counts.items())
    )
    print(
        f"{config.annotators} sheet(s) to fill, guidelines.txt and pairs.jsonl are in "
        f"{config.output_dir}; then: python -m dcse_tf.cli.merge_sts "
        f"--sheets='{config.output_dir}/sheet_*.csv' --output=sts.txt"
    )


if __name__ == "__main__":
    run(BuildStsOptions, build_sts)
