"""Options that extend the contrastive objective, for retrieval in one's own domain.

None of them is in the paper, and all are off by default. This module does not import TensorFlow.
"""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Self

from dcse_tf.options import option
from dcse_tf.tasks.options import BatchOptions

if TYPE_CHECKING:
    from dcse_tf.data.manifest import Corpus, Manifest


@dataclasses.dataclass(frozen=True)
class LeverOptions(BatchOptions):
    """For tasks that contrast responses; a task uses it instead of its base class."""

    neighbours_dir: str = option(
        "",
        "Folder of pairs that mine_neighbours wrote: similar utterances in similar contexts. "
        "Their own embeddings are made similar, in contrast to those of other pairs. Default: "
        "none.",
        reads=True,
    )
    neighbour_weight: float = option(
        0.5,
        "With `neighbours_dir`: share of the pairs in the loss; the rest is that of the task.",
        minimum=0.0,
        maximum=1.0,
    )
    neighbour_pairs: int = option(
        64, "With `neighbours_dir`: pairs in each step, over all devices.", minimum=2
    )
    both_directions: bool = option(
        False,
        "Also contrast the context of a response with the contexts that its negatives are "
        "responses to. The two losses have equal weight.",
    )
    false_negative_cosine: float = option(
        1.0,
        "Leave out negatives whose cosine with the true response, computed by the starting "
        "encoder, is above this, because they probably mean the same. How high is high depends "
        "on the encoder: E5's cosines lie mostly above 0.7. left_out shows the share of "
        "negatives. 1: none. A copy of the encoder then also reads every batch.",
        minimum=-1.0,
        maximum=1.0,
    )
    anchor_weight: float = option(
        0.0,
        "Weight of a loss that keeps the similarities of responses close to those of the "
        "starting encoder: the cross entropy over the similarities of a response with its "
        "negatives. 0: none. A copy of the encoder then also reads every batch.",
        minimum=0.0,
    )
    prediction_weight: float = option(
        0.0,
        "Share of the loss for predicting, from each response alone, the starting encoder's "
        "embeddings of the turns around it; the rest is the contrast. The prediction uses "
        "heads, one for each position, which are discarded after training. 0: none; 1: "
        "nothing else. A copy of the encoder then also reads every batch.",
        minimum=0.0,
        maximum=1.0,
    )
    prediction_turns: int = option(
        1,
        "With `prediction_weight`: turns to predict on each side, at most, among those given "
        "by `context_turns` and `context_side`.",
        minimum=1,
    )
    prediction_rate: float = option(
        25.0,
        "With `prediction_weight`: learning rate of its heads, as a multiple of `learning_rate`.",
        minimum=1e-3,
    )
    rehearsal_weight: float = option(
        0.0,
        "Weight of a loss that keeps the embeddings of garbled texts close to those of the "
        "starting encoder, so that learning the domain costs less in others: 1 - cosine, for "
        "utterances in which half of the tokens are replaced by random ones of the "
        "vocabulary. 0: none. A copy of the encoder then also reads every batch.",
        minimum=0.0,
    )
    rehearsal_texts: int = option(
        64, "With `rehearsal_weight`: garbled texts in each step, over all devices.", minimum=1
    )
    projection_dim: int = option(
        0,
        "Contrast the plain cosine behind two projection heads of this width, one for "
        "contexts and one for responses. They are kept beside the encoder, to choose responses. "
        "0: none.",
        minimum=2,
        or_zero=True,
    )
    projection_rate: float = option(
        10.0,
        "Learning rate of the projection heads, as a multiple of `learning_rate`.",
        minimum=1e-3,
    )
    projection_share: float = option(
        1.0,
        "With `projection_dim`: share of the plain cosine's contrast that lies behind the heads; "
        "the rest contrasts the embeddings themselves.",
        minimum=0.01,
        maximum=1.0,
    )
    matryoshka_dims: tuple[str, ...] = option(
        (),
        "Also contrast the plain cosine of the first dimensions, for each of these numbers "
        "(Kusupati et al. 2022); these losses and that of all dimensions have equal weight. "
        "Embeddings can then be truncated by `truncate_dim`. Default: none.",
    )

    @property
    def truncated_dims(self) -> tuple[int, ...]:
        """The numbers of `matryoshka_dims`."""
        return tuple(map(int, self.matryoshka_dims))

    @property
    def uses_start(self) -> bool:
        """Whether training needs a frozen copy of the starting encoder."""
        return (
            self.false_negative_cosine < 1.0
            or self.anchor_weight > 0.0
            or self.prediction_weight > 0.0
            or self.rehearsal_weight > 0.0
        )

    @property
    def has_neighbours(self) -> bool:
        """Whether training uses pairs of neighbours."""
        return bool(self.neighbours_dir) and self.neighbour_weight > 0.0

    @property
    def divided(self) -> tuple[str, ...]:
        pairs = ("neighbour_pairs",) if self.has_neighbours else ()
        texts = ("rehearsal_texts",) if self.rehearsal_weight else ()
        return (*super().divided, *pairs, *texts)

    def check(self) -> None:
        super().check()
        self.check_needed("projection_dim", "projection_rate", "projection_share")
        self.check_needed("prediction_weight", "prediction_turns", "prediction_rate")
        self.check_needed("rehearsal_weight", "rehearsal_texts")
        self.check_needed("neighbours_dir", "neighbour_weight", "neighbour_pairs")
        self._check_matryoshka()
        if self.uses_start and not self.encoder:
            asked = (
                "anchor_weight", "prediction_weight", "rehearsal_weight", "false_negative_cosine",
            )  # fmt: skip
            name = next(each for each in asked if self.is_given(each))
            self.refuse(name, "needs an `encoder`: embeddings from random weights mean nothing")

    def _check_matryoshka(self) -> None:
        given = self.matryoshka_dims
        if not all(text.isdecimal() and int(text) for text in given) or len({*given}) < len(given):
            self.refuse("matryoshka_dims", "expected different whole numbers of at least 1")
        if given and self.projection_dim and self.projection_share == 1.0:
            self.refuse(
                "matryoshka_dims",
                "with `projection_dim` and `projection_share`=1 the embeddings are not contrasted",
            )

    def resolve(self, manifest: "Manifest", positions: int = 512) -> Self:
        if self.neighbours_dir:
            read_neighbours(self, manifest)
        return super().resolve(manifest, positions)

    def list_metrics(self) -> tuple[str, ...]:
        """The metrics of the extensions that are in use."""
        left_out = ("left_out",) if self.false_negative_cosine < 1.0 else ()
        anchor = ("anchor_loss",) if self.anchor_weight else ()
        prediction = ("prediction_loss",) if self.prediction_weight else ()
        neighbours = ("neighbour_loss", "neighbour_accuracy") if self.has_neighbours else ()
        rehearsal = ("rehearsal_loss",) if self.rehearsal_weight else ()
        return (*left_out, *anchor, *prediction, *neighbours, *rehearsal)


def read_neighbours(options: LeverOptions, corpus: "Manifest") -> "Corpus":
    """Reads the pairs of neighbours for a training run.

    Args:
        options: the run's options, with `neighbours_dir` set.
        corpus: the manifest of the run's dialogues.

    Raises:
        InputError: the pairs' manifest cannot be read, or does not match its folder.
        OptionError: the folder has no pairs or too few, or they do not fit the corpus.
    """
    from dcse_tf.data.manifest import FILE_NAME, Corpus, read_manifest

    folder = pathlib.Path(options.neighbours_dir)
    if not (folder / FILE_NAME).is_file():
        options.refuse("neighbours_dir", "has no manifest; expected what mine_neighbours wrote")
    manifest = read_manifest(folder)
    pairs = manifest.splits["train"]
    if pairs.utterances != 2 * pairs.sessions or len(manifest.splits) != 1:
        options.refuse("neighbours_dir", "holds dialogues; expected what mine_neighbours wrote")
    if manifest.tokenizer_fingerprint != corpus.tokenizer_fingerprint:
        options.refuse(
            "neighbours_dir",
            f"was mined with another vocabulary or casing than that of {options.data_dir}; run "
            f"mine_neighbours with `data_dir`={options.data_dir}",
        )
    if manifest.max_sequence_length > corpus.max_sequence_length:
        options.refuse(
            "neighbours_dir",
            f"has utterances of up to {manifest.max_sequence_length} tokens, {options.data_dir} "
            f"only of up to {corpus.max_sequence_length}; run mine_neighbours with "
            f"`data_dir`={options.data_dir}",
        )
    own = corpus.source
    recorded = {name: manifest.settings.get(name) for name in own}
    if recorded["the corpus"] == own["the corpus"] and recorded != own:
        options.refuse(
            "neighbours_dir",
            "was mined from another division of these dialogues into train, dev and test, so it "
            "may hold some of dev and test; run mine_neighbours with `data_dir`="
            f"{options.data_dir}",
        )
    if pairs.sessions < options.neighbour_pairs:
        options.refuse("neighbour_pairs", f"{folder} has only {pairs.sessions}; give fewer")
    return Corpus(folder, manifest)
