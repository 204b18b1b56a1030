"""The texts on which exports are compared with the models they were made of."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from absl import logging

from dcse_tf.encoder.backend import BATCH_TOKENS, normalize
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.errors import OutputError
from dcse_tf.exporting.export_formats import Facts
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.reranker.scorers import RerankerFolder, Scorer, load_checkpoint_scorer

_QUESTION, _LONG = "Where is my parcel?", "It left our store today . " * 200
# The empty string, white space, several languages and scripts, accents, a ligature, an emoji,
# characters that tokenizers remove, one long word, texts that are truncated, and a repeated one.
SENTENCES = [
    *("", " \t", _QUESTION, "ok", "No.", "thanks!", "12345", "?", "the the the the"),
    *("我的包裹在哪里？", "Café, ÉCOLE: ﬁ ß 🙂\u200b\u0007", "a" * 300, _LONG, "好的。" * 200),
    *("Où est mon colis ? Ça fait déjà 2 semaines...", "а когда доставка? " * 40),
    *("أين طلبي؟", "¿Dónde está mi pedido?", "荷物はいつ届きますか。", "मेरा पार्सल कहाँ है?"),
    "I was charged twice for the same order, 1023-88, on May 4th. Please check, and pay one back.",
    "how do i change my password, the link in the mail does not work " * 8,
    *("收到的杯子是坏的，我要退货退款。" * 12, "SEND ME AN AGENT NOW", _QUESTION),
]
CONTEXTS = [
    [_QUESTION, "It left our store today.", "我的包裹在哪里？"],
    ["Do you like coffee?", "", ""],
    ["", _LONG, "Café"],
    [" ", _QUESTION, ""],
]
CANDIDATES = [
    ["The courier comes at noon.", _QUESTION, "", _LONG],
    ["I drink it black.", "好的。", "好的。", "🙂"],
    ["I drink it black.", "Café", "a" * 300, "It rains."],
    ["The courier comes at noon.", "no", "No!", "我的包裹"],
]
TEXTS = {
    "sentences": np.array(SENTENCES),
    "context": np.array(CONTEXTS),
    "candidates": np.array(CANDIDATES),
}


def embed(encoder: EncoderGraph, unit_norm: bool) -> np.ndarray:
    """The embeddings of SENTENCES, float32 `[n, dim]`, by the code that evaluation uses."""
    rows = encoder.embed_texts(SENTENCES)[0]
    return normalize(rows).astype(np.float32) if unit_norm else rows


def score(
    model: RerankerFolder,
    load: Callable[[RerankerFolder], Scorer] = load_checkpoint_scorer,
    batch_tokens: int = BATCH_TOKENS,
) -> np.ndarray:
    """The scores of CANDIDATES in CONTEXTS, float32 `[n, candidates]`, by the same code."""
    reranker = Reranker(load(model), model.settings, model.vocabulary, batch_tokens=batch_tokens)
    return np.stack(reranker.score(CONTEXTS, CANDIDATES, show_progress=False))


def refuse(path: pathlib.Path, measured: Sequence[tuple[str, float, float]]) -> Facts:
    """Refuses an export that computes something else than its model.

    `measured` is of each measure what it is, its value, and the largest that is accepted. Returns
    the measures as facts for the model card. Raises OutputError if one is too large, or NaN.
    """
    for what, value, most in measured:
        if not value <= most:
            raise OutputError(
                f"{path}: the export is refused: {what} is {value:.1e}, expected at most {most:.1e}"
            )
    return {what: f"{value:.1e}" for what, value, _ in measured}


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    """Hides what is logged of the texts above, such as that a vocabulary knows few of them."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
