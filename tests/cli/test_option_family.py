"""One command line for classes of options among which an option of it chooses."""

import dataclasses
from typing import Any

import pytest

from dcse_tf.options import Family, OptionError, Options, option, redefault


@dataclasses.dataclass(frozen=True)
class AnimalOptions(Options):
    legs: int = option(4, "How many legs.", minimum=0)
    name: str = option("", "What it is called.", required=True)


@dataclasses.dataclass(frozen=True)
class CatOptions(AnimalOptions):
    pass


# Types as texts, as `from __future__ import annotations` leaves them.
@dataclasses.dataclass(frozen=True)
class DogOptions(AnimalOptions):
    tricks: "int" = option(2, "Tricks that it knows.", ignored_elsewhere=True)  # noqa: RUF009


@dataclasses.dataclass(frozen=True)
class BirdOptions(AnimalOptions):
    legs: "int" = redefault(AnimalOptions, "legs", 2)  # noqa: RUF009
    wings: float = option(0.5, "Span of the wings, in metres.")


@dataclasses.dataclass(frozen=True)
class FishOptions(Options):
    name: str = redefault(AnimalOptions, "name", "Wanda")


@dataclasses.dataclass(frozen=True)
class Animal:
    name: str
    options: Any


FAMILY: Family[Animal] = Family("animal")
for kind in (CatOptions, DogOptions, BirdOptions, FishOptions):
    FAMILY.register(Animal(kind.__name__.removesuffix("Options").lower(), kind))


@dataclasses.dataclass(frozen=True)
class AnyOptions(Options):
    family = FAMILY
    animal: str = option("dog", "Which animal.", choices=FAMILY.entries)


def test_each_option_is_one_field_that_says_where_entries_differ():
    fields = {field.name: field for field in AnyOptions.all_fields()}
    told = {name: (f.type, f.default, f.metadata["help"]) for name, f in fields.items()}
    assert told == {
        "animal": (str, "dog", "Which animal."),
        "legs": (int, None, "How many legs. Not for fish. Default: 2 (bird); otherwise 4."),
        "name": (str, None, "What it is called. Default: Wanda (fish); otherwise none."),
        "tricks": (int, 2, "Tricks that it knows. Only for dog."),
        "wings": (float, 0.5, "Span of the wings, in metres. Only for bird."),
    }
    assert CatOptions.all_fields() == dataclasses.fields(CatOptions)
    assert dataclasses.fields(CatOptions)[0].metadata["help"] == "How many legs."


def test_the_options_are_those_of_the_entry_that_is_chosen():
    assert AnyOptions.from_dict({"name": "Rex"}) == DogOptions(name="Rex")
    assert AnyOptions.from_dict({"animal": "bird", "name": "a"}) == BirdOptions(legs=2, name="a")
    assert AnyOptions.from_dict({"animal": "fish", "tricks": 3}) == FishOptions()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"animal": "cow"}, "`animal`=cow: expected one of 'cat', 'dog', 'bird', 'fish'"),
        ({"wings": 1.0}, "`wings`=1.0: has no meaning with `animal`=dog, only with bird"),
        ({"animal": "fish", "legs": 1}, "`animal`=fish, only with cat, dog, bird"),
        ({"animal": "cat"}, "`name` is required: What it is called."),
        ({"animal": "cat", "legs": -1, "name": "a"}, "`legs`=-1: expected at least 0"),
        ({"tail": 1}, "unknown setting tail; DogOptions knows"),
    ],
)
def test_what_the_chosen_entry_cannot_use_is_refused(values, message):
    with pytest.raises(OptionError) as caught:
        AnyOptions.from_dict(values)
    assert message in str(caught.value)


@dataclasses.dataclass(frozen=True)
class OtherType(Options):
    wings: int = option(2, "Span of the wings, in metres.")


@dataclasses.dataclass(frozen=True)
class OtherBounds(Options):
    legs: int = option(4, "How many legs.", minimum=1)


@dataclasses.dataclass(frozen=True)
class OtherMeaning(Options):
    tricks: int = option(2, "Tricks that it falls for.")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cat", CatOptions, "animal 'cat': expected a name that no other has"),
        ("", CatOptions, "animal '': expected a name"),
        ("horse", OtherType, "declares option 'wings' differently from 'bird'"),
        ("horse", OtherBounds, "declares option 'legs' differently from 'cat'"),
        ("horse", OtherMeaning, "declares option 'tricks' differently from 'dog'"),
    ],
)
def test_what_one_flag_could_not_stand_for_is_not_registered(name, options, message):
    with pytest.raises(ValueError, match=message):
        FAMILY.register(Animal(name, options))
    assert list(FAMILY.entries) == ["cat", "dog", "bird", "fish"]
