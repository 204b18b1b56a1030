"""Masked language modelling as a task: continued pre-training (paper, section 5.3)."""

import dataclasses

from dcse_tf.tasks.options import MaskingOptions
from dcse_tf.tasks.simcse import make_utterance_source
from dcse_tf.tasks.spec import Setup, TaskSpec, Term, register_task


@dataclasses.dataclass(frozen=True)
class MaskedLmOptions(MaskingOptions):
    """Options with the paper's values (section 5.3) as defaults; it gives no number of epochs."""

    task: str = "mlm"
    epochs: float = 0.5
    global_batch_size: int = 50
    learning_rate: float = 2e-5
    best_metric: str = "dev/accuracy"


def _list_terms(setup: Setup[MaskedLmOptions]) -> list[Term]:
    from dcse_tf.tasks.terms.masked_lm import MaskedLm

    term = MaskedLm(setup, 1.0)
    term.label = ""
    return [term]


register_task(
    TaskSpec(
        MaskedLmOptions,
        "continued pre-training by masked language modelling",
        make_source=make_utterance_source,
        list_terms=_list_terms,
        samples="utterances",
        similarities=(),
        scores=lambda options: ("accuracy", "loss"),
        percent=False,
        lower_is_better=("loss",),
    )
)
