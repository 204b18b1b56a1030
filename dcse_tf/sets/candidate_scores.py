"""Scores grouped candidates with a re-ranker, to distil its scores into an encoder.

The groups are scored in blocks. Until all are done, the finished blocks lie in a folder beside the
output, so that an interrupted job resumes after the last of them.
"""

import dataclasses
import itertools
import json
import pathlib
import shutil
from collections.abc import Iterator, Sequence

import numpy as np

from dcse_tf.data.candidates import CandidateGroup, group_to_dict
from dcse_tf.data.formats import FORMATS
from dcse_tf.errors import InputError, name_output
from dcse_tf.files import (
    MadeFrom,
    atomic_file,
    flush,
    hash_file,
    lock_output,
    marked,
    refuse_existing,
    resumable,
)
from dcse_tf.input_files import BadLines, parse_json
from dcse_tf.progress import Progress
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.sets.options import ScoreCandidatesOptions

# Settings that the bits of the scores depend on.
_DECISIVE = ("format", "batch_tokens", "compute_dtype", "block_size")


@dataclasses.dataclass(frozen=True)
class Scored:
    """What `score_candidates` scored.

    Attributes:
        groups, candidates: the numbers of groups and of candidates.
        first: share of the groups whose true response has the highest score, 0 to 1.
        bad_lines: number of lines that were left out.
    """

    groups: int
    candidates: int
    first: float
    bad_lines: int


def score_candidates(config: ScoreCandidatesOptions, reranker: Reranker | None = None) -> Scored:
    """Writes the groups with a score for each candidate.

    Args:
        config: the settings.
        reranker: the re-ranker of `model`, if the caller has already loaded it.

    Raises:
        InputError: the model or the input cannot be used, or the interrupted job to resume had
            other settings.
        FileExistsError: the output exists and may not be replaced.
        LockedError: another process is writing it.
        OutputError: it cannot be written.
    """
    source, output = pathlib.Path(config.input), pathlib.Path(config.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with lock_output(output), name_output(output):
        refuse_existing(output, config.overwrite)
        # Reads the whole file first, so that errors in it appear before hours of work.
        bad_lines = BadLines(config.max_bad_lines)
        groups = sum(1 for _ in _read(config, bad_lines))
        if not groups:
            raise InputError(f"`input`={source}: no group of candidates")
        reranker = reranker or Reranker.load(
            config.model,
            batch_tokens=config.batch_tokens,
            compute_dtype=config.compute_dtype,
            option="model",
        )
        made_from = MadeFrom(
            {
                "contents of `input`": hash_file(source),
                "contents of `model`": reranker.fingerprint(),
                **{f"`{name}`": getattr(config, name) for name in _DECISIVE},
            }
        )
        with resumable(output, made_from, config.overwrite) as work:
            blocks = _write_blocks(config, reranker, work, groups)
            partial = marked(work / "scored.jsonl", "joined")
            with partial.open("wb") as file:
                for block in blocks:
                    with block.open("rb") as part:
                        shutil.copyfileobj(part, file)
            flush(partial)
            scored = _describe(partial, groups, bad_lines.count)
            partial.replace(output)
            flush(output.parent)
    return scored


def _read(config: ScoreCandidatesOptions, bad_lines: BadLines) -> Iterator[CandidateGroup]:
    """Yields the groups of the input, with the true response as first candidate."""
    for name, turns, *rest in FORMATS[config.format].read(pathlib.Path(config.input), bad_lines):
        given = rest[0]
        *context, true = turns
        labels = (1, *[0] * len(given.negatives))
        texts = (true.text, *given.negatives)
        yield CandidateGroup(name, tuple(context), texts, labels, true.role, given.dialogue)


def _write_blocks(
    config: ScoreCandidatesOptions, reranker: Reranker, work: pathlib.Path, groups: int
) -> list[pathlib.Path]:
    """Scores the blocks that are not yet done; returns the files of all blocks, in order."""
    paths: list[pathlib.Path] = []
    remaining = _read(config, BadLines(config.max_bad_lines, named=0))
    with Progress("groups", groups) as progress:
        for number in itertools.count():
            block = list(itertools.islice(remaining, config.block_size))
            if not block:
                return paths
            path = work / f"{number:08d}.jsonl"
            paths.append(path)
            if not path.exists():
                _write_block(reranker, block, path)
            progress.update(number * config.block_size + len(block))
    return paths


def _write_block(reranker: Reranker, block: Sequence[CandidateGroup], path: pathlib.Path) -> None:
    scores = reranker.score(
        [[turn.text for turn in group.context] for group in block],
        [group.candidates for group in block],
        [[turn.role for turn in group.context] for group in block],
        [group.responder for group in block],
        show_progress=False,
    )
    if not np.isfinite(np.concatenate(scores)).all():
        raise InputError("a score is not a finite number: the re-ranker has diverged")
    with atomic_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        for group, row in zip(block, scores, strict=True):
            # The shortest digits that identify the float32, not those of the equal float64.
            numbers = tuple(float(str(score)) for score in row)
            scored = dataclasses.replace(group, scores=numbers)
            file.write(json.dumps(group_to_dict(scored), ensure_ascii=False) + "\n")


def _describe(path: pathlib.Path, groups: int, bad_lines: int) -> Scored:
    candidates = first = 0
    with path.open(encoding="utf-8") as file:
        for line in file:
            scores = parse_json(line)["scores"]
            candidates += len(scores)
            first += bool(scores[0] > np.max(scores[1:]))
    return Scored(groups, candidates, first / groups, bad_lines)
