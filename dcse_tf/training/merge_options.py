"""The options of `merge`."""

import dataclasses

from dcse_tf.evaluation.options import SelectionOptions
from dcse_tf.options import OptionError, option

AUTO = -1.0


@dataclasses.dataclass(frozen=True)
class MergeOptions(SelectionOptions):
    """Averages an encoder's weights from before and after training, or centres an encoder."""

    start: str = option(
        "",
        "The encoder that the training started from: a folder, a hub name, package:NAME or a run "
        "directory.",
        required=True,
        path="reads",
    )
    trained: str = option(
        "",
        "The encoder trained from it: likewise. Without it the start itself is centred (`center`).",
        path="reads",
    )
    output_dir: str = option(
        "",
        "Folder to write the encoder to, for `model` and `encoder`; pooling, length, matching "
        "and projection heads are those of the trained one.",
        required=True,
        path="writes",
    )
    share: float = option(
        0.5,
        "Weight of the trained encoder in the average, from 0 (the start) to 1 (the trained "
        "one). auto: chosen on the dev dialogues of `data_dir`, without labels.",
        minimum=AUTO,
        maximum=1.0,
        words={"auto": AUTO},
    )
    data_dir: str = option(
        "",
        "For `share`=auto and `center`: folder that prepare_data wrote, with the encoders' "
        "vocabulary.",
        path="reads",
    )
    shares: tuple[str, ...] = option(
        ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1.0"),
        "auto: the shares to choose from, comma-separated, above 0 and at most 1.",
    )
    keep: float = option(
        0.8,
        "auto: choose the smallest share whose gain over the start in response selection (MRR "
        "by cosine, behind the projection heads if it has any) is at least this fraction of the "
        "largest gain.",
        minimum=0.0,
        maximum=1.0,
    )
    guard: tuple[str, ...] = option(
        (),
        "auto: semantic retrieval sets (select.txt), comma-separated, on which MAP must not fall.",
        path="files",
    )
    guard_tolerance: float = option(
        0.3,
        "auto: points by which the MAP of a `guard` may fall below the start's.",
        minimum=0.0,
    )
    center: bool = option(
        False,
        "Subtract the mean sentence embedding of the corpus' training utterances, by the last "
        "layer norm's bias; with auto also from every share and from the start.",
    )
    max_utterances: int = option(
        10_000,
        "center: distinct training utterances used for the mean, at most, drawn by a hash. 0: all.",
        minimum=0,
    )
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if AUTO < self.share < 0.0:
            self.refuse("share", "expected a number from 0 to 1, or auto")
        if not (self.trained or self.center):
            raise OptionError("give `trained`, what to merge `start` with, or `center`")
        self.check_needed("trained", "share")
        if self.needs_data != bool(self.data_dir):
            raise OptionError(
                "`data_dir` goes with `share`=auto and with `center`, and only with them"
            )
        self._check_auto()

    def _check_auto(self) -> None:
        selection = ("candidates", "context_turns", "same_role", "max_samples")
        for name in ("shares", "keep", "guard", "guard_tolerance", *selection):
            if self.is_given(name) and not self.is_auto:
                self.refuse(name, "has no meaning without `share`=auto")
        self.check_samples()
        self.check_needed("guard", "guard_tolerance")
        self.check_needed("center", "max_utterances")
        self.list_shares()

    @property
    def is_auto(self) -> bool:
        """Whether the share is chosen automatically."""
        return self.share == AUTO

    @property
    def needs_data(self) -> bool:
        """Whether a corpus is needed."""
        return self.is_auto or self.center

    def list_shares(self) -> list[float]:
        """The shares to choose from, ascending.

        Raises:
            OptionError: one is not a number above 0 and at most 1.
        """
        try:
            shares = sorted({float(text) for text in self.shares})
        except ValueError:
            shares = []
        if not shares or not all(0.0 < share <= 1.0 for share in shares):
            self.refuse("shares", "expected numbers above 0 and at most 1, with commas between")
        return shares
