"""What all training tasks are: `TrainOptions`, with the options and methods that several share.

Commands import the tasks for their options and must answer --help at once, so this module does not
import TensorFlow.
"""

import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from absl import logging

from dcse_tf.data.dialogue import Context
from dcse_tf.evaluation.metrics import RETRIEVAL, STS, all_contexts, rank_scores
from dcse_tf.options import OptionError, Options, option
from dcse_tf.tasks.spec import TASKS, EncoderParts, Scorer, Setup, Term, TermOptions

if TYPE_CHECKING:
    from dcse_tf.data.dialogue_step import DialogueSource
    from dcse_tf.data.manifest import Manifest
    from dcse_tf.data.stream import Source
    from dcse_tf.reading.cross_encoder import Reader
    from dcse_tf.tasks.objective import Objective

_BATCHES = "batches and context"
_MOST_CONTEXT_TOKENS = 448
_SESSION_TURNS = 16  # dense: consecutive turns of a session in a step, at most
# Sizes of Turc et al. 2019 ("Well-Read Students Learn Better"), table 1; "base" is BERT's own.
ENCODER_SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
}
_SIZES = ", ".join(f"{name} {x}/{y}" for name, (x, y) in ENCODER_SIZES.items())  # layers/width


class DeviceOptions(TermOptions, group="devices and speed"):
    """On what a training computes, and in which arrangement."""

    deterministic: bool = option(False, "The same result bit for bit, by slower operations.")
    logical_cpus: int = option(
        1, "CPU devices to train on if there is no GPU.", minimum=1, maximum=1024, resume="free"
    )
    layout: str = option(
        "",
        "packed, the default: several texts in a row; padded: one. The result is the same.",
        choices=("", "packed", "padded"),
    )
    row_length: int = option(
        0, "packed: tokens in a row. 0: 64, or the longest sequence.", minimum=8, or_zero=True
    )
    compute_dtype: str = option(
        "float32", "Type that the encoder computes in.", choices=("float32", "bfloat16")
    )


class LogOptions(TermOptions, group="log and checkpoints"):
    """How often a training logs and saves."""

    log_every: int = option(10, "Steps between two summaries.", minimum=1, resume="free")
    save_every: int = option(200, "Steps between two checkpoints.", minimum=1, resume="free")


class DevOptions(TermOptions, group="evaluation"):
    """How the encoder is evaluated while it is trained."""

    eval_every: int = option(
        200, "Steps between two evaluations on dev data.", minimum=1, resume="free"
    )
    dev_samples: int = option(200, "Dev sessions to score; mlm: 20 texts each. 0: none.", minimum=0)
    dev_retrieval: str = option("", "A select.txt file to evaluate (MAP, MRR).", path="files")
    dev_sts: str = option("", "An sts.txt file to evaluate (Spearman).", path="files")
    best_metric: str = option("dev/cosine_r1", "Dev score by which the best encoder is kept.")


class OptimizerOptions(TermOptions, group="optimizer"):
    """How weights follow the gradient."""

    seed: int = option(0, "Seed of all randomness in the run.", minimum=0)
    warmup_steps: int = option(-1, "Steps of linear warm-up. -1: a tenth of `steps`.", minimum=-1)
    decay: str = option(
        "exponential",
        "After the warm-up. exponential: x 0.98 every 10,000 steps; linear: to 0 at `steps`.",
        choices=("exponential", "linear", "constant"),
    )
    weight_decay: float = option(
        0.01, "AdamW's weight decay, of all but biases and layer norms.", minimum=0.0
    )
    clip_norm: float = option(3.0, "Largest global norm of the gradient.", minimum=1e-30)


class StartOptions(TermOptions, group="encoder"):
    """What of the encoder is trained."""

    dropout: float = option(
        0.1, "Dropout probability inside the encoder while training.", minimum=0.0, maximum=0.9
    )
    freeze_layers: int = option(
        0, "Layers, from the bottom, that are not trained. -1: half of them.", minimum=-1
    )
    freeze_embeddings: bool = option(False, "Do not train the embedding layers.")
    lora_rank: int = option(
        0, "Rank of adapters that are trained instead of the layers (LoRA). 0: none.", minimum=0
    )


class TrainOptions(
    StartOptions, OptimizerOptions, DevOptions, LogOptions, DeviceOptions, group="main"
):
    """Base class of the training tasks: fields are a task's options, methods what it trains.

    The default of the field `task` is the task's name. docs/extending.md has a complete example.

    Attributes:
        help: what the task trains, in a few words for --help.
        samples: the unit of its batches and epochs: "sessions" or "utterances".
        similarities: those to evaluate by response selection on dev sessions, if any: "matching",
            "cosine", "projected"; "reranker" with `make_scorer`.
        scores: names of the dev scores that its terms give: "LABEL_accuracy", "LABEL_loss", of
            which lower ones are better, and "LABEL_chance".
        percent: whether these are percentages.
        end_of_turn: whether it reads dialogues as sequences in which [EOT] follows every turn.
        further_terms: what `register_term` added to its terms.
    """

    variants = ("task", TASKS)
    options: ClassVar[type["TrainOptions"]]  # itself, as an entry of a registry has them
    help: ClassVar[str]
    samples: ClassVar[str] = "utterances"
    percent: ClassVar[bool] = True
    end_of_turn: ClassVar[bool] = False
    further_terms: ClassVar[tuple[type[Term], ...]] = ()

    task: str = option("dialogue_cse", "What the encoder learns, and from what.", choices=TASKS)
    data_dir: str = option("", "Folder written by prepare_data.", required=True, path="reads")
    encoder: str = option(
        "", "Checkpoint to start from: a folder, a hub name, package:NAME or a run.", path="reads"
    )
    encoder_size: str = option(
        "", f"Or start from random weights of this size: {_SIZES}.", choices=("", *ENCODER_SIZES)
    )
    run_dir: str = option(
        "", "Folder for all that is written, to be resumed.", required=True, path="resumes"
    )
    steps: int = option(
        0, "Optimizer steps in total. 0: as `epochs` says.", minimum=0, resume="free"
    )
    epochs: float = option(
        1.0, "Passes over the train split, if `steps` is 0.", minimum=0.0, resume="free"
    )
    global_batch_size: int = option(
        64, "Sessions in each step, over all devices; with mlm and simcse utterances.", minimum=1
    )
    learning_rate: float = option(3e-5, "Peak learning rate.", minimum=0.0)

    def __init_subclass__(cls, group: str = "") -> None:
        super().__init_subclass__(group)
        cls.options = cls

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check()

    @property
    def fixes_steps(self) -> bool:
        """Whether what is learnt in a step depends on the number of all steps."""
        return self.decay == "linear"

    def make_source(self, setup: Setup) -> "Source":
        """What its batches are made of; by default single utterances."""
        from dcse_tf.data.responses import UtteranceSource

        return UtteranceSource()

    def list_terms(self, setup: Setup) -> Sequence[Term]:
        """The terms of its objective; those of weight 0 are left out. The first one's rows are its
        samples.
        """
        raise NotImplementedError

    def build_parts(self, dim: int) -> EncoderParts:
        """The encoder's parts besides its BERT, given the width of the token embeddings; called
        under the strategy's scope.
        """
        return EncoderParts()

    def make_reader(self, setup: Setup) -> "Reader":
        """What reads the tables; called under the strategy's scope."""
        from dcse_tf.reading.cross_encoder import read_with_bert

        return read_with_bert(setup.backbone)

    def write_encoder(self, objective: "Objective", folder: pathlib.Path) -> None:
        """Writes the run's result into an empty folder: a sentence encoder that the options
        `encoder` and `model` take.
        """
        objective.write_sentence_encoder(folder)

    def make_scorer(self, objective: "Objective") -> Scorer | None:
        """What scores dev responses, for a task whose result is a re-ranker; None otherwise."""
        return None

    @property
    def similarities(self) -> tuple[str, ...]:
        return ("cosine",)

    @property
    def scores(self) -> tuple[str, ...]:
        return ()

    @property
    def context(self) -> Context:
        """The turns around a response, also in dev response selection; by default the paper's."""
        return Context(3, "both")

    def default_layout(self) -> str:
        """The layout to use if `layout` is not given."""
        return "packed"

    def longest_sequence(self, longest_utterance: int) -> int:
        """The most tokens in a sequence that the encoder reads, given those of an utterance."""
        return longest_utterance

    def check(self) -> None:
        super().check()
        self.check_start()
        for name in self.divided:
            if getattr(self, name) % self.logical_cpus:
                self.refuse(name, f"not divisible by `logical_cpus`={self.logical_cpus}")
        # Without this check, a wrong name would fail at the first evaluation, hundreds of steps in.
        if self.best_metric not in self.dev_scores():
            known = ", ".join(self.dev_scores())
            self.refuse("best_metric", f"with these settings the scores are {known}")

    @property
    def divided(self) -> tuple[str, ...]:
        return (*super().divided, "global_batch_size")

    def dev_scores(self) -> list[str]:
        """The names of the scores that an evaluation on dev data gives."""
        of_files = [*(RETRIEVAL if self.dev_retrieval else ()), *(STS if self.dev_sts else ())]
        ranks = [name for kind in all_contexts(self.similarities) for name in rank_scores(kind)]
        names = [*self.scores, *ranks, *of_files]
        # Without dev samples, only the files give scores. Without either there are none, and the
        # name of the best metric is checked all the same.
        return [f"dev/{name}" for name in (names if self.dev_samples else of_files or names)]

    @property
    def has_bert(self) -> bool:
        """Whether the model trained is a BERT."""
        return True

    def check_start(self) -> None:
        """Refuses missing, unusable or contradictory sources of the initial weights."""
        if bool(self.encoder) == bool(self.encoder_size):
            raise OptionError("give either `encoder` (a checkpoint) or `encoder_size` (random)")
        run_dir, start = map(os.path.realpath, (self.run_dir, self.encoder))
        if self.encoder and {run_dir, f"{run_dir}/encoder"} & {start, f"{start}/encoder"}:
            self.refuse("run_dir", "contains the encoder to start from and would overwrite it")

    def resolve(self, manifest: "Manifest", positions: int = 512) -> Self:
        """Fills in all values that depend on the corpus, so that the run's JSON records them, and
        on the number of tokens in a sequence that the encoder can read, `positions`. Resolving
        twice changes nothing. OptionError if the batch or the rows do not fit the corpus.
        """
        samples = getattr(manifest.splits["train"], self.samples)
        batch = self.global_batch_size
        if batch > samples:
            why = f"the train split of {self.data_dir} has only {samples} samples"
            self.refuse("global_batch_size", why)
        steps = self.steps or max(1, round(self.epochs * samples / batch))
        layout = self.layout or self.default_layout()
        longest = self.longest_sequence(manifest.max_sequence_length)
        row_length = self.row_length or max(64, longest)
        if layout == "packed" and row_length < longest:
            why = f"sequences of {self.data_dir} have up to {longest} tokens, each in one row"
            self.refuse("row_length", why)
        return self.replace(
            steps=steps,
            # Computed from the steps, so that the two always agree.
            epochs=steps * batch / samples,
            warmup_steps=steps // 10 if self.warmup_steps < 0 else self.warmup_steps,
            layout=layout,
            row_length=row_length,
        )


class ContextOptions(Options, group=_BATCHES):
    """For tasks that let the user choose the turns around a response; it comes first in the list of
    a task's bases, like `ContrastOptions`.
    """

    context_turns: int = option(
        3, "Context turns on each side of the response, at most.", minimum=1, maximum=1000
    )
    context_side: str = option(
        "both", "Turns before and after the response, or before it.", choices=("both", "before")
    )

    @property
    def context(self) -> Context:
        """The turns around a response."""
        return Context(self.context_turns, self.context_side)


class ContrastOptions(Options):
    """For tasks that contrast a positive with negatives."""

    temperature: float = option(
        0.1, "Temperature of the contrastive loss (equation 8).", minimum=1e-4
    )
    center_tokens: bool = option(
        False, "Subtract the mean token embedding, against saturation.", group="encoder"
    )

    def build_parts(self, dim: int) -> EncoderParts:
        from dcse_tf.bert.bert import TokenCentering

        return EncoderParts(TokenCentering(dtype="float32") if self.center_tokens else None)


class BatchOptions(TrainOptions, group=_BATCHES):
    """For tasks whose sample is a session: a response, its context, and negatives from others."""

    samples = "sessions"

    batch_form: str = option(
        "unique",
        "plain: one response a session (the paper); unique: the same, faster; dense: up to 16.",
        choices=("plain", "unique", "dense"),
    )
    negatives: int = option(
        9, "Negatives for each positive, from other sessions. all: 0.", minimum=0, words={"all": 0}
    )
    same_place: bool = option(False, "Draw negatives from the same place in dialogues, if any.")

    def make_source(self, setup: Setup) -> "Source":
        from dcse_tf.data.responses import ResponseSource

        sizes = _SESSION_TURNS, setup.manifest.max_sequence_length
        return ResponseSource(self.batch_form, self.context, *sizes, self.same_place)

    def default_layout(self) -> str:
        return "padded" if self.batch_form == "plain" else super().default_layout()

    def check(self) -> None:
        super().check()
        if self.batch_form == "plain" and self.layout not in ("", "padded"):
            self.refuse("layout", "`batch_form`=plain pads every utterance, so only padded")
        # A session gives one response or, with dense, at least two.
        check_negatives(self, 2 if self.batch_form == "dense" else 1)


def check_negatives(options: Any, each: int = 1) -> None:
    """Refuses more negatives than there are in a batch whose sessions have so many responses."""
    most = each * (options.global_batch_size - 1)
    if max(1, options.negatives) > most:
        limit = f"at most {each} x (`global_batch_size` - 1) = {most}"
        options.refuse("negatives", f"they come from the other sessions of the batch, so {limit}")


class MaskingOptions(TrainOptions):
    """For tasks that predict masked tokens."""

    mask_rate: float = option(0.15, "Share of the tokens to predict.", minimum=0.0, maximum=1.0)
    max_predictions: int = option(
        10, "Predictions in a sequence or (mlm) utterance, at most.", minimum=1, maximum=10_000
    )


class SequenceOptions(TrainOptions):
    """For tasks that read a context and a response as one sequence.

    The defaults of lengths are those of Xu et al. 2020 (section 3.3), who do not limit turns.
    """

    samples, end_of_turn = "sessions", True

    context_turns: int = option(
        20, "Turns before the response, at most.", minimum=1, maximum=1000, group=_BATCHES
    )
    max_context_tokens: int = option(
        0, "Tokens of a context, the last ones. 0: 448, or what fits.", minimum=8, or_zero=True
    )
    max_response_tokens: int = option(
        64, "Tokens of a response with [SEP], at most; it is cut at the end.", minimum=4
    )
    speaker_embeddings: bool = option(False, "Mark each token as the responder's or not (SA-BERT).")
    same_role: bool = option(
        True, "Draw negatives of the same role where possible, so that roles give nothing away."
    )

    def make_source(self, setup: Setup) -> "DialogueSource":
        from dcse_tf.bert.token_rows import make_rule
        from dcse_tf.data.dialogue_step import DialogueSource

        vocabulary = setup.vocabulary
        rule = make_rule(vocabulary, *self.segment_tokens, vocabulary.count_prefix())
        return DialogueSource(self.context_turns, rule, self.speaker_embeddings, self.same_role)

    def make_reader(self, setup: Setup) -> "Reader":
        """BERT as the reader of sequences, with speaker embeddings if the options ask for them."""
        from dcse_tf.bert.weights import SPEAKER_TABLE
        from dcse_tf.reading.cross_encoder import build_speaker_embedding, read_with_bert

        backbone, tensors, speakers = setup.backbone, setup.tensors, None
        if self.speaker_embeddings:
            speakers = build_speaker_embedding(backbone.hidden_dim, self.seed + 10, tensors)
        elif SPEAKER_TABLE in tensors:
            told = "the encoder's speaker embeddings are left out; `speaker_embeddings` keeps them"
            logging.warning(told)
        return read_with_bert(backbone, speakers)

    @property
    def context(self) -> Context:
        """The turns before a response: a response is selected by what was said before it."""
        return Context(self.context_turns, "before")

    @property
    def segment_tokens(self) -> tuple[int, int]:
        """The most tokens in a sequence's first segment and in its second."""
        return self.max_context_tokens or _MOST_CONTEXT_TOKENS, self.max_response_tokens

    def longest_sequence(self, longest_utterance: int) -> int:
        return self.longest_pair(longest_utterance, self.segment_tokens)

    def longest_pair(self, longest_utterance: int, limits: tuple[int, int]) -> int:
        """The most tokens in two segments with these limits, given those of an utterance."""
        # A turn ends with [EOT] and has no [CLS] and [SEP] of its own.
        dialogue = 2 + (self.context_turns + 1) * (longest_utterance - 1)
        return sum(min(tokens, dialogue) for tokens in limits)

    def resolve(self, manifest: "Manifest", positions: int = 512) -> Self:
        left = positions - self.max_response_tokens
        if left < 8:
            self.refuse("max_response_tokens", f"the encoder has only {positions} positions")
        tokens = self.max_context_tokens or min(_MOST_CONTEXT_TOKENS, left)
        worked_out = self.replace(max_context_tokens=tokens)
        return super(SequenceOptions, worked_out).resolve(manifest, positions)
