"""Unsupervised SimCSE (Gao et al. 2021) as a task: an utterance is its own positive."""

import dataclasses
from typing import TYPE_CHECKING, Any

from dcse_tf.tasks.options import ContextOptions, ContrastOptions, TrainOptions
from dcse_tf.tasks.spec import Setup, TaskSpec, centering_parts, register_task
from dcse_tf.tasks.terms.contrast import ViewContrast

if TYPE_CHECKING:
    from dcse_tf.data.responses import UtteranceSource


@dataclasses.dataclass(frozen=True)
class SimcseOptions(ContextOptions, ContrastOptions, TrainOptions):
    """Options with Gao et al.'s values for unsupervised BERT-base: one epoch, nothing frozen."""

    task: str = "simcse"
    epochs: float = 1.0
    global_batch_size: int = 64
    learning_rate: float = 3e-5
    temperature: float = 0.05


def make_utterance_source(setup: Setup[Any]) -> "UtteranceSource":
    """Single utterances."""
    from dcse_tf.data.responses import UtteranceSource

    return UtteranceSource()


register_task(
    TaskSpec(
        SimcseOptions,
        "each utterance against itself under another dropout",
        make_source=make_utterance_source,
        list_terms=lambda setup: [ViewContrast(setup)],
        samples="utterances",
        build_parts=centering_parts,
    )
)
