"""Settings of `fit_baseline`: those of all baselines together, for the command line."""

import dataclasses

from dcse_tf.baselines.registry import BASELINES, FAMILY
from dcse_tf.options import Options, option


@dataclasses.dataclass(frozen=True)
class FitBaselineOptions(Options):
    """Stands for the options of all baselines; `from_dict` gives those of the chosen one alone."""

    family = FAMILY

    kind: str | None = option(
        None,
        "Which baseline. Plain BERT needs no fitting: evaluate `model`=CHECKPOINT `pooling`=mean "
        "or cls.",
        choices=BASELINES,
        required=True,
    )
