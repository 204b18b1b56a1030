"""Settings of `evaluate` and of `compare`."""

from dcse_tf.data.formats import CANDIDATE_FORMATS
from dcse_tf.encoder.model_options import ModelOptions
from dcse_tf.options import OptionError, Options, option


class EvaluateOptions(ModelOptions):
    """Scores an encoder on evaluation sets."""

    retrieval: tuple[str, ...] = option(
        (), "Semantic retrieval sets (select.txt); scored by MAP and MRR.", path="files"
    )
    sts: tuple[str, ...] = option(
        (), "Dialogue STS sets (sts.txt); scored by Spearman's correlation.", path="files"
    )
    response_selection: tuple[str, ...] = option(
        (),
        "Files of sessions as jsonl, such as prepare_data's test.jsonl; scored by R@k and MRR of "
        "the true response, given the turns before it, and (bidirectional) those on both sides.",
        path="files",
    )
    candidates: int = option(
        10, "`response_selection`: candidates per context, with the true response.", minimum=2
    )
    context_turns: int = option(
        3, "`response_selection`: turns before a response in its context, at most.", minimum=1
    )
    max_samples: int = option(
        500,
        "`response_selection`: sessions of a file, with one response each, at most. 0: all.",
        minimum=0,
    )
    seed: int = option(
        0, "`response_selection`: seed of the responses and candidates drawn.", minimum=0
    )
    candidates_file: tuple[str, ...] = option(
        (),
        "Files of grouped candidates, such as build_candidates writes; scored by R@k, MAP and MRR.",
        path="files",
    )
    candidates_format: str = option(
        "jsonl", "Format of `candidates_file`.", choices=CANDIDATE_FORMATS
    )
    candidates_turns: int = option(
        0, "Turns used of a group's context, the last ones. 0: all.", minimum=0
    )
    several_positives: bool = option(
        False, "Allow several true responses in a group of `candidates_file`, as in Douban."
    )
    max_bad_lines: int = option(
        0, "Unusable lines of `candidates_file` to leave out before the job stops.", minimum=0
    )
    half: str = option(
        "all",
        "Retrieval and STS: all, or a half by a hash of texts, to choose settings by or to report.",
        choices=("all", "choose", "report"),
    )
    output: str = option("", "JSON file for the results. Default: only a table.", path="writes")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.retrieval or self.sts or self.response_selection or self.candidates_file):
            several = "`retrieval`, `sts`, `response_selection` or `candidates_file`"
            raise OptionError(f"nothing to evaluate: give {several}")
        self.check_needed("response_selection", "candidates", "context_turns", "max_samples")
        self.check_needed(
            "candidates_file",
            *("candidates_format", "candidates_turns", "several_positives"),
            "max_bad_lines",
        )
        if 0 < self.max_samples < self.candidates:
            self.refuse(
                "max_samples",
                f"expected at least `candidates`={self.candidates}, or 0: the responses of the "
                "sessions used are one another's candidates",
            )
        if self.response_selection or self.candidates_file:
            if self.half != "all":
                self.refuse(
                    "half",
                    "is for `retrieval` and `sts`; prepare_data has split the dialogues: choose on "
                    "dev.jsonl, report on test.jsonl",
                )
            if self.projection:
                self.refuse(
                    "projection",
                    "embeds behind one head, and response selection needs both; leave it out, and "
                    "responses are also ranked behind the heads",
                )


class CompareOptions(Options):
    """Compares models by the results that evaluate wrote (paired bootstrap)."""

    results: tuple[str, ...] = option(
        (),
        "Two or more files written by evaluate's `output`, each compared with the first.",
        required=True,
        path="files",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.results) < 2:
            raise OptionError("`results`: expected two files or more, comma-separated")
