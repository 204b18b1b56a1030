"""The input and output of `dcse search`."""

import contextlib
import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from dcse_tf.bert.blanks import is_blank
from dcse_tf.errors import InputError
from dcse_tf.files import atomic_file
from dcse_tf.input_files import BadLines, read_lines, resolve_inputs


def search(options: Any) -> None:
    """Answers the queries of the options or, one at a time, those of standard input."""
    from dcse_tf.search import searcher as job

    given = None if options.query is None else [options.query]
    if options.queries:
        paths = resolve_inputs(options.queries, "queries")
        lines = (text for path in paths for _, text in read_lines(path, BadLines(0, option="")))
        given = [text for text in lines if not is_blank(text)]
    with job.open_searcher(options) as searcher, _open_output(options.output) as tell:
        # The sender of a line of standard input may wait for its answer.
        single = ((query, searcher.answer([query])[0]) for query in _read_queries())
        for query, hits in single if given is None else searcher.answer_all(given):
            tell(query, hits)
    if options.output not in ("", "-"):
        print(f"the answers are in {options.output}")


@contextlib.contextmanager
def _open_output(output: str) -> Iterator[Callable[[str, list[Any]], None]]:
    """Yields a function that prints or writes the answer to a query."""
    if output == "-":
        yield lambda query, hits: print(format_json(query, hits), flush=True)
    elif output:
        with atomic_file(pathlib.Path(output)) as partial, partial.open("w", encoding="utf-8") as f:
            yield lambda query, hits: print(format_json(query, hits), file=f)
    else:
        yield print_answer


def _read_queries() -> Iterator[str]:
    """Yields the lines of standard input, except blank ones."""
    if sys.stdin.isatty():
        print("a query a line, please; Ctrl-D ends", file=sys.stderr)
    for number, raw in enumerate(iter(sys.stdin.buffer.readline, b""), start=1):
        try:
            query = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"standard input:{number}: not UTF-8: {error.reason}") from error
        if not is_blank(query):
            yield query


def print_answer(query: str, hits: list[Any]) -> None:
    """Prints a query and a line per hit: rank, scores, line, count and text, where they apply."""
    print(query)
    for hit in hits:
        often = f" (x{hit.count})" if hit.count > 1 else ""
        score = "" if hit.score is None else f"{hit.score:8.4f}  "
        print(f"{hit.rank:>4}  {score}{hit.cosine:.4f}  line {hit.line}{often}  {hit.text}")
    print(flush=True)


def format_json(query: str, hits: list[Any]) -> str:
    """Formats a query and its hits as one line of JSON."""
    answers = []
    for hit in hits:
        answer = {**dataclasses.asdict(hit), "cosine": round(hit.cosine, 6)}
        if hit.score is not None:
            answer["score"] = round(hit.score, 6)
        answers.append({name: value for name, value in answer.items() if value is not None})
    return json.dumps({"query": query, "answers": answers}, ensure_ascii=False)
