"""tokenizer.json, HuggingFace's file of a whole tokenizer: BERT's WordPiece, read and written."""

import pathlib
from collections.abc import Sequence
from typing import Any

import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.normalizers
import tokenizers.pre_tokenizers
import tokenizers.processors

from dcse_tf.errors import InputError
from dcse_tf.input_files import parse_json

_LONGEST_WORD = 100


def read_tokenizer_json(path: pathlib.Path) -> tuple[tuple[str, ...], bool]:
    """The entries of the vocabulary in order, and whether text is lower-cased.

    Raises:
        InputError: it is not BERT's WordPiece, or a setting of it is not supported.
    """
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        model, normalizer = content["model"], content["normalizer"]
        kinds = (model["type"], normalizer["type"], content["pre_tokenizer"]["type"])
        entries: dict[str, int] = model["vocab"]
        order = sorted(entries, key=entries.__getitem__)
        whole = [entries[token] for token in order] == list(range(len(order)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: expected a tokenizer of BERT: {error!r}") from error
    if kinds != ("WordPiece", "BertNormalizer", "BertPreTokenizer") or not whole:
        raise InputError(
            f"{path}: {', '.join(map(str, kinds))}; expected WordPiece, BertNormalizer and "
            "BertPreTokenizer, with entries numbered from 0"
        )
    _check_settings(path, model, normalizer)
    return tuple(order), bool(normalizer["lowercase"])


def _check_settings(path: pathlib.Path, model: dict[str, Any], normalizer: dict[str, Any]) -> None:
    lowercase = normalizer.get("lowercase")
    expected = {
        "normalizer.lowercase": (lowercase, (True, False)),
        "normalizer.clean_text": (normalizer.get("clean_text"), (True,)),
        "normalizer.handle_chinese_chars": (normalizer.get("handle_chinese_chars"), (True,)),
        "normalizer.strip_accents": (normalizer.get("strip_accents"), (None, lowercase)),
        "model.unk_token": (model.get("unk_token"), ("[UNK]",)),
        "model.continuing_subword_prefix": (model.get("continuing_subword_prefix"), ("##",)),
        "model.max_input_chars_per_word": (
            model.get("max_input_chars_per_word"),
            (_LONGEST_WORD,),
        ),
    }
    for name, (value, allowed) in expected.items():
        if value not in allowed:
            raise InputError(f"{path}: {name} is {value!r}, expected {allowed[0]!r}")


def write_tokenizer_json(
    path: pathlib.Path, tokens: Sequence[str], lowercase: bool, special_tokens: Sequence[str]
) -> None:
    """Writes a vocabulary as the tokenizer that `read_tokenizer_json` expects.

    Args:
        path: the file.
        tokens: entries of the vocabulary, in order.
        lowercase: whether text is lower-cased and stripped of accents.
        special_tokens: those of the entries that stand for no text; [CLS] and [SEP] among them.
    """
    entries = {token: index for index, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            entries, unk_token="[UNK]", max_input_chars_per_word=_LONGEST_WORD
        )
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, entries[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.add_special_tokens(list(special_tokens))
    tokenizer.save(str(path))
