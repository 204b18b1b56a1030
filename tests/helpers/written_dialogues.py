"""Dialogues for tests that need sentences which mean something, and how files are written."""

import json
import pathlib
from collections.abc import Iterable, Mapping

# Written for these tests: topics, each with sentences of a customer and fitting answers.
_TOPICS = {
    "parcel": ["Where is my parcel", "It left our store on", "When will the courier come"],
    "refund": ["I want a refund for the broken", "We pay back the", "How long does the refund of"],
    "coffee": ["Do you like coffee with", "I drink it black with", "Shall we have a cup and"],
    "weather": ["It rains again over the", "Take an umbrella to the", "The sun comes back to the"],
    "invoice": ["Please send the invoice for", "The invoice is in your mail about", "Thanks for"],
    "cats": ["My cat sleeps on the", "Mine likes to hide behind the", "They love the"],
}
_THINGS = ["blue", "green", "small", "old", "new", "red", "heavy", "round"]


def make_dialogues(count: int) -> dict[str, list[tuple[str, str]]]:
    """(role, text) of sessions by their ids; session i is about topic i mod 6, in its own words."""
    dialogues = {}
    for number in range(count):
        topic, sentences = list(_TOPICS.items())[number % len(_TOPICS)]
        dialogues[f"d{number}"] = [
            (
                ("customer", "agent")[turn % 2],
                f"{sentences[turn % 3]} {_THINGS[(number + turn) % 8]} {topic} {number}?",
            )
            for turn in range(2 + number % 5)
        ]
    return dialogues


def json_lines(dialogues: Mapping[str, Iterable[tuple[str, str]]]) -> str:
    """Such sessions in the JSON Lines form."""
    return "".join(
        json.dumps({"session_id": name, "turns": [{"role": r, "text": t} for r, t in turns]}) + "\n"
        for name, turns in dialogues.items()
    )


def write_lines(path: pathlib.Path, *lines: str, encoding: str = "utf-8") -> pathlib.Path:
    """Writes a file of these lines; returns its path."""
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))
    return path
