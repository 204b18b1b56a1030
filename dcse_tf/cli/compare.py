"""Compares models by the results that evaluate wrote of them (paired bootstrap)."""

from dcse_tf.cli.flag_options import run
from dcse_tf.config import CompareConfig


def compare(config: CompareConfig) -> None:
    import pathlib

    from dcse_tf.evaluation.comparison import (
        compare_results,
        describe_differences,
        format_comparisons,
    )
    from dcse_tf.evaluation.report import read_json

    (baseline, first, settings), *others = (
        read_json(pathlib.Path(path)) for path in config.results
    )
    for model, second, other_settings in others:
        print(f"first: {baseline}, second: {model}")
        for difference in describe_differences(settings, other_settings):
            print(f"warning: {difference}")
        print(format_comparisons(compare_results(first, second)))


if __name__ == "__main__":
    run(CompareConfig, compare)
