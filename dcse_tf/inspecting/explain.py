"""The explanation job: shows why a response is similar to its context, as a page and heatmaps."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Sequence

import numpy as np

from dcse_tf.encoder.graph import GraphBackend
from dcse_tf.encoder.load import load_backend
from dcse_tf.encoder.options import ModelOptions
from dcse_tf.errors import InputError
from dcse_tf.evaluation.response_selection import read_dialogues
from dcse_tf.files import atomic_directory
from dcse_tf.inspecting.explanation import (
    Explanation,
    explain_response,
    top_pairs,
)
from dcse_tf.inspecting.heatmap import MAPS, draw_heatmap
from dcse_tf.inspecting.pages import render_page
from dcse_tf.options import OptionError
from dcse_tf.sets.options import ExplainOptions

_PAIRS_LISTED = 20
_SESSIONS_NAMED = 5  # in a message
# How the page describes the similarity, by the form of matching.
_WHAT = "the cosine of its context-aware and its context-free embedding"
# RGB colours of the lowest and the highest value; 0 is white.
_BLUE, _RED = (33, 102, 172), (178, 24, 43)


def explain(config: ExplainOptions) -> str:
    """Explains a response's similarity to its context: writes a page, JSON and heatmaps.

    Returns:
        A summary of a few lines for the terminal.

    Raises:
        InputError: the model or the session cannot be used.
        OptionError: the session has no such turn, or the turn has no context.
        FileExistsError: the output exists and may not be replaced.
    """
    # The session is read first, so that its errors appear before the model is loaded.
    session = _find_session(config)
    response, context = _choose_response(config, session)
    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        backend = load_backend(
            ModelOptions(model=config.model, max_sequence_length=config.max_sequence_length)
        )
        if not isinstance(backend, GraphBackend) or backend.match is None:
            raise InputError(
                f"`model`={config.model}: has only sentence embeddings; expected an encoder "
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
    names = ", ".join(name for name, _ in sessions[:_SESSIONS_NAMED])
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
        raise OptionError(f"`response`={response}: there is no turn before it; `context_side`=both "
                          "adds those after it")  # fmt: skip
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
        f"similarity {explanation.matching.similarity:.4f}; the largest contributions:",
    ]
    for pair in top_pairs(explanation.matching, 5):
        text = explanation.context[pair.turn]
        lines.append(
            f"  {pair.contribution:+.4f}  turn {text.turn} {text.tokens[pair.context_token]} - "
            f"{response.tokens[pair.response_token]}"
        )
    return "\n".join(lines)


def render_explanation(explanation: Explanation) -> str:
    """Renders an explanation as a self-contained HTML page."""
    matching = explanation.matching
    by_turn = [cells.sum(axis=1) for cells in matching.contributions]
    by_response_token = np.sum([cells.sum(axis=0) for cells in matching.contributions], axis=0)
    return render_page(
        "explanation.html.j2",
        explanation=explanation,
        what=_WHAT,
        pair_count=sum(cells.size for cells in matching.contributions),
        total=sum(float(values.sum()) for values in by_turn),
        response_values=by_response_token,
        response_limit=_largest([by_response_token]),
        turn_values=by_turn,
        turn_limit=_largest(by_turn),
        pairs=_list_pairs(explanation),
        matrix_limit=_largest(matching.matrices),
        contribution_limit=_largest(matching.contributions),
        color=_color,
        zip=functools.partial(zip, strict=True),
    )


def _largest(arrays: Sequence[np.ndarray]) -> float:
    return max(float(np.abs(values).max()) for values in arrays)


def _list_pairs(explanation: Explanation) -> list[Sequence[str]]:
    matching = explanation.matching
    rows: list[Sequence[str]] = [
        ("turn", "context token", "response token", "M", "contribution", "share of the similarity")
    ]
    for pair in top_pairs(matching, _PAIRS_LISTED):
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


def _color(value: float, limit: float) -> str:
    """The CSS style of a cell: red for `limit`, blue for its negative, white for 0."""
    share = min(1.0, abs(value) / limit) if limit else 0.0
    end = _RED if value > 0 else _BLUE
    red, green, blue = (round(255 + (channel - 255) * share) for channel in end)
    text = ";color:#fff" if share > 0.6 else ""
    return f"background:#{red:02x}{green:02x}{blue:02x}{text}"
