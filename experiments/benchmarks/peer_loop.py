"""The protocol of all peer programs: settings in, a report out, then one round per line.

Imports only the standard library, because each program runs in its own environment.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# Variant -> function that runs one round of it.
Variants = dict[str, Callable[[], dict[str, float]]]
Settings = dict[str, Any]


def timed(function: Callable[[], Any], **counts: float) -> dict[str, float]:
    """Calls a function; returns the "seconds" it took, together with the amounts it does."""
    started = time.perf_counter()
    function()
    return {"seconds": time.perf_counter() - started, **counts}


def answer(prepare: Callable[[str, Settings], tuple[dict[str, Any], Variants]]) -> None:
    """Answers requests on standard output until standard input ends.

    The command line's argument is the mode. Reads one line of JSON, the settings of the mode, and
    answers with one line of JSON, the report. Then reads the name of a variant per line, and
    answers each with the seconds and counts of one round.

    Args:
        prepare: function of mode and settings that returns the report and the variants.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # prints of libraries go to stderr
    found, variants = prepare(sys.argv[1], json.loads(sys.stdin.readline()))
    print(json.dumps({**found, "variants": list(variants)}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(variants[line.strip()]()), file=answers, flush=True)
