"""The job that says what is in a corpus."""

import collections
import dataclasses
import json
import pathlib

import numpy as np

from dcse_tf.atomic import atomic_directory
from dcse_tf.config import InspectConfig
from dcse_tf.data.corpus import read_sessions
from dcse_tf.data.leaks import LeakFinder, LeakReport
from dcse_tf.data.statistics import CountTokens, StatisticsCollector
from dcse_tf.data.words import make_splitter
from dcse_tf.errors import InputError
from dcse_tf.evaluation.semantic_retrieval import read_retrieval_set
from dcse_tf.evaluation.sts import read_sts_set
from dcse_tf.input_files import BadLines, resolve_inputs
from dcse_tf.jobs.data_report import DataReport, format_text, render_html
from dcse_tf.models.checkpoints import resolve_checkpoint

_TOKENS_COUNTED = 100_000  # of an utterance; a longer one counts as this


def inspect_data(config: InspectConfig) -> str:
    """Counts, looks for leaks, and writes report.html, report.json and leaks.tsv.

    Returns:
        The report as text.

    Raises:
        InputError: an input cannot be used.
        FileExistsError: the output exists and may not be replaced.
    """
    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        report = _collect(config)
        content = {"settings": config.to_dict(), **dataclasses.asdict(report)}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (folder / "report.json").write_text(text, encoding="utf-8")
        _write_leaks(folder / "leaks.tsv", report.leaks)
        (folder / "report.html").write_text(render_html(report), encoding="utf-8")
    return format_text(report)


def _collect(config: InspectConfig) -> DataReport:
    # Sets and vocabulary first: a fault in them must not cost the reading of the corpus.
    finders = _make_finders(config)
    count_tokens = _make_token_counter(config.vocab) if config.vocab else None
    collector = StatisticsCollector(make_splitter(config.words), count_tokens)
    bad_lines = BadLines(config.max_bad_lines)
    dropped: collections.Counter[str] = collections.Counter(short_sessions=0, empty_utterances=0)
    for session in read_sessions(config, bad_lines, dropped):
        if len(session.turns) < config.min_turns:
            dropped["short_sessions"] += 1
            continue
        collector.add(session)
        for finder in finders:
            for turn in session.turns:
                finder.add(session.session_id, turn.text)
    statistics = collector.finish()
    if not statistics.sessions:
        raise InputError(
            f"--input={','.join(config.input)}: no session of at least {config.min_turns} turns "
            f"({dropped['short_sessions']} sessions too short, "
            f"{dropped['empty_utterances']} utterances without text, {bad_lines.count} bad lines)"
        )
    return DataReport(
        inputs=[f"{config.format}: {name}" for name in config.input],
        dropped={**dropped, "bad_lines": bad_lines.count},
        max_sequence_length=config.max_sequence_length if config.vocab else None,
        near_duplicate=config.near_duplicate,
        statistics=statistics,
        leaks=[finder.finish() for finder in finders],
    )


def _make_finders(config: InspectConfig) -> list[LeakFinder]:
    sentences = {}
    for path in resolve_inputs(config.retrieval, "retrieval"):
        sentences[str(path)] = read_retrieval_set(path).sentences
    for path in resolve_inputs(config.sts, "sts"):
        pairs = read_sts_set(path)
        sentences[str(path)] = pairs.first + pairs.second
    return [LeakFinder(source, found, config.near_duplicate) for source, found in sentences.items()]


def _make_token_counter(vocab: str) -> CountTokens:
    import tensorflow as tf  # seconds to import, and only tokens need it

    from dcse_tf.data.tokenization import Tokenizer, read_vocabulary

    vocabulary = read_vocabulary(resolve_checkpoint(vocab, "vocab", weights=False))
    tokenizer, unknown = Tokenizer(vocabulary), vocabulary.index("[UNK]")

    def count(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids = tokenizer.tokenize(tf.constant(texts), _TOKENS_COUNTED)
        unknown_ids = tf.reduce_sum(tf.cast(ids == unknown, tf.int32), axis=1)
        return ids.row_lengths().numpy(), unknown_ids.numpy()

    return count


def _write_leaks(path: pathlib.Path, reports: list[LeakReport]) -> None:
    lines = ["set\tsimilarity\tsentence\tutterance\tsession"]
    for report in reports:
        for leak in report.leaks:
            fields = (report.source, f"{leak.similarity:.3f}", leak.sentence, leak.utterance)
            lines.append("\t".join(" ".join(f.split()) for f in (*fields, leak.session_id)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
