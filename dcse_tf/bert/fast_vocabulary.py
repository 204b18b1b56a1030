"""The base of vocabularies that are written as a `tokenizer.json` alone."""

import abc
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar

import tokenizers

from dcse_tf.bert.vocabulary import SpecialTokens, Vocabulary, save_tokenizer
from dcse_tf.errors import InputError
from dcse_tf.files import write_json

SPECIAL_TOKENS = SpecialTokens(pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>")


@dataclasses.dataclass(frozen=True)
class FastVocabulary(Vocabulary):
    """A vocabulary with RoBERTa's special entries."""

    special: ClassVar[SpecialTokens] = SPECIAL_TOKENS

    @abc.abstractmethod
    def _make_fast(self) -> tokenizers.Tokenizer:
        """HuggingFace's tokenizer of this vocabulary, without the special entries."""

    def _write_files(self, folder: pathlib.Path) -> None:
        _write_files(folder, self, self._make_fast(), {})

    def write_tokenizer(self, folder: pathlib.Path, max_sequence_length: int) -> None:
        limits = {"model_max_length": max_sequence_length, "split_special_tokens": True}
        _write_files(folder, self, self._make_fast(), limits)
        write_json(folder / "special_tokens_map.json", _name_tokens())


def _name_tokens() -> dict[str, str]:
    names = {f"{role}_token": token for role, token in SPECIAL_TOKENS._asdict().items()}
    return {**names, "bos_token": SPECIAL_TOKENS.cls, "eos_token": SPECIAL_TOKENS.sep}


def _write_files(
    folder: pathlib.Path,
    vocabulary: FastVocabulary,
    tokenizer: tokenizers.Tokenizer,
    further: dict[str, Any],
) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`.

    The tokenizer class is HuggingFace's generic one, since RoBERTa's classes expect <s> before
    <pad>.
    """
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **_name_tokens(), **further}
    write_json(folder / "tokenizer_config.json", settings)
    save_tokenizer(folder / "tokenizer.json", vocabulary, tokenizer)


def complete_tokens(
    path: pathlib.Path, tokens: Sequence[str], added: dict[int, str]
) -> tuple[str, ...]:
    """The entries of a tokenizer.json by id, with the padding swapped with the first entry.

    Args:
        path: the file's path, for error messages.
        tokens: the model's entries in the order of their ids.
        added: id -> entry from `added_tokens`; these may be in the model too.

    Raises:
        InputError: a special entry is missing, or an entry occurs twice.
    """
    names = list(tokens)
    while (token := added.get(len(names))) is not None:
        names.append(token)
    missing = [token for token in SPECIAL_TOKENS if token not in names]
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)}")
    if len(set(names)) < len(names):
        raise InputError(f"{path}: contains an entry twice")
    place = names.index(SPECIAL_TOKENS.pad)
    names[0], names[place] = names[place], names[0]
    return tuple(names)
