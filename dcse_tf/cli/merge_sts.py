"""Merges annotators' sheets into a dialogue STS set (sts.txt)."""

from dcse_tf.cli.flags import run
from dcse_tf.tools.options import MergeStsOptions


def merge_sts(config: MergeStsOptions) -> None:
    from dcse_tf.tools import sts_set as job

    merged = job.merge_sts(config)
    for sheet, rated, agreement in zip(merged.sheets, merged.rated, merged.agreement, strict=True):
        print(f"{sheet}: {rated} degrees, correlation with the others {agreement:.3f}")
    print(f"Krippendorff's alpha (ordinal): {merged.alpha:.3f}")
    print(
        f"{len(merged.sts_set.first)} pairs, {merged.left_out} left out for too few degrees; "
        f"the set is in {config.output}"
    )


if __name__ == "__main__":
    run(MergeStsOptions, merge_sts)
