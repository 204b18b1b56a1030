"""Settings of `fit_baseline`: what baselines share, and all together for the command line."""

import dataclasses
import typing

from dcse_tf.baselines.registry import BASELINES, BaselineOptions
from dcse_tf.model.options import EncoderOptions
from dcse_tf.options import OptionError, Options, option, show


@dataclasses.dataclass(frozen=True)
class FittedToTexts(BaselineOptions):
    """Settings of a baseline that is fitted to the utterances of a prepared corpus."""

    data_dir: str = option(
        "",
        "Folder that prepare_data wrote (with the encoder's vocabulary, if any); fitted to "
        "the distinct utterances of its train split.",
        required=True,
        reads=True,
    )
    max_sentences: int = option(
        100_000,
        "Most distinct utterances, drawn by `seed`. 0: all. Memory: their embeddings (100,000 x "
        "768 dimensions: 307 MB).",
        minimum=0,
    )
    seed: int = option(0, "Seed of the utterances drawn, and of the fit.", minimum=0)


@dataclasses.dataclass(frozen=True)
class FittedToEmbeddings(FittedToTexts, EncoderOptions):
    """Settings of a baseline that is a layer behind an encoder's pooling."""

    encoder: str = option(
        "",
        "The checkpoint whose embeddings are taken: a folder, a hub name, package:NAME or a run "
        "directory. It is not trained.",
        required=True,
        reads=True,
    )
    batch_tokens: int = option(2048, "Tokens encoded at a time, padding counted.", minimum=1)


@dataclasses.dataclass(frozen=True)
class FitBaselineOptions(Options):
    """Fits a baseline that needs no training, and writes it as an encoder like any other.

    Base of what `make_command_options` returns, which has the settings of all baselines.
    """

    kind: str | None = option(None, "Which baseline.", required=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.select()

    def select(self) -> BaselineOptions:
        """The settings of the chosen baseline alone.

        Raises:
            OptionError: one of them is missing, or one that it does not have was given.
        """
        own = BASELINES[self.kind or ""].options
        known = {field.name for field in dataclasses.fields(own)}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in {"kind", *known} and value != field.default:
                raise OptionError(
                    f"`{field.name}`={show(value)} has no meaning with `kind`={self.kind}"
                )
        return own(**{name: getattr(self, name) for name in known})


def make_command_options() -> type[FitBaselineOptions]:
    """One class with `kind` and the settings of every registered baseline, for a command line."""
    kinds = "; ".join(f"{spec.name}: {spec.help}" for spec in BASELINES.values())
    kind = option(
        None,
        f"{kinds}. Plain BERT needs no fitting: evaluate `model`=CHECKPOINT `pooling`=mean or cls.",
        choices=tuple(BASELINES),
        required=True,
    )
    fields: dict[str, typing.Any] = {"kind": (str | None, kind)}
    for spec in BASELINES.values():
        types = typing.get_type_hints(spec.options)
        for field in dataclasses.fields(spec.options):
            owners = [
                other.name
                for other in BASELINES.values()
                if any(f.name == field.name for f in dataclasses.fields(other.options))
            ]
            of = f"{', '.join(owners)}: " if len(owners) < len(BASELINES) else ""
            metadata = {**field.metadata, "help": of + field.metadata["help"]}
            # Whether a setting is required depends on the kind: `select` finds out.
            metadata["required"] &= not of
            own = dataclasses.field(default=field.default, metadata=metadata)
            fields[field.name] = (types[field.name], own)
    listed = [(name, *field) for name, field in fields.items()]
    return dataclasses.make_dataclass(
        "FitBaselineOptions", listed, bases=(FitBaselineOptions,), frozen=True
    )
