"""The models of table 2 and further ones, as data."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Row:
    """How a model is made.

    A trained row starts from the adapted encoder, a fitted row adds a baseline to an encoder, and
    the others are unchanged encoders.

    Attributes:
        name: used in folders and --rows.
        title: the paper's name of the model, or ours beyond the paper.
        encoder: "original" (before the adaptation), "adapted", or "" if none is needed.
        pooling: the pooling of the sentence embedding.
        train: flags of `train`; empty for no training.
        fit: --kind of `fit_baseline`; "" for no fit.
        seeded: whether another seed gives another model.
        sessions: whether batches consist of sessions; otherwise of utterances.
        recipe: whether it is trained by the recommended preset's recipe (`RECIPE`), whose settings
            were picked by their scores.
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


# The recommended preset's recipe without its objective: size -> flags of `train` that override
# those that the size gives every row.
RECIPE = {
    "small": ("--batch_form=dense", "--learning_rate=3e-4", "--steps=150"),
    "encoder": ("--batch_form=dense",),
    "demo": ("--batch_form=dense",),
    "paper": ("--batch_form=dense", "--steps=300"),
}


def _trained(name: str, title: str, flags: str, *more: str, **attributes: bool) -> Row:
    train = (f"--flagfile=flags/{flags}.flags", *more)
    return Row(name, title, train=train, seeded=True, **attributes)


def _by_the_recipe(row: Row) -> Row:
    """A row's objective, trained by the recommended recipe, so that only the objective differs."""
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
    # The same without the matching, to show its effect.
    _trained(
        "recommended_cosine",
        "recommended, plain cosine alone",
        "recommended",
        "--cosine_weight=1",
        recipe=True,
    ),
    _trained("in_domain", "in_domain", "in_domain", recipe=True),
    *map(_by_the_recipe, (SIAMESE_MULTI, DIALOGUE_CSE, DSE)),
]


@dataclasses.dataclass(frozen=True)
class Variant:
    """A row with other settings: one line of a table, or one point of a figure.

    Attributes:
        row: the row.
        x: the setting's value; None if it is not a number.
        flags: flags of `train`, in addition to the row's.
        share: share of the dialogues to train on, 0 to 1.
    """

    row: Row
    x: float | None = None
    flags: tuple[str, ...] = ()
    share: float = 1.0

    @property
    def name(self) -> str:
        """The name used in folders; a variant equal to its row has the row's name."""
        words = [self.row.name, *(flag.strip("-") for flag in self.flags)]
        if self.share != 1.0:
            words.append(f"share={self.share:g}")
        return "-".join(words)

    @property
    def label(self) -> str:
        """The label used in tables."""
        if self.x is not None:
            return f"{self.row.title}, {self.x:g}"
        return ", ".join([self.row.title, *(flag.removeprefix("--") for flag in self.flags)])


def vary(row: Row, flag: str, value: float, default: float) -> Variant:
    """A row with a value for a flag or, if `flag` is "", with a share of the dialogues.

    With the default value it has no flags, so that it shares the row's training.
    """
    if not flag:
        return Variant(row, value, share=value)
    return Variant(row, value, () if value == default else (f"--{flag}={value:g}",))
