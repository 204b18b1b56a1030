"""What every program of a peer is: settings in, what was found out, then a round a line.

Imports nothing but the standard library: each program runs in an environment of its own.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# Variant -> one round of it.
Variants = dict[str, Callable[[], dict[str, float]]]
Settings = dict[str, Any]


def timed(function: Callable[[], Any], **counts: float) -> dict[str, float]:
    """Seconds of a call, and the amounts that it does."""
    started = time.perf_counter()
    function()
    return {"seconds": time.perf_counter() - started, **counts}


def answer(prepare: Callable[[str, Settings], tuple[dict[str, Any], Variants]]) -> None:
    """Answers on standard output until standard input ends.

    Reads a line of JSON, the settings of the mode, which is the command line's argument; answers
    with a line of what was found out; then reads the name of a variant a line, and answers with the
    seconds and counts of one round of it.

    Args:
        prepare: mode and settings to what is to be told, and the variants.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    found, variants = prepare(sys.argv[1], json.loads(sys.stdin.readline()))
    print(json.dumps({**found, "variants": list(variants)}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(variants[line.strip()]()), file=answers, flush=True)
