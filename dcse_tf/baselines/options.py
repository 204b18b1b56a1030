"""Settings of `fit_baseline`: which baseline, whose options are then its own."""

import dataclasses

from dcse_tf.baselines.registry import BASELINES
from dcse_tf.options import Options, option


@dataclasses.dataclass(frozen=True)
class FitBaselineOptions(Options):
    """Stands for the options of the baseline that `kind` chooses."""

    variants = ("kind", BASELINES)

    kind: str | None = option(
        None,
        "Which baseline. Plain BERT needs no fitting: evaluate `model`=CHECKPOINT `pooling`=mean "
        "or cls.",
        choices=BASELINES,
        required=True,
    )
