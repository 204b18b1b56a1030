"""Settings of `fit_baseline`: those of all baselines together, for the command line."""

import dataclasses
import functools
import typing
from collections.abc import Mapping, Sequence
from typing import Self

from dcse_tf.baselines.registry import BASELINES, BaselineOptions
from dcse_tf.options import OptionError, Options, option, show
from dcse_tf.plugins import load_plugins


@dataclasses.dataclass(frozen=True)
class FitBaselineOptions(Options):
    """Fits a baseline that needs no training, and writes it as an encoder like any other.

    On a command line it has the settings of every registered baseline: see `make_command_options`.
    """

    kind: str | None = option(None, "Which baseline.", required=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.select()

    @classmethod
    def all_fields(cls) -> Sequence[dataclasses.Field]:
        return dataclasses.fields(make_command_options() if cls is FitBaselineOptions else cls)

    @classmethod
    def from_dict(cls, values: Mapping[str, typing.Any]) -> Self:
        if cls is FitBaselineOptions:
            return make_command_options().from_dict(values)  # type: ignore[return-value]
        return super().from_dict(values)

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
    load_plugins()
    return _merge_options(tuple(BASELINES))


# Kept, so that options of the same baselines can be equal.
@functools.cache
def _merge_options(names: tuple[str, ...]) -> type[FitBaselineOptions]:
    kinds = "; ".join(f"{spec.name}: {spec.help}" for spec in BASELINES.values())
    kind = option(
        None,
        f"{kinds}. Plain BERT needs no fitting: evaluate `model`=CHECKPOINT `pooling`=mean or cls.",
        choices=names,
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
