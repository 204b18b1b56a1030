"""Fits an untrained baseline: whitening, flow, or averaged word vectors."""

from dcse_tf.baselines.options import FitBaselineOptions
from dcse_tf.cli.flags import run


def fit_baseline(config: FitBaselineOptions) -> None:
    from dcse_tf.baselines import fitting as job

    print(job.fit_baseline(config))
    print(f"the baseline is in {config.output_dir}; evaluate it with --model={config.output_dir}")


if __name__ == "__main__":
    run(FitBaselineOptions, fit_baseline)
