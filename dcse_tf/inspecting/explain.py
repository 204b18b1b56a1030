"""The job `explain`: takes a response's similarity to its context apart by pairs of tokens."""

import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dcse_tf.bert.encoder_options import ModelOptions
from dcse_tf.data.dialogue import Context
from dcse_tf.encoder.load import load_backend
from dcse_tf.errors import InputError
from dcse_tf.evaluation.response_selection import read_dialogues
from dcse_tf.files import atomic_directory
from dcse_tf.inspecting.pages import Table, render_page
from dcse_tf.options import Options, option

if TYPE_CHECKING:
    from dcse_tf.encoder.graph import EncoderGraph

# Lower bound of the product of squared norms, as in the model's own cosine.
_FLOOR = 1e-24
_PAIRS_LISTED = 20
_SESSIONS_NAMED = 5  # in a message
_COLORS = ("33,102,172", "178,24,43")  # blue and red, of negative and positive contributions


class ExplainOptions(Options):
    """Shows how tokens and turns contribute to the similarity of a response and its context."""

    model: str = option(
        "",
        "Encoder: a run directory, a checkpoint folder, a hub name or package:NAME.",
        required=True,
        path="reads",
    )
    input: str = option(
        "",
        "File of sessions in jsonl form, such as prepare_data's test.jsonl.",
        required=True,
        path="files",
    )
    session: str = option("", "Id of the session. Default: the first with at least two turns.")
    response: int | None = option(
        None, "Index of the response's turn, from 0. Default: the middle turn.", minimum=0
    )
    output_dir: str = option("", "Folder for explanation.html.", required=True, path="writes")
    context_turns: int = option(
        3, "Context turns on each side of the response, at most.", minimum=1
    )
    context_side: str = option(
        "both",
        "Context before and after the response (both) or before only.",
        choices=("both", "before"),
    )
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")


class Explanation(NamedTuple):
    """A response matched with the turns of its context."""

    matrices: list[np.ndarray]  # of each turn M, float64 [turn tokens, response tokens]
    weights: np.ndarray  # of each turn, float64 [turns]
    contributions: list[np.ndarray]  # of the same shapes as matrices; their total is the similarity
    similarity: float  # the cosine of the context-aware and the context-free embedding


def decompose(
    context: Sequence[np.ndarray],
    response: np.ndarray,
    weigh: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Explanation:
    """Splits the matching similarity into contributions of token pairs.

    With M_t = U_t R^T / sqrt(d) the context-aware embedding (equations 3 to 5) is

        r~ = sum_t w_t / n_t sum_i (M_t R)_i = sum_t sum_i sum_j w_t / n_t M_t[i, j] R_j,

    which is a sum over pairs (i, j) of tokens. So is its product with rbar, the mean of the R_j.
    With the two norms taken as constants, pair (i, j) of turn t contributes

        c_t[i, j] = w_t / n_t M_t[i, j] (R_j . rbar) / (|r~| |rbar|),

    and the sum of all c_t[i, j] is the cosine of r~ and rbar. The norms and, with attention, the
    weights depend on all tokens. So a contribution says what the similarity consists of, not what
    the similarity would be without that pair.

    Args:
        context: token embeddings of each turn, float `[tokens, dim]`, without padding; at least
            one turn.
        response: token embeddings, float `[tokens, dim]`, without padding.
        weigh: maps the refined embeddings, pooled over each turn's tokens, float `[turns, dim]`, to
            weights `[turns]`; None for equal weights (I2).
    """
    rows = response.astype(np.float64)
    matrices = [turn.astype(np.float64) @ rows.T * rows.shape[1] ** -0.5 for turn in context]
    pooled = np.stack([matrix.mean(axis=0) @ rows for matrix in matrices])
    weights = (
        np.asarray(weigh(pooled), np.float64) if weigh else np.full(len(pooled), 1 / len(pooled))
    )
    aware, free = weights @ pooled, rows.mean(axis=0)
    norms = np.sqrt(max(float(aware @ aware) * float(free @ free), _FLOOR))
    contributions = [
        weight / len(matrix) * matrix * (rows @ free / norms)
        for weight, matrix in zip(weights, matrices, strict=True)
    ]
    return Explanation(matrices, weights, contributions, float(aware @ free) / float(norms))


def explain(config: ExplainOptions) -> str:
    """Explains a response's similarity to its context: writes a page, and returns a summary."""
    # The session is read first, so that its errors appear before the model is loaded.
    sessions = read_dialogues(pathlib.Path(config.input), copies=True)
    chosen = [each for each in sessions if config.session in ("", each.session_id)]
    if not chosen:
        names = ", ".join(each.session_id for each in sessions[:_SESSIONS_NAMED])
        of = f"{config.input} has {len(sessions)} of two turns or more"
        config.refuse("session", f"{of}: {names}")
    name, texts = chosen[0].session_id, [turn.text for turn in chosen[0].turns]
    response = len(texts) // 2 if config.response is None else config.response
    if response >= len(texts):
        config.refuse("response", f"session {name} has {len(texts)} turns, 0 to {len(texts) - 1}")
    context = Context(config.context_turns, config.context_side)
    turns = [*context.of(len(texts), response), response]
    if len(turns) == 1:
        config.refuse("context_side", f"there is no turn before the `response`={response}")

    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        backend: Any = load_backend(ModelOptions(model=config.model))
        if backend.match is None:
            raise InputError(
                f"`model`={config.model}: has only sentence embeddings; expected an encoder "
                "with token embeddings, such as a run directory"
            )
        tokens, found = explain_turns(backend, [texts[turn] for turn in turns])
        pairs = [
            (float(value), str(turn), row[i], tokens[-1][j])
            for turn, row, cells in zip(turns, tokens, found.contributions)
            for (i, j), value in np.ndenumerate(cells)
        ]
        pairs.sort(key=lambda pair: -abs(pair[0]))
        largest = [(*pair[1:], f"{pair[0]:+.4f}") for pair in pairs[:_PAIRS_LISTED]]
        page = _render(f"Turn {response} of session {name}", found, turns, tokens, largest)
        (folder / "explanation.html").write_text(page, encoding="utf-8")
    lines = [f"session {name}, response turn {response}: {texts[response]}"]
    lines.append(f"similarity {found.similarity:.4f}; the largest contributions:")
    lines += [f"  {value}  turn {turn} {one} - {other}" for turn, one, other, value in largest[:5]]
    return "\n".join(lines)


def explain_turns(backend: "EncoderGraph", texts: list[str]) -> tuple[list[list[str]], Explanation]:
    """Explains the similarity of the last of some turns, the response, to all others.

    Returns:
        The tokens of each turn as the model reads them, with [CLS] and [SEP], and the explanation.
    """
    import tensorflow as tf

    encoded = backend.embed_tokens(texts)
    vocabulary = backend.vocabulary.tokens
    ids = backend.tokenize(tf.constant(texts)).to_list()
    *context, response = (encoded[text] for text in texts)
    tokens = [[vocabulary[entry] for entry in row] for row in ids]
    attention = backend.attention
    if attention is None:
        return tokens, decompose(context, response)

    def weigh(pooled: np.ndarray) -> np.ndarray:
        return attention(tf.constant(pooled, tf.float32), tf.ones([len(pooled)], tf.bool)).numpy()

    return tokens, decompose(context, response, weigh)


def _render(
    title: str,
    found: Explanation,
    turns: Sequence[int],
    tokens: Sequence[Sequence[str]],
    pairs: Sequence[Sequence[str]],
) -> str:
    """A page with the list of pairs, and a coloured table of contributions for each turn."""
    limit = max(float(np.abs(cells).max()) for cells in found.contributions) or 1.0
    what = (
        f"The similarity is {found.similarity:.4f}, the sum of what all pairs of tokens "
        "contribute. In the tables below it is in thousandths: red adds, blue takes away."
    )
    header = ("turn", "context token", "response token", "contribution")
    tables = [Table([header, *pairs], "The largest contributions")]
    for turn, row, cells, weight in zip(turns, tokens, found.contributions, found.weights):
        table = [["", *tokens[-1]]]
        table += [[token, *(f"{1000 * v:.1f}" for v in line)] for token, line in zip(row, cells)]
        colors = [
            ["none", *(f"rgba({_COLORS[bool(v > 0)]},{abs(v) / limit:.2f})" for v in line)]
            for line in cells
        ]
        tables.append(Table(table, f"Turn {turn}, weight {weight:.3f}", colors))
    return render_page(title, tables, what)
