"""The job that shows what changed between two encoders, on held-out dialogues."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.data.manifest import Manifest, read_manifest
from dcse_tf.data.prepare import VOCABULARY_FOLDER
from dcse_tf.data.utterance_sample import sample_utterances, spell_utterances
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.evaluation.names import PROJECTED
from dcse_tf.evaluation.options import LEAST_SENTENCES, ChangesOptions
from dcse_tf.evaluation.response_selection import (
    Sample,
    evaluate_scores,
    make_samples,
    read_sessions,
    score_by_embeddings,
)
from dcse_tf.files import atomic_directory, atomic_file, hash_number
from dcse_tf.inspecting import changes as figures
from dcse_tf.inspecting.changes import Changes

JSON_FILE, PAGE_FILE = "changes.json", "changes.md"
_DEV_FILE = "dev.jsonl"


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The data that two encoders are compared on.

    Attributes:
        sentences: sentences that are distinct, ignoring case.
        samples: samples for response selection; empty if there are too few sessions.
        notes: where the sentences and the samples come from, a sentence each.
    """

    sentences: list[str]
    samples: list[Sample]
    notes: tuple[str, ...]


def read_held_out(
    data_dir: pathlib.Path,
    manifest: Manifest,
    sentences: int,
    *,
    candidates: int,
    context_turns: int,
    max_samples: int,
    seed: int,
    same_role: bool = True,
) -> HeldOut:
    """Draws samples and sentences from the dev split; sentences from the train split if the dev
    split has fewer than LEAST_SENTENCES.

    Args:
        data_dir: a folder that `prepare_data` wrote.
        manifest: the folder's manifest.
        sentences: how many sentences to draw, at most, by a hash of the text and the seed.
        candidates, context_turns, max_samples, seed, same_role: see `make_samples`.
    """
    sessions = read_sessions(data_dir / _DEV_FILE)
    said = [text for session in sessions for text in session.texts]
    chosen, split = draw_sentences(said, sentences, seed), "dev"
    if len(chosen) < LEAST_SENTENCES:
        found = sample_utterances(data_dir, manifest, sentences, seed)
        vocabulary = read_vocabulary(data_dir / VOCABULARY_FOLDER)
        chosen = list(
            {text.casefold(): text for text in spell_utterances(found, vocabulary)}.values()
        )
        split = "train"
    notes = [f"Neighbours and cosines: {len(chosen)} sentences of the {split} dialogues."]
    samples = make_samples(
        sessions,
        candidates=candidates,
        context_turns=context_turns,
        max_samples=max_samples,
        seed=seed,
        same_role=same_role,
    )
    notes.append(
        f"Response selection: {len(samples)} dev sessions, the true response among {candidates} by "
        f"its cosine with the mean of up to {context_turns} earlier turns, with 95% intervals."
        if samples
        else f"No response selection: too few dev sessions to rank a response among {candidates}."
    )
    return HeldOut(chosen, samples, tuple(notes))


def draw_sentences(said: Iterable[str], count: int, seed: int) -> list[str]:
    """Draws `count` distinct texts, ignoring case, by a hash of the text and the seed.

    A smaller draw is the beginning of a larger one. Whether a text comes before another does not
    depend on the rest of what was said.
    """
    texts: dict[str, str] = {}
    for text in said:
        texts.setdefault(text.casefold(), text)
    order = sorted(texts, key=lambda key: (hash_number(f"{seed}:sentence:{key}"), key))
    return [texts[key] for key in order[:count]]


def measure_changes(before: SentenceEncoder, after: SentenceEncoder, held_out: HeldOut) -> Changes:
    """Computes what changed between two encoders.

    If the second has projection heads, its response selection behind them is compared too, with
    that of the first behind its own or, without any, by plain cosine.

    Raises:
        InputError: there are too few sentences, or an encoder has diverged.
    """
    scores: tuple[figures.ScoreChange, ...] = ()
    if samples := held_out.samples:
        both = [score_by_embeddings(samples, each.encode, each.heads) for each in (before, after)]
        if after.heads:
            first, second = (
                evaluate_scores(samples, found.get(PROJECTED, found["cosine"]), PROJECTED)
                for found in both
            )
            scores += figures.compare_scores(first, second, PROJECTED)
        first, second = (evaluate_scores(samples, found["cosine"], "cosine") for found in both)
        scores += figures.compare_scores(first, second)
    texts = held_out.sentences
    return figures.compare_embeddings(texts, before.encode(texts), after.encode(texts), scores)


def note_settings(before: SentenceEncoder, after: SentenceEncoder) -> tuple[str, ...]:
    """Notes about settings of the encoders that differ: they alone change results."""
    notes = []
    lengths = [encoder.settings.get("max_sequence_length") for encoder in (before, after)]
    if None not in lengths and lengths[0] != lengths[1]:
        notes.append(
            f"Longest sentence: {lengths[0]} tokens before, {lengths[1]} after; the rest is cut."
        )
    prefixes = [encoder.settings.get("prefix", "") for encoder in (before, after)]
    if prefixes[0] != prefixes[1]:
        notes.append("Put before every sentence: {!r} before, {!r} after.".format(*prefixes))
    if after.heads and not before.heads:
        notes.append(
            "Behind the projection heads: before, by plain cosine, as there were no heads."
        )
    return tuple(notes)


def write_changes(
    folder: pathlib.Path,
    changes: Changes,
    notes: Sequence[str],
    made_from: Mapping[str, Any],
    title: str,
) -> None:
    """Writes changes.md and then changes.json, each atomically; if the second exists, both do.

    Args:
        folder: an existing folder to write to.
        changes: what changed.
        notes: where the figures come from.
        made_from: what the figures depend on, stored in changes.json.
        title: the title of the page.
    """
    content = {
        "verdict": figures.describe(changes),
        "notes": list(notes),
        **dataclasses.asdict(changes),
        "made_from": dict(made_from),
    }
    page = figures.format_markdown(changes, title, notes)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    for name, written in ((PAGE_FILE, page), (JSON_FILE, text)):
        with atomic_file(folder / name) as partial:
            partial.write_text(written, encoding="utf-8")


def show_changes(options: ChangesOptions) -> Changes:
    """Compares two encoders on held-out dialogues; writes the figures if an output is named.

    Raises:
        InputError: an encoder or the data cannot be used.
        FileExistsError: the output exists and may not be replaced.
    """
    data_dir = pathlib.Path(options.data_dir)
    manifest = read_manifest(data_dir)
    held_out = read_held_out(
        data_dir,
        manifest,
        options.sentences,
        candidates=options.candidates,
        context_turns=options.context_turns,
        max_samples=options.max_samples,
        seed=options.seed,
        same_role=options.same_role,
    )
    before = SentenceEncoder.load(options.before, option="before")
    after = SentenceEncoder.load(options.after, option="after")
    notes = (*held_out.notes, *note_settings(before, after))
    for note in notes:
        logging.info("%s", note)
    if not options.output_dir:
        return measure_changes(before, after, held_out)
    with atomic_directory(pathlib.Path(options.output_dir), options.overwrite) as folder:
        found = measure_changes(before, after, held_out)
        made_from = {
            "settings": options.to_dict(),
            "before": before.fingerprint(),
            "after": after.fingerprint(),
            "the corpus": manifest.corpus_fingerprint,
        }
        title = f"From {options.before} to {options.after}"
        write_changes(folder, found, notes, made_from, title)
    return found
