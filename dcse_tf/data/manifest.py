"""The manifest of a prepared corpus, and the index of its shards.

Training reads the shards in blocks of sessions, in an order drawn for every epoch. By the index,
which says what each block holds, it resumes at any step without reading what comes before.
"""

import dataclasses
import pathlib
from typing import Any, NamedTuple

import numpy as np

from dcse_tf.errors import InputError, name_input
from dcse_tf.files import hash_file, write_json
from dcse_tf.input_files import read_json_object

FORMAT_VERSION = 5
FILE_NAME = "manifest.json"
SPLITS = ("train", "dev", "test")


@dataclasses.dataclass(frozen=True)
class Split:
    """Counts and files of one split. Tokens are counted after truncation, with [CLS] and [SEP].

    Given candidates do not count as utterances, nor do their tokens.
    """

    sessions: int
    utterances: int
    tokens: int
    truncated_utterances: int
    shards: list[dict[str, Any]]  # TFRecord files in the corpus' folder: "name", "bytes"
    index: dict[str, str]  # the file that holds the `Blocks` of the shards: "name", "sha256"
    given: dict[str, int] | None = None  # candidates for last turns: "negatives"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Describes a corpus that `prepare_data` wrote."""

    max_sequence_length: int  # tokens of an utterance; longer ones were truncated
    corpus_fingerprint: str  # SHA-256 over the kept sessions, in order
    tokenizer_fingerprint: str  # SHA-256 over vocabulary, casing and prefix
    splits: dict[str, Split]  # "train", "dev" and "test"
    dropped: dict[str, int]  # sessions, utterances and lines left out, by reason
    settings: dict[str, Any]  # the options of the job
    # "tokens", without [CLS], [SEP] and a prefix, and "unknown_tokens" among them.
    found: dict[str, int] = dataclasses.field(default_factory=dict)


def write_manifest(folder: pathlib.Path, manifest: Manifest) -> None:
    """Writes the manifest into the folder of its corpus."""
    content = {"format_version": FORMAT_VERSION, **dataclasses.asdict(manifest)}
    write_json(folder / FILE_NAME, content)


def read_manifest(folder: pathlib.Path, tokenizer_fingerprint: str | None = None) -> Manifest:
    """Reads a manifest and compares it with the folder and, if given, with the fingerprint of the
    tokenizer that will be used with the records; raises InputError if they do not fit.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a folder that prepare_data wrote")
    content = read_json_object(path, "a manifest of prepare_data")
    wrong = KeyError, TypeError, AttributeError, ValueError
    with name_input(f"{path}: not a manifest of prepare_data", *wrong):
        if (version := int(content.pop("format_version"))) != FORMAT_VERSION:
            told = f"format version {version}, expected {FORMAT_VERSION}"
            raise InputError(f"{path}: {told}; run prepare_data")
        splits = {name: Split(**split) for name, split in content["splits"].items()}
        manifest = Manifest(**{**content, "splits": splits})
        shards = [shard for split in splits.values() for shard in split.shards]
        sizes = {folder / shard["name"]: shard["bytes"] for shard in shards}
    for place, expected in sizes.items():
        found = f"{place.stat().st_size} bytes" if place.is_file() else "no such file"
        if found != f"{expected} bytes":
            raise InputError(f"{place}: {found}, expected {expected} bytes; run prepare_data")
    if tokenizer_fingerprint not in (None, manifest.tokenizer_fingerprint):
        prefix = manifest.settings.get("prefix", "")
        told = f"with another vocabulary, casing or prefix ({prefix!r}) than the encoder's"
        remedy = "run prepare_data with `vocab` set to it; if only the prefix differs, give it this"
        raise InputError(f"{path}: tokenised {told}; {remedy}")
    return manifest


class Blocks(NamedTuple):
    """The blocks of a split's shards, in order; every field is int64 `[blocks]`."""

    shard: np.ndarray  # index of the block's shard in the split
    offset: np.ndarray  # where the block begins in its shard, in bytes
    bytes: np.ndarray
    sessions: np.ndarray  # their number
    utterances: np.ndarray


def read_blocks(folder: pathlib.Path, split: Split) -> Blocks:
    """Reads the index of a split; raises InputError if it is missing or damaged."""
    path = folder / split.index["name"]
    with name_input(f"{path}: cannot be read", OSError):
        if hash_file(path) != split.index["sha256"]:
            raise InputError(f"{path}: its SHA-256 is not the manifest's; run prepare_data again")
    return Blocks(*np.load(path, allow_pickle=False).T)
