"""Settings of `explain`."""

import dataclasses

from dcse_tf.config.base import Options, option


@dataclasses.dataclass(frozen=True)
class ExplainConfig(Options):
    """Shows what the similarity of a response and its context is made of."""

    model: str = option(
        "",
        "Encoder: a run directory, a checkpoint folder, a hub name or package:NAME. An export has "
        "no token embeddings to show.",
        required=True,
        reads=True,
    )
    input: str = option(
        "",
        "File of sessions in jsonl form, such as the test.jsonl that prepare_data writes.",
        required=True,
        files=True,
    )
    session: str = option("", "Id of the session. Default: the first of two turns or more.")
    response: int | None = option(
        None,
        "Turn that is the response, counted from 0. Default: the session's middle turn.",
        minimum=0,
    )
    output_dir: str = option(
        "",
        "Folder for explanation.html, explanation.json, matching.png and contributions.png.",
        required=True,
        writes=True,
    )
    context_turns: int = option(3, "Most context turns on each side of the response.", minimum=1)
    context_side: str = option(
        "both",
        "Context before and after the response (both) or before only.",
        choices=("both", "before"),
    )
    join_consecutive: bool = option(
        False,
        "Join consecutive turns of one speaker into one, for a file of other origin: prepare_data "
        "writes turns as training sees them.",
    )
    max_sequence_length: int = option(
        0,
        "Longest turn, in tokens with [CLS] and [SEP]. 0: what the encoder was trained with, or "
        "else 128.",
        minimum=3,
        or_zero=True,
    )
    overwrite: bool = option(False, "Replace --output_dir if it exists.")
