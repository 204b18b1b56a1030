"""Settings of `inspect_data`."""

import dataclasses

from dcse_tf.config.base import option
from dcse_tf.config.corpus import CorpusOptions
from dcse_tf.config.labelled import WORD_KINDS


@dataclasses.dataclass(frozen=True)
class InspectConfig(CorpusOptions):
    """Says what is in a corpus, before anything is trained on it."""

    output_dir: str = option(
        "",
        "Folder for report.html, report.json and leaks.tsv.",
        required=True,
        writes=True,
    )
    vocab: str = option(
        "",
        "Checkpoint whose WordPiece vocabulary counts tokens, unknown words and what is cut: a "
        "folder, a hub name, package:NAME or a run directory. Default: words alone are counted.",
        reads=True,
    )
    max_sequence_length: int = option(
        50,
        "With --vocab: longest utterance that training would keep whole, in tokens with [CLS] and "
        "[SEP].",
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
        files=True,
    )
    sts: tuple[str, ...] = option(
        (),
        "Dialogue STS sets (sts.txt) to look for in the corpus, comma-separated.",
        files=True,
    )
    near_duplicate: float = option(
        0.8,
        "Sentences are near-duplicates from this share of common character trigrams on (Jaccard; "
        "case, spaces and punctuation do not count).",
        minimum=0.1,
        maximum=1.0,
    )
    overwrite: bool = option(False, "Replace --output_dir if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_given("max_sequence_length") and not self.vocab:
            self.refuse("max_sequence_length", "has no meaning without --vocab")
        if self.is_given("near_duplicate") and not (self.retrieval or self.sts):
            self.refuse("near_duplicate", "has no meaning without --retrieval or --sts")
