"""Compares models by the results that evaluate wrote of them (paired bootstrap)."""

from dcse_tf.cli.flags import run
from dcse_tf.evaluation.options import CompareOptions


def compare(config: CompareOptions) -> None:
    import pathlib

    from dcse_tf.evaluation.bootstrap import holm
    from dcse_tf.evaluation.report import (
        compare_results,
        describe_differences,
        format_comparisons,
        read_json,
    )

    (baseline, first, settings), *others = (
        read_json(pathlib.Path(path)) for path in config.results
    )
    compared = [compare_results(first, second) for _, second, _ in others]
    # All that is compared in one call is one family.
    corrected = iter(holm([each.difference.p_value for found in compared for each in found]))
    for (model, _, other_settings), found in zip(others, compared, strict=True):
        print(f"first: {baseline}, second: {model}")
        for difference in describe_differences(settings, other_settings):
            print(f"warning: {difference}")
        print(format_comparisons(found, [next(corrected) for _ in found]))


if __name__ == "__main__":
    run(CompareOptions, compare)
