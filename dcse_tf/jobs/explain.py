"""The job that shows what the similarity of a response and its context is made of."""

import dataclasses
import json
import pathlib

from dcse_tf.atomic import atomic_directory
from dcse_tf.config import ConfigError, ExplainConfig
from dcse_tf.data.tokenization import read_vocabulary
from dcse_tf.errors import InputError
from dcse_tf.evaluation.matching import top_pairs
from dcse_tf.export.load import load_encoder
from dcse_tf.jobs.dev_scores import read_dialogues
from dcse_tf.jobs.explanation import Explanation, context_of, explain_response
from dcse_tf.jobs.explanation_page import render_explanation
from dcse_tf.jobs.heatmaps import MAPS, draw_heatmap
from dcse_tf.models.response_scorer import ResponseScorer
from dcse_tf.models.turn_attention import read_turn_attention

_NAMED = 5  # sessions in a message


def explain(config: ExplainConfig) -> str:
    """Takes a response's similarity apart, and writes a page, its figures and its drawings.

    Returns:
        A few lines for the terminal.

    Raises:
        InputError: the model or the session cannot be used.
        ConfigError: the session has no such response, or it has no context.
        FileExistsError: the output exists and may not be replaced.
    """
    # The session first: a fault in it must not cost the loading of a model.
    session = _find_session(config)
    response, context = _choose_response(config, session)
    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        encoder = load_encoder(config.model, "model", config.max_sequence_length, "mean")
        if encoder.sentence_encoder is None:
            raise InputError(
                f"--model={config.model}: gives sentence embeddings alone; expected an encoder "
                "with token embeddings, such as a run directory"
            )
        scorer = ResponseScorer(encoder.sentence_encoder, read_turn_attention(encoder.folder))
        tokens = read_vocabulary(encoder.folder).tokens
        explanation = explain_response(scorer, tokens, session, response, context)
        page = render_explanation(explanation)
        (folder / "explanation.html").write_text(page, encoding="utf-8")
        content = {"settings": config.to_dict(), **_to_dict(explanation)}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (folder / "explanation.json").write_text(text, encoding="utf-8")
        for name in MAPS:
            (folder / f"{name}.png").write_bytes(draw_heatmap(explanation, name))
    return _describe(explanation)


def _find_session(config: ExplainConfig) -> tuple[str, list[str]]:
    path = pathlib.Path(config.input)
    sessions = read_dialogues(path, config.join_consecutive)
    if not sessions:
        raise InputError(f"{path}: no session of two turns or more")
    for session in sessions:
        if config.session in ("", session[0]):
            return session
    names = ", ".join(name for name, _ in sessions[:_NAMED])
    raise InputError(
        f"{path}: no session {config.session!r} of two turns or more; expected --session to be one "
        f"of its {len(sessions)}, such as {names}"
    )


def _choose_response(
    config: ExplainConfig, session: tuple[str, list[str]]
) -> tuple[int, list[int]]:
    turns = len(session[1])
    response = turns // 2 if config.response is None else config.response
    if response >= turns:
        raise ConfigError(
            f"--response={response}: session {session[0]} has {turns} turns, 0 to {turns - 1}"
        )
    context = context_of(turns, response, config.context_turns, config.context_side)
    if not context:
        raise ConfigError(f"--response={response}: no turn is before it; with --context_side=both "
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
