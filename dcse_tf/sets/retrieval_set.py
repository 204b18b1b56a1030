"""Builds semantic retrieval sets from labelled sentences (paper, section 5.1.2).

The ranking is that of rank-bm25. But rank-bm25 visits every sentence for every word of a query, so
that 10,000 queries on 10,000 sentences would take hours. Here its index only provides idf, lengths
and parameters, and each word visits only the sentences that contain it.
"""

import collections
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from rank_bm25 import BM25Okapi

from dcse_tf.data.corpus import CorpusOptions, read_sessions
from dcse_tf.data.dialogue import Utterance, fold_spaces, make_splitter
from dcse_tf.data.formats import FORMATS, Format
from dcse_tf.data.formats.reading import Sessions, read_table
from dcse_tf.errors import InputError
from dcse_tf.evaluation.retrieval import Query, RetrievalSet, write_retrieval_set
from dcse_tf.files import atomic_file
from dcse_tf.input_files import BadLines
from dcse_tf.options import option
from dcse_tf.progress import Progress


def _read_sentences(
    delimiter: str, path: pathlib.Path, bad_lines: BadLines, columns: Mapping[str, str]
) -> Sessions:
    """Yields each row of a table as a session of one turn, with an intent where the row has one."""
    rows = read_table(path, bad_lines, delimiter, quoted=delimiter == ",")
    _, header = next(rows, (0, []))
    wanted = [columns.get(name, name) for name in ("text", "intent")]
    for column in wanted:
        if column not in header:
            # Escaped, because the first line of a file that is not a table can contain anything.
            found = repr(", ".join(header))[1:-1][:300] or "none"
            raise InputError(f"{path}:1: no column {column!r} (`columns`); the header has {found}")
    text, intent = map(header.index, wanted)
    for number, row in rows:
        label = row[intent].strip()
        yield f"{path.name}-{number}", [Utterance("nobody", row[text], (label,) if label else ())]


# Tables of labelled sentences, one per row, as formats beside those of dialogues.
TABLE_FORMATS = {
    name: Format(functools.partial(_read_sentences, sign), help, True, columns=("text", "intent"))
    for name, sign, help in (
        ("csv", ",", "sentences with a header line, comma-separated"),
        ("tsv", "\t", "sentences with a header line, tab-separated"),
    )
}
# ChainMap lists its last mapping first, and includes formats that are registered later.
_FORMATS = collections.ChainMap(FORMATS, TABLE_FORMATS)


class BuildRetrievalOptions(CorpusOptions):
    """Builds a semantic retrieval set (select.txt) from sentences with labels."""

    formats = _FORMATS

    format: str = option(
        "csv",
        "Format of the input: a table of sentences, with columns text and intent, or dialogues.",
        choices=_FORMATS,
    )
    output: str = option("", "The select.txt to write.", required=True, path="writes")
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
        100, "Sentences that BM25 finds for a query: positives if they have its label.", minimum=2
    )
    max_positives: int = option(30, "Positives for a query, at most.", minimum=1)
    seed: int = option(0, "Seed of all random draws.", minimum=0)
    overwrite: bool = option(False, "Replace the output if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        of_dialogues = ("labels", "roles", "min_turns", "join_consecutive", "alternate_roles")
        for name in of_dialogues if self.format in TABLE_FORMATS else ():
            if self.is_given(name):
                self.refuse(name, f"has no meaning with `format`={self.format}")
        if not getattr(_FORMATS[self.format], f"has_{self.labels}s"):
            having = [n for n, kind in _FORMATS.items() if getattr(kind, f"has_{self.labels}s")]
            self.refuse(
                "format" if self.labels == "intent" else "labels",
                f"`format`={self.format} has no {self.labels}s; expected {' or '.join(having)}",
            )


class Bm25:
    """Scores sentences, at least one with a word, by BM25 (Robertson and Zaragoza 2009)."""

    def __init__(self, sentences: Sequence[Sequence[str]]):
        index = BM25Okapi([list(words) for words in sentences])
        found: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
        for place, frequencies in enumerate(index.doc_freqs):
            for word, count in frequencies.items():
                found[word].append((place, count))
        lengths = np.array(index.doc_len)
        self._size = len(sentences)
        self._postings = {}
        for word, pairs in found.items():
            places, counts = np.array(pairs).T
            # In rank-bm25's order of operations, because the last bit can decide near ties.
            saturation = index.k1 * (1 - index.b + index.b * lengths[places] / index.avgdl)
            weight = index.idf[word] * (counts * (index.k1 + 1) / (counts + saturation))
            self._postings[word] = (places, weight)

    def scores(self, query: Sequence[str]) -> np.ndarray:
        """Scores of all sentences, float64 `[sentences]`; repeated query words count repeatedly."""
        scores = np.zeros(self._size)
        for word in query:
            if word in self._postings:
                places, weight = self._postings[word]
                scores[places] += weight
        return scores


def _label_sentences(
    config: BuildRetrievalOptions, split_words: Callable[[str], list[str]]
) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """The sentences of the input that have one label, with it, and counts of what was left out."""
    bad_lines = config.count_bad_lines()
    reasons = "empty_utterances", "short", "bad_lines", "without_label", "with_several_labels"
    left_out = collections.Counter(dict.fromkeys(reasons, 0))
    labelled: list[tuple[str, str]] = []
    for session in read_sessions(config, bad_lines, left_out):
        for turn in session.turns if len(session.turns) >= config.min_turns else ():
            if config.roles and turn.role not in config.roles:
                continue
            labels = turn.intents
            if config.labels == "act":
                act = fold_spaces(" ".join([turn.role, *sorted(turn.acts)]))
                labels = (act,) if turn.acts else ()
            if len(split_words(turn.text)) < config.min_words:
                left_out["short"] += 1
            elif len(labels) == 1:
                labelled.append((turn.text, labels[0]))
            else:
                left_out["with_several_labels" if labels else "without_label"] += 1
    left_out["bad_lines"] = bad_lines.count
    return labelled, dict(left_out)


def sample_balanced(
    labelled: Sequence[tuple[str, str]], sentences: int, seed: int, min_label_sentences: int = 1
) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Draws distinct sentences, spread as evenly over the labels as possible.

    Of sentences that differ only in case, the first is kept. A text with two labels is left out,
    because neither can be trusted. The result is shuffled, because BM25 breaks ties by index, and
    the index must not reveal the label. Returns the (sentence, label) pairs drawn, and reason ->
    number of sentences left out.
    """
    labels_of: dict[str, set[str]] = collections.defaultdict(set)
    first: dict[str, tuple[str, str]] = {}
    for sentence, label in labelled:
        labels_of[sentence.casefold()].add(label)
        first.setdefault(sentence.casefold(), (sentence, label))
    groups: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    for key, pair in first.items():
        if len(labels_of[key]) == 1:
            groups[pair[1]].append(pair)

    rng = np.random.default_rng(seed)
    shuffled = [
        [group[place] for place in rng.permutation(len(group))]
        for _, group in sorted(groups.items())
        if len(group) >= min_label_sentences
    ]
    sizes = [len(group) for group in shuffled]
    enough = sum(sizes)
    total = min(sentences or enough, enough)
    # The smallest share per label that makes enough; its last sentence is drawn for some labels
    # only, if all would be too many.
    share = next(n for n in range(enough + 1) if sum(min(size, n) for size in sizes) >= total)
    drawn = [pair for group in shuffled for pair in group[: max(0, share - 1)]]
    last = [group[share - 1] for group in shuffled if len(group) >= share > 0]
    drawn += [last[place] for place in rng.permutation(len(last))[: total - len(drawn)]]
    ambiguous = sum(len(labels) > 1 for labels in labels_of.values())
    return [drawn[place] for place in rng.permutation(len(drawn))], {
        "repeated": len(labelled) - len(first),
        "under_two_labels": ambiguous,
        "of_small_labels": len(first) - ambiguous - enough,
        "not_drawn": enough - len(drawn),
    }


def build_retrieval_set(
    labelled: Sequence[tuple[str, str]],
    words: Callable[[str], list[str]],
    candidates: int = 100,
    max_positives: int = 30,
) -> tuple[RetrievalSet, dict[str, int]]:
    """Uses each sentence as a query, with candidates from all other sentences. Returns the set, and
    counts of the sentences that are not queries for lack of a positive or a negative.

    As the paper describes: of the first sentences by BM25, those with the query's label are
    positives, of which the best are kept, and the others negatives.
    """
    split = [words(sentence) for sentence, _ in labelled]
    if not any(split):
        raise InputError("no sentence has a word")
    labels = np.unique([label for _, label in labelled], return_inverse=True)[1]
    index = Bm25(split)
    found = []
    with Progress("queries", len(split)) as progress:
        for place, query in enumerate(split):
            ranked = np.argsort(-index.scores(query), kind="stable")
            ranked = ranked[ranked != place][:candidates]
            relevant = labels[ranked] == labels[place]
            found.append(Query(place, ranked[relevant][:max_positives], ranked[~relevant]))
            progress.update(place + 1)
    some = [query for query in found if len(query.positives)]
    queries = [query for query in some if len(query.negatives)]
    dropped = {"without_positives": len(found) - len(some)}
    dropped["without_negatives"] = len(some) - len(queries)
    if not queries:
        raise InputError(
            f"none of {len(split)} sentences has both a positive and a negative candidate; "
            "each label needs at least two sentences, and `candidates` enough for another label's"
        )
    sentences = [sentence for sentence, _ in labelled]
    return RetrievalSet(sentences, queries, [label for _, label in labelled]), dropped


def build_retrieval(config: BuildRetrievalOptions) -> str:
    """Builds a retrieval set from labelled sentences and writes it; returns what was built and what
    was left out.
    """
    split = make_splitter("auto")
    with atomic_file(pathlib.Path(config.output), config.overwrite) as partial:
        labelled, left_out = _label_sentences(config, split)
        drawn, not_drawn = sample_balanced(
            labelled, config.sentences, config.seed, config.min_label_sentences
        )
        if not drawn:
            raise InputError(
                f"`input`={','.join(config.input)}: no label with `min_label_sentences`="
                f"{config.min_label_sentences} sentences: {len(labelled)} with one label, "
                f"{left_out['without_label']} without, "
                f"{left_out['with_several_labels'] + not_drawn['under_two_labels']} with several"
            )
        found, dropped = build_retrieval_set(drawn, split, config.candidates, config.max_positives)
        write_retrieval_set(partial, found)
    positives = np.mean([len(query.positives) for query in found.queries])
    negatives = np.mean([len(query.negatives) for query in found.queries])
    told = ", ".join(f"{n} {what}" for what, n in {**left_out, **not_drawn, **dropped}.items())
    return (
        f"{len(drawn)} sentences of {len({label for _, label in drawn})} labels, "
        f"{len(found.queries)} queries with {positives:.1f} positives and {negatives:.1f} "
        f"negatives on average\nleft out: {told}"
    )
