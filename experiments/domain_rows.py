"""The rows of a domain experiment, as data: each is an entry of ROWS, or --row."""

import dataclasses
import re

from settings import SettingsError, read_job_flags

# The jobs that a row has flags for.
PARTS = ("train", "mine", "merge", "fit", "evaluate")


@dataclasses.dataclass(frozen=True)
class DomainRow:
    """How a model is made from the start encoder, and how it is evaluated.

    Attributes:
        name: used in folders and --rows.
        title: used in tables.
        train: flags of `train`; empty for no training.
        mine: flags of `mine_neighbours`, whose pairs are added to the training; empty for none.
        merge: flags of `merge`, of the start and the trained encoder; empty for no merge.
        fit: flags of `fit_baseline`, on the trained encoder or the start; empty for no fit.
        evaluate: flags of `evaluate`. Rows that differ only in these share their model.
    """

    name: str
    title: str
    train: tuple[str, ...] = ()
    mine: tuple[str, ...] = ()
    merge: tuple[str, ...] = ()
    fit: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()

    @property
    def seeded(self) -> bool:
        """Whether another seed gives another model."""
        return bool(self.train)


_CENTRED = ("--kind=centering",)

START = DomainRow("start", "start")
START_CENTRED = DomainRow("start_centred", "start, centred", fit=_CENTRED)
RECOMMENDED = DomainRow("recommended", "recommended", ("--preset=recommended",))
IN_DOMAIN, TASK_ORIENTED = ("--preset=in_domain",), ("--preset=task_oriented",)
_SHARE = ("--share=0.7",)
# The rows that others are compared with; they need no training.
BASES = (START, START_CENTRED)


def _pull(name: str, *flags: str, **more: tuple[str, ...]) -> DomainRow:
    """The recommended preset with further flags."""
    return DomainRow(name, name.replace("_", " "), (*RECOMMENDED.train, *flags), **more)


_MINE = ("--keep_share=0.25",)
_MERGE = ("--share=0.5",)
# The embedding must learn what the heads cannot read from it yet, which takes a higher rate.
_RATE = "--learning_rate=2e-4"
_PREDICTION = ("--prediction_weight=0.95", _RATE)
_REHEARSED = (*_PREDICTION, "--rehearsal_weight=1")
_LEVERS = ("--both_directions", "--false_negative_cosine=0.8", "--anchor_weight=0.1")
# Each lever alone, and those listed before the projection heads together.
LEVERS = (
    _pull("merged", merge=_MERGE),
    _pull("both_directions", _LEVERS[0]),
    _pull("false_negatives_masked", _LEVERS[1]),
    _pull("anchored", _LEVERS[2]),
    _pull("neighbours", mine=_MINE),
    _pull("projection_heads", "--projection_dim=128"),
    _pull("higher_rate", _RATE),
    _pull("prediction", *_PREDICTION),
    _pull("prediction_merged", *_PREDICTION, merge=_MERGE),
    _pull("prediction_rehearsed", *_REHEARSED),
    _pull("prediction_rehearsed_merged", *_REHEARSED, merge=_SHARE),
    _pull("residual_matching", "--matching=residual"),
    _pull("context_matching", "--matching=context"),
    _pull("levers_together", *_LEVERS, mine=_MINE),
    _pull("levers_together_merged", *_LEVERS, mine=_MINE, merge=_MERGE),
)

ROWS = (
    *BASES,
    RECOMMENDED,
    DomainRow("recommended_centred", "recommended, centred", RECOMMENDED.train, fit=_CENTRED),
    DomainRow("in_domain", "in_domain", IN_DOMAIN),
    DomainRow("in_domain_merged", "in_domain, merged", IN_DOMAIN, merge=_SHARE),
    DomainRow("task_oriented", "task_oriented", TASK_ORIENTED),
    DomainRow("task_oriented_merged", "task_oriented, merged", TASK_ORIENTED, merge=_SHARE),
    *LEVERS,
    DomainRow("cosine", "plain cosine", ("--preset=cosine",)),
    DomainRow("dse", "DSE", ("--preset=dse",)),
    DomainRow("simcse", "SimCSE", ("--preset=simcse",)),
    DomainRow("dialogue_cse_i2", "DialogueCSE I2", ("--preset=dialogue_cse",)),
)

NAME = re.compile(r"\w[\w.-]*")


def parse_row(text: str) -> DomainRow:
    """Parses a row of --row: NAME=FLAGS, the flags of `train`; those after the words "mine:",
    "merge:", "fit:" and "evaluate:" belong to these jobs.

    Raises:
        SettingsError: the text has another form, or has a flag that the experiment sets.
    """
    name, _, flags_text = text.partition("=")
    if not NAME.fullmatch(name):
        raise SettingsError(f"--row={text}: expected NAME=FLAGS, a name of letters and digits")
    flags: dict[str, list[str]] = {part: [] for part in PARTS}
    part = "train"
    for word in read_job_flags(flags_text, f"row={name}"):
        if word.removesuffix(":") in PARTS and word.endswith(":"):
            part = word.removesuffix(":")
        elif word.startswith("--"):
            flags[part].append(word)
        else:
            raise SettingsError(f"--row={text}: {word}: expected --FLAG=VALUE")
    for part in ("mine", "merge"):
        if flags[part] and not flags["train"]:
            raise SettingsError(f"--row={text}: {part}: needs flags of train before it")
    if not any(flags.values()):
        raise SettingsError(f"--row={text}: expected flags; without any it is the start")
    return DomainRow(name, name, *(tuple(flags[part]) for part in PARTS))
