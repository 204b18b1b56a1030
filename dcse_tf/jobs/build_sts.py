"""The jobs that build a dialogue STS set: pairs and sheets, then the merging of filled sheets."""

import collections
import json
import pathlib

import numpy as np
from absl import logging

from dcse_tf.atomic import atomic_directory
from dcse_tf.config import BuildStsConfig, MergeStsConfig
from dcse_tf.data.labelled_sentences import read_sentences
from dcse_tf.data.word_vectors import read_word_vectors, train_word_vectors
from dcse_tf.data.words import make_splitter
from dcse_tf.errors import InputError
from dcse_tf.evaluation.annotation import DEGREES, Merged, merge_sheets, write_sheet
from dcse_tf.evaluation.sts import write_sts_set
from dcse_tf.evaluation.sts_builder import Pair, choose_pairs
from dcse_tf.input_files import resolve_inputs


def build_sts(config: BuildStsConfig) -> dict[str, int]:
    """Reads sentences, chooses pairs, writes the sheets and a record of the pairs.

    Returns:
        How many pairs each strategy gave.

    Raises:
        InputError: the input cannot be used, or has no intents where --strategies asks for them.
        FileExistsError: the output exists and may not be replaced.
    """
    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        texts, intents = _draw_sentences(config)
        split = make_splitter(config.words)
        words = [split(text) for text in texts]
        vectors = _mean_vectors(config, words) if "word2vec" in config.strategies else None
        pairs = choose_pairs(
            words,
            intents,
            vectors,
            strategies=config.strategies,
            count=config.pairs,
            max_uses=config.max_uses,
            seed=config.seed,
        )
        if len(pairs) < config.pairs:
            logging.warning("only %d of %d pairs could be found", len(pairs), config.pairs)
        _write(config, folder, texts, pairs)
    counts = collections.Counter(pair.strategy for pair in pairs)
    return {strategy: counts[strategy] for strategy in config.strategies}


def _draw_sentences(config: BuildStsConfig) -> tuple[list[str], list[str]]:
    """Different sentences in random order, and the intent of those that have exactly one."""
    sentences, _ = read_sentences(config, make_splitter(config.words))
    first: dict[str, tuple[str, tuple[str, ...]]] = {}
    for text, intents in sentences:
        first.setdefault(text.casefold(), (text, intents))
    different = list(first.values())
    if len(different) < 2:
        raise InputError(f"--input={','.join(config.input)}: fewer than two different sentences")
    if "intent" in config.strategies and not any(len(i) == 1 for _, i in different):
        raise InputError(
            f"--input={','.join(config.input)}: no sentence has an intent; give "
            "--strategies=unigram,word2vec"
        )
    order = np.random.default_rng(config.seed).permutation(len(different))
    drawn = [different[place] for place in order[: config.sentences or None]]
    return [text for text, _ in drawn], [i[0] if len(i) == 1 else "" for _, i in drawn]


def _mean_vectors(config: BuildStsConfig, words: list[list[str]]) -> np.ndarray:
    if config.word_vectors:
        (path,) = resolve_inputs([config.word_vectors], "word_vectors")
        vectors = read_word_vectors(path)
    else:
        vectors = train_word_vectors(words, config.vector_size, config.seed)
    means = np.stack([vectors.mean(row) for row in words])
    known = float(np.mean([word in vectors.rows for row in words for word in row]))
    logging.info("%.1f%% of the words have a vector", 100.0 * known)
    return means


def _write(
    config: BuildStsConfig, folder: pathlib.Path, texts: list[str], pairs: list[Pair]
) -> None:
    rows = [(number, texts[p.first], texts[p.second]) for number, p in enumerate(pairs, start=1)]
    with (folder / "pairs.jsonl").open("w", encoding="utf-8") as file:
        for (number, first, second), pair in zip(rows, pairs, strict=True):
            record = {
                "pair": number,
                "first": first,
                "second": second,
                "strategy": pair.strategy,
                "similarity": round(pair.similarity, 6),
            }
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    guide = ["Give every pair a degree, 1 to 5, in the last column:", "", *DEGREES]
    (folder / "guidelines.txt").write_text("\n".join(guide) + "\n", encoding="utf-8")
    for annotator in range(1, config.annotators + 1):
        write_sheet(folder / f"sheet_{annotator}.csv", rows, config.seed + annotator)


def merge_sts(config: MergeStsConfig) -> Merged:
    """Merges filled sheets and writes the set.

    Raises:
        InputError: a sheet cannot be used.
        FileExistsError: the output exists and may not be replaced.
    """
    merged = merge_sheets(resolve_inputs(config.sheets, "sheets"), config.min_annotators)
    write_sts_set(pathlib.Path(config.output), merged.sts_set, config.overwrite)
    return merged
