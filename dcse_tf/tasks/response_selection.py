"""Response selection by a cross-encoder, with four auxiliary tasks (BERT-SL, Xu et al. 2020).

Without auxiliary tasks it is that paper's BERT; starting from a post-trained checkpoint, its
BERT-VFT; with speaker embeddings, SA-BERT (Gu et al. 2020).

Commands import this module for its options and must answer --help at once, so TensorFlow and
everything that needs it is imported inside the functions.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from dcse_tf.data.dialogue import AUXILIARY_TASKS
from dcse_tf.options import option
from dcse_tf.reading.reranker_files import RerankerSettings
from dcse_tf.tasks.registry import register_task
from dcse_tf.tasks.sequence_options import SequenceOptions
from dcse_tf.tasks.spec import Scorer, Scores, Setup, TaskSpec, Tensors

if TYPE_CHECKING:
    import keras
    import keras_hub
    import tensorflow as tf

    from dcse_tf.data.manifest import Manifest
    from dcse_tf.data.selection import SelectionForm
    from dcse_tf.reading.cross_encoder import HeadShape, Reading

_NO_TASK = "none"
_HINTED = ("next_session", "consistency")
_UNLIMITED = 2**31 - 1  # an LSTM has no positions
_OF_BERT = (
    *("speaker_embeddings", "freeze_layers", "freeze_embeddings", "lora_rank", "compute_dtype"),
)


@dataclasses.dataclass(frozen=True)
class ResponseSelectionOptions(SequenceOptions):
    """Options with the defaults of Xu et al. (section 3.3), except for values missing in its text.

    Their batch of 32 pairs is 16 sessions here, each with its true response and a negative.
    """

    task: str = "response_selection"
    epochs: float = 10.0
    global_batch_size: int = 16
    learning_rate: float = 3e-5
    best_metric: str = "dev/reranker_r1"
    negatives: int = option(
        1,
        "Negatives for each response, drawn from other sessions of the batch; all (0): all that "
        "the batch has.",
        minimum=0,
        words={"all": 0},
        group="batches and context",
    )

    architecture: str = option(
        "bert",
        "The model that reads context and response. bert: a cross-encoder; dual_lstm and "
        "esim: models without a pre-trained encoder, from random weights with the vocabulary "
        "of `data_dir`.",
        choices=("bert", "dual_lstm", "esim"),
    )
    lstm_units: int = option(300, "dual_lstm and esim: width of each LSTM.", minimum=1)
    lstm_embedding_size: int = option(
        300, "dual_lstm and esim: width of the token embeddings.", minimum=1
    )
    negatives_from: str = option(
        "batch",
        "Where negatives come from. batch: responses of the other sessions of the batch; "
        "given: up to `negatives` of those that the corpus gives for a response, drawn anew "
        "at every visit. For given, the corpus must be prepared from a format with "
        "candidates, and the response of a session is its last turn, not one that is drawn.",
        choices=("batch", "given"),
    )
    auxiliary: tuple[str, ...] = option(
        AUXILIARY_TASKS,
        "Tasks that are trained together with the matching, comma-separated: next_session "
        "(are two pieces of dialogue consecutive?), restoration (of a turn whose tokens are "
        "all masked), incoherence (which turn is from another session?), consistency (are two "
        "turns by one speaker?). none: only the matching.",
    )
    auxiliary_weight: float = option(1.0, "Weight of each auxiliary task's loss.", minimum=0.0)
    consistency_margin: float = option(
        0.6,
        "By how much the consistency of two turns by one speaker, from 0 to 1, must exceed "
        "that of two turns from different sessions.",
        minimum=0.0,
        maximum=1.0,
    )

    @property
    def tasks(self) -> tuple[str, ...]:
        """The auxiliary tasks that are trained, in the order of `AUXILIARY_TASKS`."""
        return tuple(name for name in AUXILIARY_TASKS if name in self.auxiliary)

    @property
    def has_bert(self) -> bool:
        return self.architecture == "bert"

    def default_layout(self) -> str:
        return "packed" if self.has_bert else "padded"

    def check_start(self) -> None:
        if self.has_bert:
            super().check_start()
        else:
            why = f"`architecture`={self.architecture} starts from random weights"
            self._refuse_given(("encoder", "encoder_size"), why)

    def _refuse_given(self, names: Sequence[str], why: str) -> None:
        for name in names:
            if self.is_given(name):
                self.refuse(name, why)

    def check(self) -> None:
        super().check()
        if self.has_bert:
            why = "has no meaning with `architecture`=bert"
            self._refuse_given(("lstm_units", "lstm_embedding_size"), why)
        else:
            why = f"has no meaning with `architecture`={self.architecture}"
            self._refuse_given(_OF_BERT, why)
            if self.layout == "packed":
                self.refuse("layout", f"`architecture`={self.architecture} reads padded sequences")
        files = ("dev_retrieval", "dev_sts")
        self._refuse_given(files, "a re-ranker gives no embeddings of sentences")
        known = (*AUXILIARY_TASKS, _NO_TASK)
        if wrong := [name for name in self.auxiliary if name not in known]:
            self.refuse("auxiliary", f"{wrong[0]!r}: expected {', '.join(known)}")
        if _NO_TASK in self.auxiliary and len(self.auxiliary) > 1:
            self.refuse("auxiliary", f"{_NO_TASK} excludes other tasks")
        if not self.tasks:
            self._refuse_given(("auxiliary_weight",), "has no meaning without tasks in `auxiliary`")
        if "consistency" not in self.tasks:
            why = "has no meaning without consistency in `auxiliary`"
            self._refuse_given(("consistency_margin",), why)
        others = [name for name in self.tasks if name != "restoration"]
        if self.global_batch_size < 2 and others:
            self.refuse(
                "global_batch_size",
                f"turns of other sessions come from the batch, and {others[0]} needs them: "
                "expected >= 2",
            )
        most = self.global_batch_size - 1
        if self.negatives_from == "batch" and max(1, self.negatives) > most:
            self.refuse(
                "negatives",
                f"they come from the other sessions of the batch, so at most `global_batch_size` - "
                f"1 = {most}",
            )

    def dev_scores(self) -> list[str]:
        names = (*_list_accuracies(self), *(f"{name}_chance" for name in _list_hinted(self)))
        own = [f"dev/{name}" for name in names] if self.dev_samples else []
        return [*super().dev_scores(), *own]

    def longest_sequence(self, longest_utterance: int) -> int:
        longest = super().longest_sequence(longest_utterance)
        if "next_session" not in self.tasks:
            return longest
        # Its two pieces of dialogue have equal limits, see `PairRule.divided_evenly`.
        total = sum(self.segment_tokens)
        halves = (total - total // 2, total // 2)
        return max(longest, self.longest_pair(longest_utterance, halves))

    def resolve(self, manifest: "Manifest", positions: int = 512) -> Self:
        if self.negatives_from == "given" and not manifest.splits["train"].given:
            self.refuse(
                "negatives_from",
                f"{self.data_dir} gives no candidates; expected a corpus that prepare_data made of "
                "a `format` with candidates",
            )
        return super().resolve(manifest, positions if self.has_bert else _UNLIMITED)


def _list_accuracies(options: ResponseSelectionOptions) -> tuple[str, ...]:
    chance = ("incoherence_chance",) if "incoherence" in options.tasks else ()
    return (*(f"{name}_accuracy" for name in ("matching", *options.tasks)), *chance)


def _list_hinted(options: ResponseSelectionOptions) -> list[str]:
    """The tasks with hints, by which examples might be told apart without reading."""
    return ["matching", *(name for name in _HINTED if name in options.tasks)]


def _list_metrics(options: ResponseSelectionOptions) -> tuple[str, ...]:
    """The accuracies, and the weights by which those of the auxiliary tasks are averaged."""
    return (*_list_accuracies(options), *(f"{name}_weight" for name in options.tasks))


def _make_form(setup: Setup[ResponseSelectionOptions]) -> "SelectionForm":
    from dcse_tf.bert.pair_rule import make_rule
    from dcse_tf.data.selection import SelectionForm

    options = setup.options
    return SelectionForm(
        options.context_turns,
        options.negatives,
        options.tasks,
        options.speaker_embeddings,
        make_rule(setup.vocabulary, *options.segment_tokens, setup.vocabulary.count_prefix()),
        setup.vocabulary.mask_id,
        options.negatives_from == "given",
        options.same_role,
    )


def _read(setup: Setup[ResponseSelectionOptions]) -> tuple["Reading", "HeadShape"]:
    from dcse_tf.reading.cross_encoder import HeadShape, read_with_matcher
    from dcse_tf.reading.matchers import build_matcher
    from dcse_tf.tasks.shared import make_layout, read_sequences, start_from_vectors

    options, turns = setup.options, setup.options.context_turns + 1
    if setup.backbone:
        return read_sequences(setup), HeadShape(turns, setup.backbone.hidden_dim)

    matcher = build_matcher(
        options.architecture,
        len(setup.vocabulary.tokens),
        options.seed,
        options.lstm_embedding_size,
        options.lstm_units,
        options.dropout,
    )
    if options.token_vectors:
        start_from_vectors(matcher.token_embedding.embeddings, setup.vocabulary, options)
    reading = read_with_matcher(matcher, make_layout(options))
    return reading, HeadShape(turns, options.lstm_units, options.architecture == "dual_lstm")


def _build_model(setup: Setup[ResponseSelectionOptions]) -> "keras.Model":
    from dcse_tf.matching.losses import JointLoss
    from dcse_tf.reading.cross_encoder import build_heads, build_selection_model

    options = setup.options
    reading, shape = _read(setup)
    tasks = ("matching", *options.tasks)
    heads = build_heads(tasks, reading, shape, options.seed + 11, setup.tensors)
    restoration = _build_restoration(setup, reading) if "restoration" in tasks else None
    loss = JointLoss(options.auxiliary_weight, options.consistency_margin, name="joint_loss")
    return build_selection_model(reading, heads, restoration, loss)


def _build_restoration(
    setup: Setup[ResponseSelectionOptions], reading: "Reading"
) -> "keras_hub.layers.MaskedLMHead":
    """BERT's prediction head, initialised from the checkpoint if it has one.

    Token embeddings that are not a BERT's are larger, so the head on them starts smaller.
    """
    from dcse_tf.bert import masked_lm
    from dcse_tf.tasks.shared import start_masked_lm_head

    head = masked_lm.build_head(reading.token_embedding, setup.backbone)
    head.build((None, None, reading.dim))
    start_masked_lm_head(setup, head)
    if not setup.backbone:
        masked_lm.shrink_logits(head, reading.dim**-0.5)
    return head


def _make_dataset(
    setup: Setup[ResponseSelectionOptions], first_step: int, replicas: int
) -> "tf.data.Dataset":
    from dcse_tf.data.sequence_stream import make_selection_dataset
    from dcse_tf.tasks.shared import make_stream

    stream = make_stream(setup, first_step, replicas)
    return make_selection_dataset(setup.corpus, _make_form(setup), stream)


def compute_selection_loss(model: "keras.Model", batch: Tensors, training: bool = True) -> Tensors:
    """Sums over a batch: the joint loss and each task's loss and accuracy."""
    import tensorflow as tf

    from dcse_tf.tasks.shared import count_batch

    sums = model({name: batch[name] for name in model.input}, training=training)
    # A sample is a session, and every session has one true response.
    samples = tf.reduce_sum(batch["matching_labels"])
    return {**sums, **count_batch(batch, samples, 0.0)}


def _make_evaluation(
    setup: Setup[ResponseSelectionOptions], model: "keras.Model"
) -> Callable[[], Scores]:
    """Makes the evaluation on dev sessions, on the same draws every time.

    It gives each task's accuracy and, where they are known, that of the best rule that knows only
    roles and numbers of turns, in percent.
    """
    import tensorflow as tf

    from dcse_tf.data.sequence_stream import make_selection_dataset
    from dcse_tf.tasks.shared import average_sums, score_best_rules, take_dev_sessions

    form = _make_form(setup)
    dataset = take_dev_sessions(
        setup, lambda stream: make_selection_dataset(setup.corpus, form, stream, "dev")
    )
    if dataset is None:
        return dict
    compute = tf.function(
        functools.partial(compute_selection_loss, model, training=False), reduce_retracing=True
    )
    accuracies, hinted = _list_accuracies(setup.options), _list_hinted(setup.options)
    # The same every time.
    find_chances = functools.cache(lambda: score_best_rules(dataset, hinted))

    def evaluate() -> Scores:
        return {**average_sums(dataset, compute, accuracies, 100.0), **find_chances()}

    return evaluate


def _make_settings(options: ResponseSelectionOptions) -> RerankerSettings:
    architecture, speakers = options.architecture, options.speaker_embeddings
    return RerankerSettings(architecture, *options.segment_tokens, speakers)


def _make_scorer(setup: Setup[ResponseSelectionOptions], model: "keras.Model") -> Scorer:
    from dcse_tf.bert.layout import Layout
    from dcse_tf.reading.cross_encoder import LiveScorer, read_with_bert, read_with_matcher

    layout, options = Layout("padded"), setup.options
    if setup.backbone:
        speakers = model.get_layer("speaker_embedding") if options.speaker_embeddings else None
        reading = read_with_bert(setup.backbone, layout, speakers)
    else:
        reading = read_with_matcher(model.get_layer(options.architecture), layout)
    return LiveScorer(reading, model.get_layer("matching")), _make_settings(options)


def _write_encoder(
    setup: Setup[ResponseSelectionOptions], model: "keras.Model", folder: pathlib.Path
) -> None:
    from dcse_tf.reading.cross_encoder import write_cross_encoder, write_head
    from dcse_tf.reading.matchers import write_matcher
    from dcse_tf.tasks.shared import write_reranker_files

    options, head = setup.options, model.get_layer("matching")
    if setup.backbone:
        speakers = model.get_layer("speaker_embedding") if options.speaker_embeddings else None
        write_cross_encoder(folder, setup.backbone, head, speakers)
    else:
        write_matcher(folder, model.get_layer(options.architecture))
        write_head(folder, head)
    write_reranker_files(setup, folder, _make_settings(options))


register_task(
    TaskSpec(
        ResponseSelectionOptions,
        "which response follows a context, read together (a re-ranker), with auxiliary tasks",
        build_model=_build_model,
        make_dataset=_make_dataset,
        compute_loss=compute_selection_loss,
        metrics=(),
        more_metrics=_list_metrics,
        similarities=("reranker",),
        make_evaluation=_make_evaluation,
        end_of_turn=True,
        write_encoder=_write_encoder,
        make_scorer=_make_scorer,
    )
)
