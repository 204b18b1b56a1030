"""Draws heatmaps of an explanation as PNG files. Needs matplotlib."""

import io
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from absl import logging

from dcse_tf.errors import require
from dcse_tf.inspecting.explanation import Explanation

MAPS = {"matching": "matching matrices M", "contributions": "contributions to the similarity"}

_CELL = 0.19  # size of a token's cell in inches
_MARGINS = (1.6, 1.6)  # inches beside and above the cells
_DOTS = 100  # dots per inch
_TALLEST = 60.0  # greatest height in inches
_WITH_LETTERS = re.compile(
    "CJK|Hei|Song|Ming|WenQuanYi|PingFang|Hiragino|YaHei|Gothic|Malgun|Nanum|Unicode|Noto Sans"
)


def draw_heatmap(explanation: Explanation, name: str) -> bytes:
    """Draws all turns of the context below each other, with the response along the top.

    Args:
        explanation: the explanation to draw.
        name: which map to draw, a key of `MAPS`.

    Returns:
        The bytes of a PNG file.

    Raises:
        InputError: matplotlib is not installed.
    """
    matplotlib = require("matplotlib", extra="plots", why="drawing heatmaps")
    figures = require("matplotlib.figure", extra="plots", why="drawing heatmaps")
    matching = explanation.matching
    what = MAPS[name]
    cells = matching.matrices if name == "matching" else matching.contributions
    rows: list[np.ndarray] = []
    labels: list[str] = []
    for text, part, weight in zip(explanation.context, cells, matching.weights, strict=True):
        rows += [np.full((1, part.shape[1]), np.nan), part]
        labels += [f"turn {text.turn}, weight {weight:.3f}", *text.tokens]
    families = _find_families([*labels, *explanation.response.tokens])
    columns = [_spell(token, families) for token in explanation.response.tokens]
    values = np.concatenate(rows)
    height = min(_TALLEST, _MARGINS[1] + _CELL * len(values))
    width = max(4.5, _MARGINS[0] + 0.9 + _CELL * len(columns))
    with matplotlib.rc_context({"font.family": list(families), "text.parse_math": False}):
        figure = figures.Figure((width, height), _DOTS, layout="constrained")
        axes = figure.add_subplot()
        limit = float(np.nanmax(np.abs(values))) or 1.0
        image = axes.imshow(values, "RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        axes.set_yticks(range(len(values)), [_spell(label, families) for label in labels])
        axes.set_xticks(range(len(columns)), columns, rotation=90)
        axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, labelsize=8)
        for label, row in zip(axes.get_yticklabels(), values, strict=True):
            label.set_fontweight("bold" if np.isnan(row).all() else "normal")
        axes.spines[:].set_visible(False)
        figure.colorbar(image, shrink=min(1.0, 3.0 / height), anchor=(0.0, 1.0))
        figure.suptitle(
            f"{what}\nresponse: turn {explanation.response.turn} (columns), "
            f"similarity {matching.similarity:.3f}",
            fontsize=9,
        )
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _find_families(texts: Sequence[str]) -> dict[str, set[int]]:
    """Installed fonts that together can write the texts, and the characters that each has.

    The default font comes first; others are added if they have a character that is still missing.
    """
    fonts = require("matplotlib.font_manager", extra="plots", why="drawing heatmaps")
    plain = "DejaVu Sans"  # comes with matplotlib
    families = {plain: _characters(fonts.findfont(plain))}
    missing = {ord(char) for text in texts for char in text} - families[plain]
    for font in sorted(fonts.fontManager.ttflist, key=lambda font: (font.name, font.fname)):
        if missing and _WITH_LETTERS.search(font.name) and font.name not in families:
            found = _characters(font.fname)
            if found & missing:
                families[font.name] = found
                missing -= found
    if missing:
        shown = "".join(sorted(map(chr, missing)))[:20]
        logging.warning(
            "no installed font has %d of the characters (%s): heatmaps show their codes instead, "
            "such as U+8D27; fonts-noto-cjk, for example, has Chinese",
            len(missing),
            shown,
        )
    return families


def _characters(path: str) -> set[int]:
    fonts = require("matplotlib.font_manager", extra="plots", why="drawing heatmaps")
    return set(fonts.get_font(path).get_charmap())


def _spell(text: str, families: dict[str, set[int]]) -> str:
    """The text, with codes in place of characters that no font has or that are invisible."""
    return "".join(
        char
        if any(ord(char) in found for found in families.values())
        and unicodedata.category(char)[0] != "C"
        else f"U+{ord(char):04X}"
        for char in text
    )
