"""Next session prediction: are two pieces of dialogue consecutive? (Xu et al. 2020, 2.3.1)"""

from typing import TYPE_CHECKING

from dcse_tf.tasks.terms.matching import Match, build_selection_head

if TYPE_CHECKING:
    from dcse_tf.data.dialogue_step import DialogueStep, Segments
    from dcse_tf.reading.cross_encoder import Reader


class NextSession(Match):
    """Binary cross entropy of whether a piece of dialogue was replaced by another session's.

    Metrics: accuracy.
    """

    name = "next_session"

    def build(self, reader: "Reader") -> None:
        self.head = build_selection_head(self.setup, reader, self.name, 1)

    def draw(self, step: "DialogueStep") -> "Segments":
        from dcse_tf.data.dialogue_tasks import draw_next_session

        return draw_next_session(step)
