"""Fits an untrained baseline, such as whitening, flow or averaged word vectors."""

from dcse_tf.baselines.options import FitBaselineOptions, make_command_options
from dcse_tf.cli.flags import run


def fit_baseline(config: FitBaselineOptions) -> None:
    from dcse_tf.tools import fit_baseline as job

    options = config.select()
    print(job.fit_baseline(options))
    print(f"the baseline is in {options.output_dir}; evaluate it with --model={options.output_dir}")


if __name__ == "__main__":
    run(make_command_options(), fit_baseline)
