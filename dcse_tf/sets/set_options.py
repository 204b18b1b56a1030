"""The options of the jobs that build evaluation sets."""

import collections
from typing import Any, NamedTuple

from dcse_tf.data.corpus import CorpusOptions, SplitOptions
from dcse_tf.data.formats import FORMATS
from dcse_tf.options import option


class TableFormat(NamedTuple):
    """A table of labelled sentences, one per row, as a format beside those of dialogues."""

    help: str
    has_intents: bool = True
    has_acts: bool = False


TABLE_FORMATS = {
    "csv": TableFormat("sentences with a header line, comma-separated"),
    "tsv": TableFormat("sentences with a header line, tab-separated"),
}
# ChainMap lists its last mapping first, and includes formats that are registered later.
_FORMATS = collections.ChainMap[str, Any](FORMATS, TABLE_FORMATS)


class BuildRetrievalOptions(CorpusOptions):
    """Builds a semantic retrieval set (select.txt) from sentences with labels."""

    format: str = option(
        "csv", "Format of the input: a table of sentences, or dialogues.", choices=_FORMATS
    )
    output: str = option("", "The select.txt to write.", required=True, path="writes")
    text_column: str = option("text", "csv and tsv: name of the column with the sentences.")
    intent_column: str = option("intent", "csv and tsv: name of the column with the intents.")
    labels: str = option(
        "intent",
        "Dialogues: label a turn by its intent, or by its speaker with its acts and slots.",
        choices=("intent", "act"),
    )
    roles: tuple[str, ...] = option((), "Dialogues: use only turns of these speakers.")
    min_turns: int = option(1, "Dialogues: leave out sessions with fewer turns.", minimum=1)
    min_words: int = option(
        1, "Leave out sentences with fewer words: 'yes' has no intent of its own.", minimum=1
    )
    min_label_sentences: int = option(
        1, "Leave out labels with fewer distinct sentences, before sentences are drawn.", minimum=1
    )
    sentences: int = option(
        10000,
        "Sentences to draw, spread evenly over the labels. The paper: about 7,000 for MDC and "
        "JDDC, 4,000 for ECD. 0: all.",
        minimum=0,
    )
    candidates: int = option(
        100,
        "Sentences that BM25 finds for a query: positives if they have its label.",
        minimum=2,
    )
    max_positives: int = option(30, "Positives for a query, at most.", minimum=1)
    seed: int = option(0, "Seed of all random draws.", minimum=0)
    overwrite: bool = option(False, "Replace the output if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        of_dialogues = ("labels", "roles", "min_turns", "join_consecutive", "alternate_roles")
        of_tables = ("text_column", "intent_column")
        for name in of_dialogues if self.format in TABLE_FORMATS else of_tables:
            if self.is_given(name):
                self.refuse(name, f"has no meaning with `format`={self.format}")
        if not getattr(_FORMATS[self.format], f"has_{self.labels}s"):
            self.refuse(
                "format" if self.labels == "intent" else "labels",
                f"`format`={self.format} has no {self.labels}s; expected one of "
                + ", ".join(
                    n for n, kind in _FORMATS.items() if getattr(kind, f"has_{self.labels}s")
                ),
            )


class BuildCandidatesOptions(SplitOptions):
    """Builds grouped candidates from dialogues: each context with its response and negatives."""

    output: str = option(
        "", "The file to write, one JSON object a context.", required=True, path="writes"
    )
    responses: str = option(
        "one",
        "Responses of a session: one, drawn, or all that have a turn before them.",
        choices=("one", "all"),
    )
    context_turns: int = option(
        10, "Turns before the response to use as its context, at most. 0: all.", minimum=0
    )
    candidates: int = option(
        10, "Candidates for a context, including the true response.", minimum=2, maximum=10_000
    )
    negatives_from: str = option(
        "random",
        "The other candidates are responses of other sessions, drawn or those that BM25 finds "
        "nearest to the context. They are of the split of their response, so that none is held "
        "out: give the fractions and seed of prepare_data.",
        choices=("random", "bm25"),
    )
    skip_top: int = option(
        0,
        "With bm25: nearest ones to skip, as they may be as good as the true response.",
        minimum=0,
        maximum=1_000_000,
    )
    same_role: bool = option(
        True,
        "Choose negatives among what the responder's role says, if that is enough; else who "
        "speaks tells many from the true response.",
    )
    dev_fraction: float = 0.0  # no split: negatives come from all other sessions
    test_fraction: float = 0.0
    overwrite: bool = option(False, "Replace the output if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.negatives_from == "random" and self.skip_top:
            self.refuse("skip_top", "has no meaning with `negatives_from`=random")
