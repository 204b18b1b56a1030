"""Tasks on single utterances: unsupervised SimCSE, and masked language modelling."""

from typing import TYPE_CHECKING, Any

from dcse_tf.tasks.spec import Setup, TaskSpec, Term, register_task
from dcse_tf.tasks.terms.contrast import ViewContrast
from dcse_tf.tasks.train_options import (
    ContextOptions,
    ContrastOptions,
    MaskingOptions,
    TrainOptions,
)

if TYPE_CHECKING:
    from dcse_tf.data.responses import UtteranceSource


class SimcseOptions(ContextOptions, ContrastOptions, TrainOptions):
    """Options with Gao et al.'s values for unsupervised BERT-base: one epoch, nothing frozen."""

    task: str = "simcse"
    epochs: float = 1.0
    global_batch_size: int = 64
    learning_rate: float = 3e-5
    temperature: float = 0.05


class MaskedLmOptions(MaskingOptions):
    """Options with the paper's values (section 5.3) as defaults; it gives no number of epochs."""

    task: str = "mlm"
    epochs: float = 0.5
    global_batch_size: int = 50
    learning_rate: float = 2e-5
    best_metric: str = "dev/accuracy"


def _make_source(setup: Setup[Any]) -> "UtteranceSource":
    from dcse_tf.data.responses import UtteranceSource

    return UtteranceSource()


def _list_masked_terms(setup: Setup[MaskedLmOptions]) -> list[Term]:
    from dcse_tf.tasks.terms.tokens import MaskedLm

    term = MaskedLm(setup, 1.0)
    term.label = ""
    return [term]


register_task(
    TaskSpec(
        SimcseOptions,
        "each utterance against itself under another dropout (Gao et al. 2021)",
        make_source=_make_source,
        list_terms=lambda setup: [ViewContrast(setup)],
        samples="utterances",
    )
)
register_task(
    TaskSpec(
        MaskedLmOptions,
        "continued pre-training by masked language modelling",
        make_source=_make_source,
        list_terms=_list_masked_terms,
        samples="utterances",
        similarities=(),
        scores=lambda options: ("accuracy", "loss"),
        percent=False,
        lower_is_better=("loss",),
    )
)
