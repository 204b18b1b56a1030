"""The manifest of a prepared corpus: what is in its files, and whether they are all there."""

import dataclasses
import json
import pathlib
from typing import Any

from dcse_tf.errors import InputError
from dcse_tf.input_files import plain_name, read_json_object

FORMAT_VERSION = 3
FILE_NAME = "manifest.json"
SPLITS = ("train", "dev", "test")


@dataclasses.dataclass(frozen=True)
class Shard:
    """One TFRecord file: its name in the folder and its size in bytes."""

    name: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Index:
    """The file that says what is where in the shards, see `blocks`: its name and SHA-256."""

    name: str
    sha256: str


@dataclasses.dataclass(frozen=True)
class Split:
    """Counts of one split. Tokens include [CLS] and [SEP], after truncation."""

    sessions: int
    utterances: int
    tokens: int
    truncated_utterances: int
    shards: tuple[Shard, ...]
    index: Index


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What `prepare_data` wrote.

    Attributes:
        corpus_fingerprint: SHA-256 over the sessions kept, in order.
        tokenizer_fingerprint: SHA-256 over vocabulary and casing.
        settings: the job's configuration.
        dropped: sessions and utterances left out, and why; bad lines.
    """

    max_sequence_length: int
    corpus_fingerprint: str
    tokenizer_fingerprint: str
    splits: dict[str, Split]
    dropped: dict[str, int]
    settings: dict[str, Any]


def write_manifest(folder: pathlib.Path, manifest: Manifest) -> None:
    content = {"format_version": FORMAT_VERSION, **dataclasses.asdict(manifest)}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    (folder / FILE_NAME).write_text(text, encoding="utf-8")


def read_manifest(folder: pathlib.Path, tokenizer_fingerprint: str | None = None) -> Manifest:
    """Reads a manifest and holds it against the folder and the tokenizer.

    Args:
        folder: what `prepare_data` wrote.
        tokenizer_fingerprint: of the tokenizer that will be used with the records; None where it
            does not matter.

    Raises:
        InputError: there is no manifest, it is of another version, a shard is missing or of
            another size, or the records were made with another tokenizer.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a folder that prepare_data wrote")
    content = read_json_object(path, "a manifest of prepare_data")
    try:
        version = int(content.pop("format_version"))
        manifest = _parse(content, path) if version == FORMAT_VERSION else None
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: not a manifest of prepare_data: {error!r}") from error
    if manifest is None:
        raise InputError(
            f"{path}: format version {version}, expected {FORMAT_VERSION}; run prepare_data"
        )
    _check_shards(folder, manifest)
    if tokenizer_fingerprint not in (None, manifest.tokenizer_fingerprint):
        raise InputError(
            f"{path}: the records were tokenised with another vocabulary or casing than the "
            "encoder's; run prepare_data with --vocab set to the encoder"
        )
    return manifest


def _parse(content: dict[str, Any], path: pathlib.Path) -> Manifest:
    splits = {}
    for name, value in content["splits"].items():
        shards = tuple(Shard(**shard) for shard in value["shards"])
        splits[name] = Split(**{**value, "shards": shards, "index": Index(**value["index"])})
        for file_name in (*(shard.name for shard in shards), splits[name].index.name):
            plain_name(file_name, path)
    return Manifest(**{**content, "splits": splits})


def _check_shards(folder: pathlib.Path, manifest: Manifest) -> None:
    for split in manifest.splits.values():
        for shard in split.shards:
            path = folder / shard.name
            size = path.stat().st_size if path.is_file() else None
            if size != shard.bytes:
                found = "no such file" if size is None else f"{size} bytes"
                raise InputError(f"{path}: {found}, expected {shard.bytes} bytes; run prepare_data")
