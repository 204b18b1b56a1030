"""The explanation job: why a response fits its context, as a page."""

import dataclasses
import html
import json
import pathlib
from collections.abc import Sequence

import numpy as np

from dcse_tf.encoder.graph import GraphBackend
from dcse_tf.encoder.load import load_backend
from dcse_tf.encoder.options import ModelOptions
from dcse_tf.errors import InputError
from dcse_tf.evaluation.explanation import (
    MAPS,
    Explanation,
    Text,
    draw_heatmap,
    explain_response,
    top_pairs,
)
from dcse_tf.evaluation.response_selection import read_dialogues
from dcse_tf.files import atomic_directory
from dcse_tf.options import OptionError
from dcse_tf.tools.options import ExplainOptions
from dcse_tf.tools.pages import render_page, render_table

_PAIRS = 20  # listed
# Of the lowest and highest value; white between them.
_LOW, _HIGH = (33, 102, 172), (178, 24, 43)
_STYLE = """
body { max-width: 90em; }
.cells { overflow-x: auto; display: flex; gap: 2em; }
.cells table { margin: .3em 0 1em; }
.cells caption { text-align: left; color: #555; white-space: nowrap; }
.cells th { border: 0; font-weight: normal; padding: .1em .4em; text-align: right;
            white-space: nowrap; }
.cells thead th { writing-mode: vertical-rl; text-align: right; padding: .3em .1em; }
.cells td { border: 1px solid #fff; padding: .1em .25em; font-size: 10px; text-align: right;
            min-width: 2.6em; }
.tokens span { padding: .15em .2em; margin: 0 .05em; border-radius: .2em; display: inline-block; }
"""


def render_explanation(explanation: Explanation) -> str:
    """One self-contained page."""
    matching, response = explanation.matching, explanation.response
    pairs = sum(cells.size for cells in matching.contributions)
    totals = [cells.sum() for cells in matching.contributions]
    by_token = [cells.sum(axis=1) for cells in matching.contributions]
    of_response = np.sum([cells.sum(axis=0) for cells in matching.contributions], axis=0)
    parts = [
        f"<h1>Turn {response.turn} of session {html.escape(explanation.session_id)}</h1>",
        f"<p>Seen by its context and by itself the response has the similarity "
        f"<b>{matching.similarity:.4f}</b>, the cosine of its context-aware and its context-free "
        f"embedding. Every pair of a context token and a response token brings a part of it; the "
        f"parts of all {pairs:,} pairs add up to {sum(totals):.4f}. Red brings similarity, blue "
        "takes some away.</p>",
        "<h2>What each token brings</h2>",
        _render_tokens("response, in a scale of colours of its own", response, of_response),
    ]
    strongest = max(np.abs(values).max() for values in by_token)
    parts += [
        _render_tokens(
            f"weight {weight:.3f}, brings {total:+.3f}", text, values, limit=float(strongest)
        )
        for text, values, weight, total in zip(
            explanation.context, by_token, matching.weights, totals, strict=True
        )
    ]
    parts += [
        f"<h2>The {min(_PAIRS, pairs)} pairs that bring most</h2>",
        render_table(_list_pairs(explanation)),
        "<h2>Matching matrices and contributions</h2>",
        "<p>A row for each token of a context turn, a column for each token of the response. Left "
        "the matching matrix M = U R<sup>T</sup> / &radic;d, by which the turn draws on the "
        "response's tokens; right the pairs' contributions, in thousandths. Each kind has one "
        "scale of colours over all turns.</p>",
        *_render_matrices(explanation),
    ]
    return render_page(f"Turn {response.turn} of session {explanation.session_id}", parts, _STYLE)


def _list_pairs(explanation: Explanation) -> list[Sequence[str]]:
    matching = explanation.matching
    rows: list[Sequence[str]] = [
        ("turn", "context token", "response token", "M", "contribution", "of the similarity")
    ]
    for pair in top_pairs(matching, _PAIRS):
        text = explanation.context[pair.turn]
        share = pair.contribution / matching.similarity if matching.similarity else 0.0
        rows.append(
            (
                str(text.turn),
                text.tokens[pair.context_token],
                explanation.response.tokens[pair.response_token],
                f"{matching.matrices[pair.turn][pair.context_token, pair.response_token]:.2f}",
                f"{pair.contribution:+.4f}",
                f"{100 * share:.1f}%",
            )
        )
    return rows


def _render_tokens(what: str, text: Text, values: np.ndarray, limit: float = 0.0) -> str:
    limit = limit or float(np.abs(values).max())
    spans = "".join(
        f'<span style="{_color(value, limit)}" title="{value:+.4f}">{html.escape(token)}</span>'
        for token, value in zip(text.tokens, values, strict=True)
    )
    return f'<p class="tokens"><b>turn {text.turn}</b> ({what})<br>{spans}</p>'


def _render_matrices(explanation: Explanation) -> list[str]:
    matching = explanation.matching
    limits = [
        max(float(np.abs(cells).max()) for cells in kind)
        for kind in (matching.matrices, matching.contributions)
    ]
    parts = []
    for place, text in enumerate(explanation.context):
        tables = [
            _render_cells("M", text, explanation.response, matching.matrices[place], limits[0], 1),
            _render_cells(
                "contributions, in thousandths",
                text,
                explanation.response,
                matching.contributions[place],
                limits[1],
                1000,
            ),
        ]
        parts.append(f'<h3>turn {text.turn}</h3><div class="cells">{"".join(tables)}</div>')
    return parts


def _render_cells(
    caption: str, text: Text, response: Text, cells: np.ndarray, limit: float, times: int
) -> str:
    head = "".join(f"<th>{html.escape(token)}</th>" for token in response.tokens)
    lines = []
    for token, row in zip(text.tokens, cells, strict=True):
        filled = "".join(
            f'<td style="{_color(value, limit)}">{times * value:z.1f}</td>' for value in row
        )
        lines.append(f"<tr><th>{html.escape(token)}</th>{filled}</tr>")
    return (
        f"<table><caption>{caption}</caption><thead><tr><th></th>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def _color(value: float, limit: float) -> str:
    """The style of a cell: red for the largest value, blue for its negative, white for 0."""
    share = min(1.0, abs(value) / limit) if limit else 0.0
    end = _HIGH if value > 0 else _LOW
    red, green, blue = (round(255 + (channel - 255) * share) for channel in end)
    letters = ";color:#fff" if share > 0.6 else ""
    return f"background:#{red:02x}{green:02x}{blue:02x}{letters}"


_NAMED = 5  # sessions in a message


def explain(config: ExplainOptions) -> str:
    """Takes a response's similarity apart, and writes a page, its figures and its drawings.

    Returns:
        A few lines for the terminal.

    Raises:
        InputError: the model or the session cannot be used.
        OptionError: the session has no such response, or it has no context.
        FileExistsError: the output exists and may not be replaced.
    """
    # The session first: a fault in it must not cost the loading of a model.
    session = _find_session(config)
    response, context = _choose_response(config, session)
    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        backend = load_backend(
            ModelOptions(model=config.model, max_sequence_length=config.max_sequence_length)
        )
        if not isinstance(backend, GraphBackend) or backend.match is None:
            raise InputError(
                f"`model`={config.model}: gives sentence embeddings alone; expected an encoder "
                "with token embeddings, such as a run directory"
            )
        tokens = backend.graph.vocabulary.tokens
        explanation = explain_response(backend, tokens, session, response, context)
        page = render_explanation(explanation)
        (folder / "explanation.html").write_text(page, encoding="utf-8")
        content = {"settings": config.to_dict(), **_to_dict(explanation)}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (folder / "explanation.json").write_text(text, encoding="utf-8")
        for name in MAPS:
            (folder / f"{name}.png").write_bytes(draw_heatmap(explanation, name))
    return _describe(explanation)


def _find_session(config: ExplainOptions) -> tuple[str, list[str]]:
    path = pathlib.Path(config.input)
    sessions = read_dialogues(path, config.join_consecutive)
    if not sessions:
        raise InputError(f"{path}: no session of two turns or more")
    for session in sessions:
        if config.session in ("", session[0]):
            return session
    names = ", ".join(name for name, _ in sessions[:_NAMED])
    raise InputError(
        f"{path}: no session {config.session!r} of two turns or more; expected `session` to be one "
        f"of its {len(sessions)}, such as {names}"
    )


def _choose_response(
    config: ExplainOptions, session: tuple[str, list[str]]
) -> tuple[int, list[int]]:
    turns = len(session[1])
    response = turns // 2 if config.response is None else config.response
    if response >= turns:
        raise OptionError(
            f"`response`={response}: session {session[0]} has {turns} turns, 0 to {turns - 1}"
        )
    context = config.context.of(turns, response)
    if not context:
        raise OptionError(f"`response`={response}: no turn is before it; with `context_side`=both "
                          "it has those after it")  # fmt: skip
    return response, context


def _to_dict(explanation: Explanation) -> dict:
    matching = explanation.matching
    return {
        "session_id": explanation.session_id,
        "similarity": matching.similarity,
        "scored": explanation.scored,
        "response": dataclasses.asdict(explanation.response),
        "context": [
            {
                **dataclasses.asdict(text),
                "weight": float(weight),
                "matching": matrix.tolist(),
                "contributions": contributions.tolist(),
            }
            for text, weight, matrix, contributions in zip(
                explanation.context,
                matching.weights,
                matching.matrices,
                matching.contributions,
                strict=True,
            )
        ],
    }


def _describe(explanation: Explanation) -> str:
    response = explanation.response
    lines = [
        f"session {explanation.session_id}, response turn {response.turn}: {response.text}",
        f"similarity {explanation.matching.similarity:.4f}; the pairs that bring most:",
    ]
    for pair in top_pairs(explanation.matching, 5):
        text = explanation.context[pair.turn]
        lines.append(
            f"  {pair.contribution:+.4f}  turn {text.turn} {text.tokens[pair.context_token]} - "
            f"{response.tokens[pair.response_token]}"
        )
    return "\n".join(lines)
