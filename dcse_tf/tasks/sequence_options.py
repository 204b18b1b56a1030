"""Options of the tasks that read a context and a response as one sequence."""

import dataclasses
from typing import TYPE_CHECKING, Self

from dcse_tf.data.dialogue import Context
from dcse_tf.options import option
from dcse_tf.tasks.options import TrainOptions

if TYPE_CHECKING:
    from dcse_tf.data.manifest import Manifest

_MOST_CONTEXT_TOKENS = 448


@dataclasses.dataclass(frozen=True)
class SequenceOptions(TrainOptions):
    """For tasks that read a context and a response as one sequence.

    The defaults of turns and lengths are those of Xu et al. 2020 (section 3.3).
    """

    context_turns: int = option(
        20,
        "Turns before the response that are its context, at most.",
        minimum=1,
        maximum=1000,
        group="batches and context",
    )
    max_context_tokens: int = option(
        0,
        "Tokens of a context, at most, including [CLS] and [SEP]; it is cut at the beginning. "
        "0: 448, or what the response leaves of the encoder's positions.",
        minimum=8,
        or_zero=True,
    )
    max_response_tokens: int = option(
        64, "Tokens of a response, at most, including [SEP]; it is cut at the end.", minimum=4
    )
    speaker_embeddings: bool = option(
        False, "Mark every token as the responder's or not (SA-BERT)."
    )
    same_role: bool = option(
        True,
        "Draw negatives, and the turns and pieces that replace others, only from turns of the same "
        "role, where another session of the batch has any. Otherwise many are the other party's, "
        "and who speaks can be told without understanding the dialogue. Roles are compared by "
        "their names; where sessions share none, as in a chat room, it has no effect.",
    )

    @property
    def context(self) -> Context:
        """The turns before a response: a response is selected by what was said before it."""
        return Context(self.context_turns, "before")

    @property
    def segment_tokens(self) -> tuple[int, int]:
        """The largest number of tokens in a sequence's first segment and in its second."""
        return self.max_context_tokens or _MOST_CONTEXT_TOKENS, self.max_response_tokens

    def longest_sequence(self, longest_utterance: int) -> int:
        return self.longest_pair(longest_utterance, self.segment_tokens)

    def longest_pair(self, longest_utterance: int, limits: tuple[int, int]) -> int:
        """The number of tokens in the longest two segments together.

        Args:
            longest_utterance: tokens in the corpus's longest utterance.
            limits: the largest number of tokens in each segment.
        """
        # A turn ends with [EOT] and has no [CLS] and [SEP] of its own.
        dialogue = 2 + (self.context_turns + 1) * (longest_utterance - 1)
        return sum(min(tokens, dialogue) for tokens in limits)

    def resolve(self, manifest: "Manifest", positions: int = 512) -> Self:
        left = positions - self.max_response_tokens
        if left < 8:
            self.refuse("max_response_tokens", f"the encoder has only {positions} positions")
        tokens = self.max_context_tokens or min(_MOST_CONTEXT_TOKENS, left)
        worked_out = self.replace(max_context_tokens=tokens)
        return super(SequenceOptions, worked_out).resolve(manifest, positions)

    def list_warnings(self, manifest: "Manifest") -> list[str]:
        cut, most = manifest.splits["train"].truncated_utterances, manifest.max_sequence_length
        if not cut or most > self.max_response_tokens:
            return super().list_warnings(manifest)
        return [
            *super().list_warnings(manifest),
            f"`max_response_tokens`={self.max_response_tokens}: {self.data_dir} was prepared with "
            f"`max_sequence_length`={most}, which cut {cut} turns, so training never sees a longer "
            f"one; prepare it with {self.max_response_tokens + 1} or more, up to "
            f"`max_context_tokens`={self.max_context_tokens}",
        ]
