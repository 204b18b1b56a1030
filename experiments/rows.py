"""The models of table 2, and beyond it, as data."""

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
        recipe: whether it is trained by the recommended preset's recipe (`RECIPE`), whose settings
            were picked among others by their scores.
    """

    name: str
    title: str
    encoder: str = "adapted"
    pooling: str = "mean"
    train: tuple[str, ...] = ()
    fit: str = ""
    seeded: bool = False
    sessions: bool = True
    recipe: bool = False


# How the recommended preset is trained, whatever its objective: by size, flags of `train` that
# take the place of what the size gives every row.
RECIPE = {
    "small": ("--batch_form=dense", "--learning_rate=3e-4", "--steps=150"),
    "encoder": ("--batch_form=dense",),
    "demo": ("--batch_form=dense",),
    "paper": (),
}


def _trained(name: str, title: str, flags: str, *more: str, **attributes: bool) -> Row:
    train = (f"--flagfile=flags/{flags}.flags", *more)
    return Row(name, title, train=train, seeded=True, **attributes)


def _by_the_recipe(row: Row) -> Row:
    """Another objective trained as the recommended preset is, so that it alone differs."""
    name, title = f"{row.name}_recipe", f"{row.title}, by the recommended recipe"
    return dataclasses.replace(row, name=name, title=title, recipe=True)


def _untrained(prefix: str, title: str, encoder: str) -> list[Row]:
    return [
        Row(f"{prefix}_cls", f"{title}-CLS", encoder, "cls"),
        Row(f"{prefix}_avg", f"{title}-avg", encoder),
        Row(f"{prefix}_flow", f"{title}-flow", encoder, fit="flow", seeded=True),
        Row(f"{prefix}_whitening", f"{title}-whitening", encoder, fit="whitening"),
    ]


DIALOGUE_CSE = _trained("dialogue_cse_i2", "DialogueCSE I2", "dialogue_cse")
SIAMESE_MULTI = _trained("siamese_multi", "SiameseBERT_M", "siamese_multi")
DSE = _trained("dse", "DSE", "dse")
RECOMMENDED = _trained("recommended", "recommended", "recommended", recipe=True)

ROWS = [
    Row("glove", "Avg. word vectors", "", fit="word_vectors"),
    *_untrained("bert", "BERT", "original"),
    *_untrained("adapt", "BERT(adapt)", "adapted"),
    _trained("siamese_single", "SiameseBERT_S", "siamese_single"),
    SIAMESE_MULTI,
    _trained("dialogue_cse_i1", "DialogueCSE I1", "dialogue_cse_i1"),
    DIALOGUE_CSE,
    # Beyond the paper.
    _trained("simcse", "SimCSE", "simcse", sessions=False),
    DSE,
    _trained("cosine", "plain cosine", "cosine"),
    RECOMMENDED,
    # What the matching does in it: the same without.
    _trained(
        "recommended_cosine",
        "recommended, plain cosine alone",
        "recommended",
        "--cosine_weight=1",
        recipe=True,
    ),
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

    @property
    def label(self) -> str:
        """For tables."""
        if self.x is not None:
            return f"{self.row.title}, {self.x:g}"
        return ", ".join([self.row.title, *(flag.removeprefix("--") for flag in self.flags)])


def vary(row: Row, flag: str, value: float, default: float) -> Variant:
    """A row with a value of a flag, or without one with a share of the dialogues.

    With the default it is the row itself, which is trained once.
    """
    if not flag:
        return Variant(row, value, share=value)
    return Variant(row, value, () if value == default else (f"--{flag}={value:g}",))
