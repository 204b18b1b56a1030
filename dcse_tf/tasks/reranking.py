"""Response selection by a cross-encoder, with four auxiliary tasks (BERT-SL, Xu et al. 2020).

Without auxiliary tasks it is that paper's BERT; starting from a post-trained checkpoint, its
BERT-VFT; with speaker embeddings, SA-BERT (Gu et al. 2020).
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from absl import logging

from dcse_tf.data.dialogue import AUXILIARY_TASKS
from dcse_tf.options import option
from dcse_tf.reading.reranker_files import RerankerSettings
from dcse_tf.tasks.spec import Scorer, Setup, TaskSpec, Term, register_task
from dcse_tf.tasks.train_options import SequenceOptions, check_negatives

if TYPE_CHECKING:
    from dcse_tf.data.dialogue_step import DialogueSource
    from dcse_tf.data.manifest import Manifest
    from dcse_tf.reading.cross_encoder import Reader
    from dcse_tf.tasks.objective import Objective

_NO_TASK = "none"
_WITH_CHANCE = ("matching", "next_session", "incoherence", "consistency")
_UNLIMITED = 2**31 - 1  # an LSTM has no positions
_OF_BERT = (
    *("speaker_embeddings", "freeze_layers", "freeze_embeddings", "lora_rank", "compute_dtype"),
)


class ResponseSelectionOptions(SequenceOptions):
    """Options with the defaults of Xu et al. (section 3.3), except for values missing in its text.

    Their batch of 32 pairs is 16 sessions here, each with its true response and a negative.
    """

    task: str = "response_selection"
    epochs: float = 10.0
    global_batch_size: int = 16
    learning_rate: float = 3e-5
    best_metric: str = "dev/reranker_r1"

    negatives: int = option(1, "Negatives for each response. all: 0.", minimum=0, words={"all": 0})
    architecture: str = option(
        "bert",
        "What reads context and response; LSTMs start from random weights.",
        choices=("bert", "dual_lstm", "esim"),
    )
    lstm_units: int = option(300, "dual_lstm and esim: width of each LSTM.", minimum=1)
    lstm_embedding_size: int = option(
        300, "dual_lstm and esim: width of the token embeddings.", minimum=1
    )
    negatives_from: str = option(
        "batch",
        "batch: negatives are responses of other sessions; given: candidates of the corpus, which "
        "was prepared from a format that has them, for the last turn of a session.",
        choices=("batch", "given"),
    )
    auxiliary: tuple[str, ...] = option(
        AUXILIARY_TASKS,
        "Tasks besides matching, with commas between: next_session, restoration (of a turn), "
        "incoherence (which turn is another session's?), consistency (of speakers); or none.",
    )
    auxiliary_weight: float = option(1.0, "Weight of each auxiliary task's loss.", minimum=0.0)
    consistency_margin: float = option(
        0.6, "By how much consistent turns must score higher.", minimum=0.0, maximum=1.0
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
        others = ("lstm_units", "lstm_embedding_size") if self.has_bert else _OF_BERT
        self._refuse_given(others, f"has no meaning with `architecture`={self.architecture}")
        if not self.has_bert and self.layout == "packed":
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
        if self.global_batch_size < 2 and {*self.tasks} - {"restoration"}:
            why = "turns of other sessions come from the batch: expected >= 2"
            self.refuse("global_batch_size", why)
        if self.negatives_from == "batch":
            check_negatives(self, self.negatives)

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
            why = f"{self.data_dir} was prepared from a `format` without candidates"
            self.refuse("negatives_from", why)
        return super().resolve(manifest, positions if self.has_bert else _UNLIMITED)


def _list_scores(options: ResponseSelectionOptions) -> tuple[str, ...]:
    """Accuracies and, where they are known, those of the best rules that do not read."""
    tasks = ("matching", *options.tasks) if options.dev_samples else ()
    known = [f"{name}_chance" for name in _WITH_CHANCE if name in tasks]
    return (*(f"{name}_accuracy" for name in tasks), *known)


def _list_terms(setup: Setup[ResponseSelectionOptions]) -> list[Term]:
    """The matching, and the auxiliary tasks that are trained."""
    from dcse_tf.tasks.terms import selection

    options = setup.options
    trained = [term for term in selection.AUXILIARY if term.name in options.tasks]
    weight = options.auxiliary_weight
    return [selection.Match(setup, 1.0), *(term(setup, weight) for term in trained)]


def make_dialogue_source(setup: Setup[Any]) -> "DialogueSource":
    """Dialogues up to a response, for tasks with `SequenceOptions`."""
    from dcse_tf.bert.token_rows import make_rule
    from dcse_tf.data.dialogue_step import DialogueSource

    options, prefix = setup.options, setup.vocabulary.count_prefix()
    first, second = options.segment_tokens
    rule = make_rule(setup.vocabulary, first, second, prefix)
    speakers, same_role = options.speaker_embeddings, options.same_role
    return DialogueSource(options.context_turns, rule, speakers, same_role)


def _make_source(setup: Setup[ResponseSelectionOptions]) -> "DialogueSource":
    given = setup.options.negatives if setup.options.negatives_from == "given" else None
    return dataclasses.replace(make_dialogue_source(setup), given=given)


def read_sequences(setup: Setup[Any]) -> "Reader":
    """BERT as the reader of sequences, with speaker embeddings if the options ask for them."""
    from dcse_tf.bert.weights import SPEAKER_TABLE
    from dcse_tf.reading.cross_encoder import build_speaker_embedding, read_with_bert

    options, speakers = setup.options, None
    if options.speaker_embeddings:
        seed = options.seed + 10
        speakers = build_speaker_embedding(setup.backbone.hidden_dim, seed, setup.tensors)
    elif SPEAKER_TABLE in setup.tensors:
        logging.warning(
            "the encoder has speaker embeddings, which are left out; "
            "`speaker_embeddings` keeps them"
        )
    return read_with_bert(setup.backbone, speakers)


def _make_reader(setup: Setup[ResponseSelectionOptions]) -> "Reader":
    from dcse_tf.reading.cross_encoder import read_with_matcher
    from dcse_tf.reading.matchers import build_matcher

    options = setup.options
    if setup.backbone:
        return read_sequences(setup)
    sizes = options.lstm_embedding_size, options.lstm_units
    tokens = len(setup.vocabulary.tokens)
    return read_with_matcher(
        build_matcher(options.architecture, tokens, options.seed, *sizes, options.dropout)
    )


def _make_settings(options: ResponseSelectionOptions) -> RerankerSettings:
    architecture, speakers = options.architecture, options.speaker_embeddings
    return RerankerSettings(architecture, *options.segment_tokens, speakers)


def _make_scorer(setup: Setup[ResponseSelectionOptions], objective: "Objective") -> Scorer:
    from dcse_tf.reading.cross_encoder import ReaderScorer

    head = objective.find_term("matching").head
    return ReaderScorer(objective.reader, head), _make_settings(setup.options)


def _write_encoder(
    setup: Setup[ResponseSelectionOptions], objective: "Objective", folder: pathlib.Path
) -> None:
    from dcse_tf.files import write_json
    from dcse_tf.reading.cross_encoder import write_cross_encoder
    from dcse_tf.reading.matchers import write_matcher
    from dcse_tf.reading.reranker_files import write_reranker_settings
    from dcse_tf.tasks.objective import write_config

    head, layer = objective.find_term("matching").head, objective.reader.layer
    settings = _make_settings(setup.options)
    if setup.backbone:
        write_cross_encoder(folder, setup.backbone, head, layer)
        write_config(
            setup,
            folder,
            architectures=["BertForSequenceClassification"],
            id2label={"0": "LABEL_0"},
            label2id={"LABEL_0": 0},
            num_labels=1,
        )
    else:
        write_matcher(folder, layer, head.weights)
        # Code that looks for a checkpoint reads config.json: this one says that it is no BERT.
        config = {"model_type": settings.architecture, "vocab_size": len(setup.vocabulary.tokens)}
        write_json(folder / "config.json", config, sort_keys=True)
    setup.vocabulary.write(folder)
    write_reranker_settings(folder, settings)


register_task(
    TaskSpec(
        ResponseSelectionOptions,
        "which response follows a context, read together (a re-ranker), with auxiliary tasks",
        make_source=_make_source,
        list_terms=_list_terms,
        similarities=("reranker",),
        make_reader=_make_reader,
        scores=_list_scores,
        end_of_turn=True,
        write_encoder=_write_encoder,
        make_scorer=_make_scorer,
    )
)
