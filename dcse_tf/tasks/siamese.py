"""The paper's trained baselines: a network scores pairs of embeddings (SiameseBERT_S and _M).

SiameseBERT_S pairs a response with the turn before it; SiameseBERT_M with several turns of context,
joined to one sequence.
"""

from dcse_tf.data.dialogue import Context
from dcse_tf.options import option
from dcse_tf.tasks.spec import Setup, register_task
from dcse_tf.tasks.terms.contrast import ScorePairs
from dcse_tf.tasks.train_options import BatchOptions, ContextOptions, ContrastOptions


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
        return min(self.context_tokens, 1 + self.context.slots * (longest_utterance - 1))

    def longest_sequence(self, longest_utterance: int) -> int:
        return max(longest_utterance, self.longest_context(longest_utterance))

    def list_terms(self, setup: Setup) -> list[ScorePairs]:
        return [ScorePairs(setup, self.longest_context(setup.manifest.max_sequence_length))]
