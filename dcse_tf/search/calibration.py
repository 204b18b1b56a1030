"""What `dcse calibrate` found, and the options of jobs that go by it."""

import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

from dcse_tf.bert.encoder_options import ModelOptions
from dcse_tf.errors import name_input
from dcse_tf.files import require_same
from dcse_tf.input_files import read_json_object
from dcse_tf.options import option


class CalibratedOptions(ModelOptions):
    """Options of a job that answers only what is good enough."""

    calibration: str = option(
        "",
        "File that calibrate wrote: a query without an answer that is good enough gets none.",
        path="files",
    )
    false_accepts: float = option(
        5.0,
        "With `calibration`: percent of queries without a right answer that may be answered.",
        minimum=0.0,
        maximum=100.0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_needed("calibration", "false_accepts")

    def read_calibration(self, now: Mapping[str, Any]) -> "Calibration | None":
        """The calibration, if one is given; InputError if it was not `made_from` the models in use,
        OptionError if it has too few dialogues for so few false accepts.
        """
        if not self.calibration:
            return None
        found = Calibration.read(self.calibration)
        problem = f"`calibration`={self.calibration}: is of other models"
        remedy = "run calibrate with these; for serve, with the re-ranker alone"
        require_same(found.made_from, now, problem, remedy)
        if found.threshold(self.false_accepts) == math.inf:
            told = f"with the {len(found.wrong)} dialogues of {self.calibration} nothing would be"
            least = math.ceil(1e4 / (len(found.wrong) + 1)) / 100
            self.refuse("false_accepts", f"{told} answered, expected at least {least:g}")
        return found


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The weight of two stages, and the scores of wrong answers:

        calibration = dcse_tf.Calibration.read("calibration.json")
        ranked = reranker.rank(context, candidates, none_below=calibration.threshold(5.0))

    Attributes:
        made_from: the models, by their fingerprints, and what the first stage finds.
        cosine_weight: weight of the first stage's cosine, which is added to the re-ranker's score.
        wrong: of each dialogue the best score of a wrong answer, the lowest first.
        of_index: whether these are what an index finds, so that their rate holds there.
    """

    made_from: Mapping[str, Any]
    cosine_weight: float
    wrong: Sequence[float]
    of_index: bool = False

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file that `calibrate` wrote; InputError if it is another."""
        content = read_json_object(pathlib.Path(path).expanduser(), "what calibrate writes")
        with name_input(f"{path}: not what calibrate writes", KeyError, TypeError, ValueError):
            facts = dict(content["made_from"]), float(content["cosine_weight"])
            return cls(*facts, sorted(map(float, content["wrong"])), bool(content.get("of_index")))

    def threshold(self, false_accepts: float) -> float:
        """The score that an answer has to exceed.

        Among queries like the dialogues, but without a right answer, at most `false_accepts`
        percent are then answered, in expectation over the dialogues (split conformal prediction,
        Vovk et al. 2005). Infinity with too few dialogues; ValueError below 0 or above 100.
        """
        if not 0 <= false_accepts <= 100:
            raise ValueError(f"false_accepts={false_accepts}: expected percent, from 0 to 100")
        place = math.ceil((len(self.wrong) + 1) * (100 - false_accepts) / 100)
        return [-math.inf, *self.wrong, math.inf][place]
