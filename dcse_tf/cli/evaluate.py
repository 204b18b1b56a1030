"""Scores a sentence encoder on retrieval, STS and response selection sets."""

from dcse_tf.cli.flag_options import run
from dcse_tf.config import EvaluateConfig


def evaluate(config: EvaluateConfig) -> None:
    from dcse_tf.evaluation.report import format_table
    from dcse_tf.jobs import evaluate as job

    job.evaluate(config, lambda results: print(format_table(results), flush=True))
    if config.half != "all":
        print(f"scored: the half of --half={config.half}")
    if config.output:
        print(f"results are in {config.output}")


if __name__ == "__main__":
    run(EvaluateConfig, evaluate)
