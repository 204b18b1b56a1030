"""Scores a sentence encoder on retrieval, STS and response selection sets."""

from dcse_tf.cli.flags import run
from dcse_tf.evaluation.options import EvaluateOptions


def evaluate(config: EvaluateOptions) -> None:
    from dcse_tf.evaluation import job
    from dcse_tf.evaluation.report import format_table

    job.evaluate(config, lambda results: print(format_table(results), flush=True))
    if config.half != "all":
        print(f"scored: the half of --half={config.half}")
    if config.output:
        print(f"results are in {config.output}")


if __name__ == "__main__":
    run(EvaluateOptions, evaluate)
