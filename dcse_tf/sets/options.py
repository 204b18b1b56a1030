"""Options of the tools that work with a trained encoder or a corpus."""

import collections
import dataclasses
from typing import Any

from dcse_tf.data.dialogue import Context
from dcse_tf.data.formats import FORMATS
from dcse_tf.data.options import CorpusOptions, SplitOptions
from dcse_tf.options import OptionError, Options, option, show

STRATEGIES = ("unigram", "word2vec", "intent")
WORD_KINDS = ("auto", "words", "jieba", "characters")


@dataclasses.dataclass(frozen=True)
class TableFormat:
    """A table of labelled sentences, one per row. `help` describes the format in one line."""

    help: str
    has_intents: bool = True
    has_acts: bool = False


TABLE_FORMATS = {
    "csv": TableFormat("sentences with a header line, comma-separated"),
    "tsv": TableFormat("sentences with a header line, tab-separated"),
}
# ChainMap lists its last mapping first, and includes formats that are registered later.
_FORMATS = collections.ChainMap[str, Any](FORMATS, TABLE_FORMATS)


def _list_formats_with_intents() -> str:
    return ", ".join(name for name, entry in _FORMATS.items() if entry.has_intents)


@dataclasses.dataclass(frozen=True)
class LabelledOptions(CorpusOptions):
    """Which sentences to read, and which of their labels to use."""

    format: str = option(
        "csv",
        "Format of the input: a table of sentences, or dialogues.",
        choices=_FORMATS,
    )
    text_column: str = option("text", "csv and tsv: name of the column with the sentences.")
    intent_column: str = option("intent", "csv and tsv: name of the column with the intents.")
    labels: str = option(
        "intent",
        "Dialogues: the label of a turn. intent: its intent, a turn with several has no "
        "label; act: its speaker with the turn's sorted acts and slots.",
        choices=("intent", "act"),
    )
    roles: tuple[str, ...] = option(
        (), "Dialogues: use only turns of these speakers, comma-separated. Default: all."
    )
    min_turns: int = option(
        1, "Dialogues: sessions with fewer turns (after joining) are left out.", minimum=1
    )
    min_words: int = option(
        1, "Leave out sentences with fewer words: 'yes' has no intent of its own.", minimum=1
    )
    words: str = option(
        "auto",
        "What a word is: words (runs of letters and digits), jieba (Chinese words), characters, "
        "or auto (jieba for sentences with Chinese characters, words for others).",
        choices=WORD_KINDS,
    )
    seed: int = option(0, "Seed of all random draws.", minimum=0)
    overwrite: bool = option(False, "Replace the output if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        table = self.format in TABLE_FORMATS
        of_dialogues = ("labels", "roles", "min_turns", "join_consecutive", "alternate_roles")
        of_tables = ("text_column", "intent_column")
        for name in of_dialogues if table else of_tables:
            if self.is_given(name):
                self.refuse(name, f"has no meaning with `format`={self.format}")
        if self.labels == "act" and not _FORMATS[self.format].has_acts:
            known = ", ".join(name for name, entry in _FORMATS.items() if entry.has_acts)
            self.refuse("labels", f"`format`={self.format} has no acts; expected one of {known}")


@dataclasses.dataclass(frozen=True)
class BuildRetrievalOptions(LabelledOptions):
    """Builds a semantic retrieval set (select.txt) from sentences with labels."""

    output: str = option("", "The select.txt to write.", required=True, path="writes")
    sentences: int = option(
        10000,
        "Sentences to draw, spread as evenly over the labels as possible. The paper: about "
        "7,000 for MDC and JDDC, 4,000 for ECD. 0: all.",
        minimum=0,
    )
    min_label_sentences: int = option(
        1,
        "Leave out labels with fewer distinct sentences, before sentences are drawn.",
        minimum=1,
    )
    selection: str = option(
        "top",
        "Candidates of a query. top: of the first `candidates` of BM25, those with the "
        "query's intent are the positives, as in the paper; hard: the `max_positives` with "
        "the intent that BM25 ranks lowest, and the `max_negatives` with other intents that "
        "it ranks highest, as in the authors' published files.",
        choices=("top", "hard"),
    )
    candidates: int = option(100, "Sentences that BM25 retrieves for a query (top).", minimum=2)
    max_positives: int = option(30, "Positives for a query, at most.", minimum=1)
    max_negatives: int = option(
        0, "Negatives for a query, at most. 0: all for top, 40 for hard.", minimum=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.selection == "hard" and self.candidates != 100:
            raise OptionError("`candidates` has no meaning with `selection`=hard")
        if self.labels == "intent" and not _FORMATS[self.format].has_intents:
            self.refuse("format", f"has no intents; expected one of {_list_formats_with_intents()}")


@dataclasses.dataclass(frozen=True)
class BuildCandidatesOptions(SplitOptions):
    """Builds grouped candidates from dialogues: each context with its response and negatives."""

    output: str = option(
        "",
        "The JSON Lines file to write, one context with its candidates a line.",
        required=True,
        path="writes",
    )
    responses: str = option(
        "one",
        "Responses from each session. one: one turn, drawn; all: every turn that has a turn "
        "before it.",
        choices=("one", "all"),
    )
    roles: tuple[str, ...] = option(
        (),
        "Only turns of these speakers can be a response or a negative, comma-separated. "
        "Default: all.",
    )
    context_turns: int = option(
        10, "Turns before the response to use as its context, at most. 0: all.", minimum=0
    )
    candidates: int = option(
        10, "Candidates for a context, including the true response.", minimum=2, maximum=10_000
    )
    negatives_from: str = option(
        "random",
        "How the other candidates (negatives) are chosen among the responses of other sessions. "
        "random: drawn; bm25: those that BM25 finds nearest to the words of the context; "
        "model: those whose embeddings are nearest to the mean of the context's. If there are "
        "too few near ones, the rest is drawn at random. Negatives come from the split of their "
        "response, so that no held-out response is a negative in training: give the "
        "`dev_fraction`, `test_fraction` and `seed` that prepare_data will divide the groups by.",
        choices=("random", "bm25", "model"),
    )
    same_role: bool = option(
        True,
        "Choose negatives only among what the role of the responder says, if that is enough; "
        "otherwise many are the other party's, and who speaks tells them from the true response. "
        "Roles are compared by their names.",
    )
    model: str = option(
        "",
        "With `negatives_from`=model: the encoder; takes the same values as in evaluate.",
        path="reads",
    )
    skip_top: int = option(
        0,
        "With bm25 and model: number of nearest ones to skip, because they may be as good as "
        "the true response.",
        minimum=0,
        maximum=1_000_000,
    )
    words: str = option(
        "auto",
        "With bm25: what a word is: words (runs of letters and digits), jieba (Chinese words), "
        "characters, or auto (jieba for texts with Chinese characters, words for others).",
        choices=WORD_KINDS,
    )
    # No split: negatives come from all other sessions.
    dev_fraction: float = 0.0
    test_fraction: float = 0.0
    seed: int = option(
        0, "Seed of the draws, and of the split into train, dev and test.", minimum=0
    )
    overwrite: bool = option(False, "Replace the output if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.negatives_from == "model") != bool(self.model):
            raise OptionError("`model` goes with `negatives_from`=model, and only with it")
        if self.negatives_from == "random" and self.skip_top:
            self.refuse("skip_top", "has no meaning with `negatives_from`=random")
        if self.negatives_from != "bm25" and self.is_given("words"):
            self.refuse("words", f"has no meaning with `negatives_from`={self.negatives_from}")


@dataclasses.dataclass(frozen=True)
class BuildStsOptions(LabelledOptions):
    """Chooses pairs of sentences for a dialogue STS set, and writes sheets for annotators."""

    output_dir: str = option(
        "",
        "Folder to write the sheets to.",
        required=True,
        path="writes",
    )
    pairs: int = option(
        1000, "Number of pairs. The paper: 1,000 for MDC and ECD, 2,000 for JDDC.", minimum=2
    )
    annotators: int = option(
        3, "Number of sheets, one for each annotator. The paper: 7.", minimum=1, maximum=1000
    )
    strategies: tuple[str, ...] = option(
        ("unigram", "word2vec", "intent"),
        "Where pairs come from, in equal shares: unigram (nearest by shared words), word2vec "
        "(nearest by mean word vectors), intent (at random with the same intent).",
    )
    word_vectors: str = option(
        "",
        "File of word vectors: word2vec text, .bin, or GloVe text. Default: train them on the "
        "input.",
        path="files",
    )
    vector_size: int = option(100, "Size of trained word vectors.", minimum=1, maximum=10_000)
    sentences: int = option(
        10000, "Sentences to draw pairs from, chosen at random. 0: all.", minimum=0
    )
    max_uses: int = option(3, "Pairs that a sentence may be in, at most.", minimum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = sorted(set(self.strategies) - set(STRATEGIES))
        if unknown or not self.strategies:
            given = ",".join(self.strategies)
            raise OptionError(
                f"`strategies`={show(given)}: expected some of {', '.join(STRATEGIES)}"
            )
        if len(set(self.strategies)) < len(self.strategies):
            self.refuse("strategies", "one of them is given twice")
        if "intent" in self.strategies and not _FORMATS[self.format].has_intents:
            self.refuse("format", "has no intents; give `strategies`=unigram,word2vec")
        for name in ("word_vectors", "vector_size"):
            if self.is_given(name) and "word2vec" not in self.strategies:
                self.refuse(name, "has no meaning without word2vec in `strategies`")
        if self.is_given("vector_size") and self.word_vectors:
            self.refuse("vector_size", "has no meaning with `word_vectors`, which have a size")


@dataclasses.dataclass(frozen=True)
class MergeStsOptions(Options):
    """Merges annotators' sheets into a dialogue STS set (sts.txt)."""

    sheets: tuple[str, ...] = option(
        (),
        "The filled sheets, comma-separated; globs are allowed.",
        required=True,
        path="files",
    )
    output: str = option("", "The sts.txt to write.", required=True, path="writes")
    min_annotators: int = option(
        1, "Leave out pairs with degrees from fewer annotators.", minimum=1
    )
    overwrite: bool = option(False, "Replace the output if it exists.")


@dataclasses.dataclass(frozen=True)
class InspectOptions(CorpusOptions):
    """Describes a corpus before anything is trained on it."""

    output_dir: str = option(
        "",
        "Folder for report.html, report.json and leaks.tsv.",
        required=True,
        path="writes",
    )
    vocab: str = option(
        "",
        "Checkpoint whose vocabulary is used to count tokens, unknown words and what would be "
        "cut: a folder, a hub name, package:NAME or a run directory. Default: count only "
        "words.",
        path="reads",
    )
    max_sequence_length: int = option(
        50,
        "With `vocab`: longest utterance that training would keep whole, in tokens including "
        "[CLS] and [SEP].",
        minimum=3,
    )
    words: str = option(
        "auto",
        "What a word is: words (runs of letters and digits), jieba (Chinese words), characters, "
        "or auto (jieba for utterances with Chinese characters, words for others).",
        choices=WORD_KINDS,
    )
    retrieval: tuple[str, ...] = option(
        (),
        "Semantic retrieval sets (select.txt) to look for in the corpus, comma-separated.",
        path="files",
    )
    sts: tuple[str, ...] = option(
        (),
        "Dialogue STS sets (sts.txt) to look for in the corpus, comma-separated.",
        path="files",
    )
    near_duplicate: float = option(
        0.8,
        "Two sentences are near-duplicates if they share at least this fraction of their "
        "character trigrams (Jaccard index; case, spaces and punctuation are ignored).",
        minimum=0.1,
        maximum=1.0,
    )
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_needed("vocab", "max_sequence_length")
        if self.is_given("near_duplicate") and not (self.retrieval or self.sts):
            self.refuse("near_duplicate", "has no meaning without `retrieval` or `sts`")


@dataclasses.dataclass(frozen=True)
class ExplainOptions(Options):
    """Shows how tokens and turns contribute to the similarity of a response and its context."""

    model: str = option(
        "",
        "Encoder: a run directory, a checkpoint folder, a hub name or package:NAME. An export has "
        "no token embeddings to show.",
        required=True,
        path="reads",
    )
    input: str = option(
        "",
        "File of sessions in jsonl form, such as the test.jsonl that prepare_data writes.",
        required=True,
        path="files",
    )
    session: str = option("", "Id of the session. Default: the first with at least two turns.")
    response: int | None = option(
        None,
        "Index of the turn that is the response, counted from 0. Default: the session's "
        "middle turn.",
        minimum=0,
    )
    output_dir: str = option(
        "",
        "Folder for explanation.html, explanation.json, matching.png and contributions.png.",
        required=True,
        path="writes",
    )
    context_turns: int = option(
        3, "Context turns on each side of the response, at most.", minimum=1
    )
    context_side: str = option(
        "both",
        "Context before and after the response (both) or before only.",
        choices=("both", "before"),
    )
    join_consecutive: bool = option(
        False,
        "Join consecutive turns of one speaker. For a file that prepare_data did not write; "
        "in its own files the turns are as training sees them.",
    )
    max_sequence_length: int = option(
        0,
        "Longest turn, in tokens including [CLS] and [SEP]. 0: as the encoder was trained, or "
        "else 128.",
        minimum=3,
        or_zero=True,
    )
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")

    @property
    def context(self) -> Context:
        """Which turns around a response are its context."""
        return Context(self.context_turns, self.context_side)
