"""What all configurations share: options with help, validation, JSON in and out."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any, Self

from dcse_tf.atomic import atomic_file


class ConfigError(ValueError):
    """A setting that cannot be used; the message names the flag and what was expected."""


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    required: bool = False,
    words: Mapping[str, int] | None = None,
) -> Any:
    """A field of a configuration, from which its command-line flag is made.

    Args:
        default: the value when the flag is not given; None means that a job works it out.
        help: what `--help` says, with the unit.
        choices: the values allowed, if they are few.
        minimum: the smallest number allowed.
        maximum: the largest number allowed.
        required: whether the job cannot run without it.
        words: numbers that the command line may give as a word.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "required": required,
        "words": words or {},
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Options:
    """Base of the configurations. Checks itself when it is made."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))

    def replace(self, **changes: Any) -> Self:
        """A copy with some values changed; unknown names raise ConfigError."""
        _refuse_unknown(type(self), changes)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Builds a configuration; unknown names raise ConfigError."""
        _refuse_unknown(cls, values)
        # JSON has lists only; list options are tuples, so that a configuration cannot change.
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})

    def write_json(self, path: pathlib.Path) -> None:
        """Writes the configuration, atomically."""
        with atomic_file(path) as partial:
            partial.write_text(json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n")

    @classmethod
    def read_json(cls, path: pathlib.Path) -> Self:
        """Reads what `write_json` wrote; a broken file raises ConfigError with its name."""
        try:
            return cls.from_dict(json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path}: not a {cls.__name__}: {error}") from error


def _refuse_unknown(cls: type, values: Mapping[str, Any]) -> None:
    known = {field.name for field in dataclasses.fields(cls)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(
            f"unknown setting {', '.join(unknown)}; {cls.__name__} knows {', '.join(sorted(known))}"
        )


def _check(field: dataclasses.Field, value: Any) -> None:
    rules = field.metadata
    if rules["required"] and value in ("", None, ()):
        raise ConfigError(f"--{field.name} is required: {rules['help']}")
    if value is None:
        return
    if rules["choices"] and value not in rules["choices"]:
        raise ConfigError(
            f"--{field.name}={value}: expected one of {', '.join(map(repr, rules['choices']))}"
        )
    if rules["minimum"] is not None and not value >= rules["minimum"]:
        raise ConfigError(f"--{field.name}={value}: expected at least {rules['minimum']}")
    if rules["maximum"] is not None and not value <= rules["maximum"]:
        raise ConfigError(f"--{field.name}={value}: expected at most {rules['maximum']}")
