"""The other trainings of the paper: its Siamese networks, SimCSE, and masked language modelling.

SiameseBERT_S pairs a response with the turn before it, SiameseBERT_M with several turns of context,
joined to one sequence; a network scores the pair's embeddings. The others read single utterances.
"""

from dcse_tf.data.dialogue import Context
from dcse_tf.options import option
from dcse_tf.tasks.spec import Setup, Term, register_task
from dcse_tf.tasks.terms.contrast import ScorePairs, ViewContrast
from dcse_tf.tasks.train_options import (
    BatchOptions,
    ContextOptions,
    ContrastOptions,
    MaskingOptions,
    TrainOptions,
)


@register_task
class SiameseSingleOptions(ContrastOptions, BatchOptions):
    """Options with the defaults of dialogue_cse, since the paper gives no others.

    The temperature is 1, since a network's scores need none.
    """

    help = "pairs of a turn and the next, scored by a network from [u, v, |u-v|]"

    task: str = "siamese_single"
    epochs: float = 10.0
    global_batch_size: int = 20
    learning_rate: float = 5e-5
    freeze_layers: int = -1
    freeze_embeddings: bool = True
    temperature: float = 1.0

    @property
    def context(self) -> Context:
        """A response is paired with the one turn before it."""
        return Context(1, "before")

    def list_terms(self, setup: Setup) -> list[ScorePairs]:
        return [ScorePairs(setup)]


@register_task
class SiameseMultiOptions(ContextOptions, SiameseSingleOptions):
    """The options of siamese_single, with a choice of the context's turns."""

    help = "the same, u from the context's turns in one sequence"

    task: str = "siamese_multi"
    context_tokens: int = option(
        256, "Tokens of a context, [CLS] a [SEP] b [SEP] and so on, at most.", minimum=8
    )

    def longest_context(self, longest_utterance: int) -> int:
        """The most tokens in a context, see `longest_sequence`."""
        # The sequence has only one [CLS].
        return min(self.context_tokens, 1 + len(self.context.offsets) * (longest_utterance - 1))

    def longest_sequence(self, longest_utterance: int) -> int:
        return max(longest_utterance, self.longest_context(longest_utterance))

    def list_terms(self, setup: Setup) -> list[ScorePairs]:
        return [ScorePairs(setup, self.longest_context(setup.manifest.max_sequence_length))]


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
