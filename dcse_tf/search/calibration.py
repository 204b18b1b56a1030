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


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The weight of two stages, and the scores of wrong answers:

        calibration = dcse_tf.Calibration.read("calibration.json")
        ranked = reranker.rank(context, candidates, none_below=calibration.threshold(5.0))

    Attributes:
        made_from: the models, by their fingerprints, and what the first stage finds.
        cosine_weight: weight of the first stage's cosine, which is added to the re-ranker's score.
        wrong: of each dialogue the best score of a wrong answer, the lowest first.
    """

    made_from: Mapping[str, Any]
    cosine_weight: float
    wrong: Sequence[float]

    @classmethod
    def read(cls, path: str | os.PathLike[str], now: Mapping[str, Any] | None = None) -> Self:
        """Reads a file that `calibrate` wrote, which was `made_from` the models in use.

        Raises:
            InputError: the file is another, or was made from other models.
        """
        content = read_json_object(pathlib.Path(path).expanduser(), "what calibrate writes")
        with name_input(f"{path}: not what calibrate writes", KeyError, TypeError, ValueError):
            before, weight = dict(content["made_from"]), float(content["cosine_weight"])
            found = cls(before, weight, sorted(map(float, content["wrong"])))
        if now is not None:
            problem = f"`calibration`={path}: is of other models"
            require_same(before, now, problem, "run calibrate with these")
        return found

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
