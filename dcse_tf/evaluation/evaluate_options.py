"""Settings of `evaluate` and of `compare`."""

import dataclasses

from dcse_tf.data.formats import CANDIDATE_FORMATS
from dcse_tf.encoder.model_options import ModelOptions
from dcse_tf.options import OptionError, Options, option


@dataclasses.dataclass(frozen=True)
class EvaluateOptions(ModelOptions):
    """Scores an encoder on evaluation sets."""

    retrieval: tuple[str, ...] = option(
        (),
        "Semantic retrieval sets (select.txt), comma-separated; scored by MAP and MRR.",
        path="files",
    )
    sts: tuple[str, ...] = option(
        (),
        "Dialogue STS sets (sts.txt), comma-separated; scored by Spearman's correlation.",
        path="files",
    )
    response_selection: tuple[str, ...] = option(
        (),
        "Files of sessions in jsonl form, such as the test.jsonl that prepare_data writes, "
        "comma-separated; scored by R@k and MRR of the true response among `candidates`, given "
        "the turns before it; of an encoder then also, named bidirectional as in the paper, given "
        "as many turns after it.",
        path="files",
    )
    candidates: int = option(
        10,
        "Candidates per context of `response_selection`, the true response among them.",
        minimum=2,
    )
    context_turns: int = option(
        3,
        "Turns before the response of `response_selection` that are its context, at most.",
        minimum=1,
    )
    max_samples: int = option(
        500,
        "Sessions used from each file of `response_selection`, at most, with one response each. "
        "0: all.",
        minimum=0,
    )
    seed: int = option(
        0, "Seed for drawing the responses and candidates of `response_selection`.", minimum=0
    )
    candidates_file: tuple[str, ...] = option(
        (),
        "Files of grouped candidates, such as the test files of E-commerce and Ubuntu or "
        "those of build_candidates, comma-separated; scored by R@k, MAP and MRR of the true "
        "response in its group.",
        path="files",
    )
    candidates_format: str = option(
        "jsonl", "Format of `candidates_file`.", choices=CANDIDATE_FORMATS
    )
    candidates_turns: int = option(
        0, "Turns used of a group's context, the last ones. 0: all.", minimum=0
    )
    several_positives: bool = option(
        False,
        "Allow several true responses in a group of `candidates_file`, as in Douban; "
        "otherwise they are an error.",
    )
    max_bad_lines: int = option(
        0,
        "Unusable lines and groups of `candidates_file`, such as a group without a true "
        "response, to leave out before the job stops; they are named and counted.",
        minimum=0,
    )
    half: str = option(
        "all",
        "Retrieval and STS: score all queries and pairs, or one half, decided by a hash of "
        "their texts. Choose settings on one half, and report scores on the other.",
        choices=("all", "choose", "report"),
    )
    output: str = option(
        "",
        "JSON file for the results. Default: only print the table.",
        path="writes",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.retrieval or self.sts or self.response_selection or self.candidates_file):
            raise OptionError(
                "nothing to evaluate: give `retrieval`, `sts`, `response_selection` or "
                "`candidates_file`"
            )
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


@dataclasses.dataclass(frozen=True)
class CompareOptions(Options):
    """Compares models by the results that evaluate wrote (paired bootstrap)."""

    results: tuple[str, ...] = option(
        (),
        "Two or more files written by evaluate's `output`, comma-separated; each is compared "
        "with the first.",
        required=True,
        path="files",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.results) < 2:
            raise OptionError("`results`: expected two files or more, comma-separated")
