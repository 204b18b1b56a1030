"""Post-training: continues a BERT's pre-training on dialogues, before response selection.

As in BERT's pre-training, masked language modelling is combined with the classification of two
segments, here of dialogue. The run writes a BERT with its pooler and its prediction head, from
which `response_selection` can start.
"""

import dataclasses
import pathlib
from typing import TYPE_CHECKING

from dcse_tf.options import option
from dcse_tf.tasks.spec import Setup, Term, register_task
from dcse_tf.tasks.train_options import MaskingOptions, SequenceOptions

if TYPE_CHECKING:
    from dcse_tf.data.dialogue_step import DialogueSource
    from dcse_tf.tasks.objective import Objective


@register_task
class PostTrainingOptions(SequenceOptions, MaskingOptions):
    """Options with the defaults of BERT-VFT (Whang et al. 2020) where its released code has them.

    The learning rate of 3e-5, sequences of 448 + 64 tokens and the mask rate are BERT-VFT's. Its
    512 sequences a step fit few devices, so the default is 32, as in its fine-tuning. It predicts
    at most 70 tokens a sequence; 77 is the mask rate times 512 tokens. It makes 30 passes over its
    text, with masks drawn 10 times; since that is hard to compare with epochs in which a session
    gives one example, the number of epochs is BERT-FP's 25 (Han et al. 2021). The weights of the
    losses and the warm-up are this project's.
    """

    help = (
        "continued pre-training on dialogues for response_selection: masked tokens and two segments"
    )
    similarities = ()
    scores = ("masked_lm_accuracy", "pairs_accuracy")

    task: str = "post_training"
    epochs: float = 25.0
    global_batch_size: int = 32
    learning_rate: float = 3e-5
    # This accuracy keeps rising, while the segments' class is learnt soon. It is also less noisy: a
    # dev session has dozens of masked tokens, but only one pair of segments.
    best_metric: str = "dev/masked_lm_accuracy"
    max_predictions: int = 77

    pairs: str = option(
        "utterance",
        "Segments to classify. utterance: context and turn (BERT-VFT); pieces: sides of a dialogue "
        "(BERT); relevance: context and turn of three kinds (BERT-FP, with 3 `context_turns`).",
        choices=("utterance", "pieces", "relevance"),
    )

    @property
    def segment_tokens(self) -> tuple[int, int]:
        first, second = super().segment_tokens
        # Both pieces get half of the tokens, since either may be the longer one.
        half = (first + second) // 2
        return (first + second - half, half) if self.pairs == "pieces" else (first, second)

    def check(self) -> None:
        super().check()
        if self.global_batch_size < 2:
            why = "turns of other sessions come from the batch: expected >= 2"
            self.refuse("global_batch_size", why)

    def make_source(self, setup: Setup) -> "DialogueSource":
        source = super().make_source(setup)
        return dataclasses.replace(source, other_turns=self.pairs == "relevance")

    def list_terms(self, setup: Setup) -> list[Term]:
        from dcse_tf.tasks.terms.selection import MaskedLmOfPairs, SegmentPairs

        return [SegmentPairs(setup, 1.0), MaskedLmOfPairs(setup, 1.0)]

    def write_encoder(self, objective: "Objective", folder: pathlib.Path) -> None:
        from dcse_tf.reading.cross_encoder import write_cross_encoder

        pairs, words = map(objective.find_head, ("pairs", "masked_lm"))
        write_cross_encoder(folder, objective.setup.backbone, pairs, objective.reader.layer, words)
        # The class that finds all its weights here. It has no pooler and ignores the one written.
        objective.write_config(folder, architectures=["BertForMaskedLM"])
        objective.write_tokenization(folder)
