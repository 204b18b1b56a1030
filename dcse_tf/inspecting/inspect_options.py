"""The options of `inspect_data` and `explain`."""

from dcse_tf.data.corpus import CorpusOptions
from dcse_tf.data.dialogue import Context
from dcse_tf.options import Options, option


class InspectOptions(CorpusOptions):
    """Describes a corpus before anything is trained on it."""

    output_dir: str = option(
        "", "Folder for report.html, report.json and leaks.tsv.", required=True, path="writes"
    )
    retrieval: tuple[str, ...] = option(
        (), "Semantic retrieval sets (select.txt) to look for in the corpus.", path="files"
    )
    sts: tuple[str, ...] = option(
        (), "Dialogue STS sets (sts.txt) to look for in the corpus.", path="files"
    )
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")


class ExplainOptions(Options):
    """Shows how tokens and turns contribute to the similarity of a response and its context."""

    model: str = option(
        "",
        "Encoder: a run directory, a checkpoint folder, a hub name or package:NAME.",
        required=True,
        path="reads",
    )
    input: str = option(
        "",
        "File of sessions in jsonl form, such as prepare_data's test.jsonl.",
        required=True,
        path="files",
    )
    session: str = option("", "Id of the session. Default: the first with at least two turns.")
    response: int | None = option(
        None, "Index of the response's turn, from 0. Default: the middle turn.", minimum=0
    )
    output_dir: str = option("", "Folder for explanation.html.", required=True, path="writes")
    context_turns: int = option(
        3, "Context turns on each side of the response, at most.", minimum=1
    )
    context_side: str = option(
        "both",
        "Context before and after the response (both) or before only.",
        choices=("both", "before"),
    )
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")

    @property
    def context(self) -> Context:
        """Which turns around a response are its context."""
        return Context(self.context_turns, self.context_side)
