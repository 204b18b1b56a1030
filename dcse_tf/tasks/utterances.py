"""Tasks on single utterances: unsupervised SimCSE, and masked language modelling."""

from dcse_tf.tasks.spec import Setup, Term, register_task
from dcse_tf.tasks.terms.contrast import ViewContrast
from dcse_tf.tasks.train_options import (
    ContextOptions,
    ContrastOptions,
    MaskingOptions,
    TrainOptions,
)


@register_task
class SimcseOptions(ContextOptions, ContrastOptions, TrainOptions):
    """Options with Gao et al.'s values for unsupervised BERT-base: one epoch, nothing frozen."""

    help = "each utterance against itself under another dropout (Gao et al. 2021)"

    task: str = "simcse"
    epochs: float = 1.0
    global_batch_size: int = 64
    learning_rate: float = 3e-5
    temperature: float = 0.05

    def list_terms(self, setup: Setup) -> list[Term]:
        return [ViewContrast(setup)]


@register_task
class MaskedLmOptions(MaskingOptions):
    """Options with the paper's values (section 5.3) as defaults; it gives no number of epochs."""

    help = "continued pre-training by masked language modelling"
    similarities = ()
    scores, percent = ("accuracy", "loss"), False

    task: str = "mlm"
    epochs: float = 0.5
    global_batch_size: int = 50
    learning_rate: float = 2e-5
    best_metric: str = "dev/accuracy"

    def list_terms(self, setup: Setup) -> list[Term]:
        from dcse_tf.tasks.terms.selection import MaskedLm

        term = MaskedLm(setup, 1.0)
        term.label = ""
        return [term]
