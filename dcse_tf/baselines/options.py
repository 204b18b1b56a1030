"""Settings of `fit_baseline`: the options of all baselines combined, for the command line."""

import dataclasses

from dcse_tf.baselines.registry import BASELINES, FAMILY
from dcse_tf.options import Options, option


@dataclasses.dataclass(frozen=True)
class FitBaselineOptions(Options):
    """Combines the options of all baselines; `from_dict` returns only those of the chosen one."""

    family = FAMILY

    kind: str | None = option(
        None,
        "Which baseline. Plain BERT needs no fitting: evaluate `model`=CHECKPOINT `pooling`=mean "
        "or cls.",
        choices=BASELINES,
        required=True,
    )
