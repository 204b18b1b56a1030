"""Writes the dialogues of several corpora to one jsonl file of sessions.

    python experiments/join_corpora.py --output=all.jsonl FORMAT:FILE,FILE FORMAT:FILE ...

The small experiments make their vocabulary and adapted encoder from it. Consecutive turns of one
speaker are joined, as prepare_data does by default.
"""

import argparse
import collections
import json
import pathlib
import sys

from dcse_tf.data.corpus import read_sessions
from dcse_tf.data.options import CorpusOptions
from dcse_tf.errors import InputError
from dcse_tf.files import atomic_file
from dcse_tf.input_files import BadLines


def join(corpora: list[str], output: pathlib.Path) -> None:
    """Joins corpora, each given as FORMAT:FILE,...; session ids get the corpus' number as prefix.

    Raises:
        InputError: a file cannot be read, or its format is unknown.
    """
    with atomic_file(output) as partial, partial.open("w", encoding="utf-8") as file:
        for number, corpus in enumerate(corpora):
            form, _, paths = corpus.partition(":")
            options = CorpusOptions(format=form, input=tuple(paths.split(",")))
            for session in read_sessions(options, BadLines(0), collections.Counter()):
                turns = [{"role": turn.role, "text": turn.text} for turn in session.turns]
                content = {"session_id": f"{number}-{session.session_id}", "turns": turns}
                file.write(json.dumps(content, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("corpora", nargs="+", metavar="FORMAT:FILE", help="files comma-separated")
    parser.add_argument("--output", required=True, type=pathlib.Path)
    options = parser.parse_args()
    try:
        join(options.corpora, options.output)
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
