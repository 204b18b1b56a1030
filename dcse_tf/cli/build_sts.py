"""Chooses pairs of sentences for a dialogue STS set, and writes sheets for annotators."""

from dcse_tf.cli.flag_options import run
from dcse_tf.config import BuildStsConfig


def build_sts(config: BuildStsConfig) -> None:
    from dcse_tf.jobs import build_sts as job

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
    run(BuildStsConfig, build_sts)
