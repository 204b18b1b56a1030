"""The options of `merge`."""

import dataclasses

from dcse_tf.options import Options, option


@dataclasses.dataclass(frozen=True)
class MergeOptions(Options):
    """Averages an encoder's weights from before and after training."""

    start: str = option(
        "",
        "The encoder that the training started from: a folder, a hub name, package:NAME or a run "
        "directory.",
        required=True,
        path="reads",
    )
    trained: str = option("", "The encoder trained from it: likewise.", required=True, path="reads")
    output_dir: str = option(
        "",
        "Folder to write the encoder to, for `model` and `encoder`; pooling, length, matching "
        "and projection heads are those of the trained one.",
        required=True,
        path="writes",
    )
    share: float = option(
        0.7,
        "Weight of the trained encoder in the average, from 0 (the start) to 1 (the trained one). "
        "More favours the corpus of the training, less what the start knew of other domains.",
        minimum=0.0,
        maximum=1.0,
    )
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")
