"""The rows of table 2, and beyond it, as data."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Row:
    """How a model comes about.

    A trained row starts from the adapted encoder; a fitted one lies on an encoder; the others are
    an encoder as it is.

    Attributes:
        name: for folders and --rows.
        title: as the paper has it; beyond the paper ours.
        encoder: "original" (before the adaptation), "adapted", or "" where none is needed.
        pooling: of the sentence embedding.
        train: flags of `train`; empty where nothing is trained.
        fit: --kind of `fit_baseline`; empty where nothing is fitted.
        seeded: whether another seed gives another model.
        sessions: whether a batch is of sessions; otherwise of utterances.
        recipe: size -> flags of `train` that hold against what the size gives every row.
        chosen: whether its settings were picked among others by their scores.
    """

    name: str
    title: str
    encoder: str = "adapted"
    pooling: str = "mean"
    train: tuple[str, ...] = ()
    fit: str = ""
    seeded: bool = False
    sessions: bool = True
    recipe: tuple[tuple[str, tuple[str, ...]], ...] = ()
    chosen: bool = False


def _trained(name: str, title: str, *flags: str) -> Row:
    return Row(name, title, train=flags, seeded=True)


# How the recommended preset is trained, whatever its objective.
_RECIPE = (
    ("small", ("--batch_form=dense", "--learning_rate=3e-4", "--steps=150")),
    ("demo", ("--batch_form=dense",)),
)


def _recommended(name: str, title: str, *flags: str) -> Row:
    train = ("--flagfile=flags/recommended.flags", *flags)
    return Row(name, title, train=train, seeded=True, recipe=_RECIPE, chosen=True)


def _by_the_recipe(row: Row) -> Row:
    """Another objective trained as the recommended preset is, so that it alone differs."""
    name, title = f"{row.name}_recipe", f"{row.title}, by the recommended recipe"
    return dataclasses.replace(row, name=name, title=title, recipe=_RECIPE, chosen=True)


def _untrained(prefix: str, title: str, encoder: str) -> list[Row]:
    return [
        Row(f"{prefix}_cls", f"{title}-CLS", encoder, "cls"),
        Row(f"{prefix}_avg", f"{title}-avg", encoder),
        Row(f"{prefix}_flow", f"{title}-flow", encoder, fit="flow", seeded=True),
        Row(f"{prefix}_whitening", f"{title}-whitening", encoder, fit="whitening"),
    ]


DIALOGUE_CSE = _trained("dialogue_cse_i2", "DialogueCSE I2", "--flagfile=flags/dialogue_cse.flags")
SIAMESE_MULTI = _trained("siamese_multi", "SiameseBERT_M", "--flagfile=flags/siamese_multi.flags")
DSE = _trained("dse", "DSE", "--flagfile=flags/dse.flags")
RECOMMENDED = _recommended("recommended", "recommended")

ROWS = [
    Row("glove", "Avg. word vectors", "", fit="word_vectors"),
    *_untrained("bert", "BERT", "original"),
    *_untrained("adapt", "BERT(adapt)", "adapted"),
    _trained("siamese_single", "SiameseBERT_S", "--flagfile=flags/siamese_single.flags"),
    SIAMESE_MULTI,
    _trained("dialogue_cse_i1", "DialogueCSE I1", "--flagfile=flags/dialogue_cse_i1.flags"),
    DIALOGUE_CSE,
    # Beyond the paper.
    Row("simcse", "SimCSE", train=("--flagfile=flags/simcse.flags",), seeded=True, sessions=False),
    DSE,
    _trained("cosine", "plain cosine", "--flagfile=flags/cosine.flags"),
    RECOMMENDED,
    # What the matching does in it: the same without.
    _recommended("recommended_cosine", "recommended, plain cosine alone", "--cosine_weight=1"),
    *map(_by_the_recipe, (SIAMESE_MULTI, DIALOGUE_CSE, DSE)),
]


@dataclasses.dataclass(frozen=True)
class Variant:
    """A row with other settings: one line of a table, or one point of a figure.

    Attributes:
        row: the row.
        x: the setting's value; None where what is varied is not a number.
        flags: of `train`, besides the row's.
        share: share of the dialogues that are trained on.
    """

    row: Row
    x: float | None = None
    flags: tuple[str, ...] = ()
    share: float = 1.0

    @property
    def name(self) -> str:
        """For folders: one that differs from its row in nothing has the row's."""
        words = [self.row.name, *(flag.strip("-") for flag in self.flags)]
        if self.share != 1.0:
            words.append(f"share={self.share:g}")
        return "-".join(words)


def vary(row: Row, flag: str, values: list[float], default: float) -> list[Variant]:
    """A variant for each value of a flag; the default's is the row itself, and trained once."""
    return [
        Variant(row, value, () if value == default else (f"--{flag}={value:g}",))
        for value in values
    ]


def vary_share(row: Row, shares: list[float]) -> list[Variant]:
    """A variant for each share of the training dialogues."""
    return [Variant(row, share, share=share) for share in shares]
