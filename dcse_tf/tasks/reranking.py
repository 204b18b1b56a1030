"""Response selection by a cross-encoder, with four auxiliary tasks (BERT-SL, Xu et al. 2020).

Without auxiliary tasks it is that paper's BERT; starting from a post-trained checkpoint, its
BERT-VFT; with speaker embeddings, SA-BERT (Gu et al. 2020). Post-training continues a BERT's
pre-training: masked language modelling and the classification of two segments, here of dialogue. It
writes a BERT with its pooler and its prediction head, from which response selection can start.
"""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Self

from dcse_tf.options import option
from dcse_tf.reading.reranker_files import RerankerSettings
from dcse_tf.tasks.spec import Scorer, Setup, Term, register_task
from dcse_tf.tasks.train_options import MaskingOptions, SequenceOptions, check_negatives

if TYPE_CHECKING:
    from dcse_tf.data.dialogue_step import DialogueSource
    from dcse_tf.data.manifest import Manifest
    from dcse_tf.reading.cross_encoder import Reader
    from dcse_tf.tasks.objective import Objective

# Self-supervised tasks besides matching (Xu et al. 2020, section 2.3).
_AUXILIARY = ("next_session", "restoration", "incoherence", "consistency")
_WITH_CHANCE = ("matching", "next_session", "incoherence", "consistency")
_OF_ANY_TASK = ("auxiliary_weight", "auxiliary_fade", "auxiliary_reads")
_OF_TASKS = {"next_session": "share_head", "consistency": "consistency"}
_NEEDS_OTHERS = "turns of other sessions come from the batch: expected >= 2"
_OF_LSTM = ("lstm_units", "lstm_embedding_size")
_OF_BERT = "speaker_embeddings", "freeze_layers", "freeze_embeddings", "lora_rank", "compute_dtype"


@register_task
class PostTrainingOptions(SequenceOptions, MaskingOptions):
    """Options with the defaults of BERT-VFT (Whang et al. 2020) where its released code has them.

    The learning rate of 3e-5, sequences of 448 + 64 tokens and the mask rate are BERT-VFT's. Its
    512 sequences a step fit few devices, so the default is 32, as in its fine-tuning. It predicts
    at most 70 tokens a sequence; 77 is the mask rate times 512 tokens. It makes 30 passes over its
    text, with masks drawn 10 times; since that is hard to compare with epochs in which a session
    gives one example, the number of epochs is BERT-FP's 25 (Han et al. 2021). The weights of the
    losses and the warm-up are this project's.
    """

    help = (
        "continued pre-training on dialogues for response_selection: masked tokens and two segments"
    )
    similarities = ()
    scores = ("masked_lm_accuracy", "pairs_accuracy", "pairs_chance")  # the last of two classes

    task: str = "post_training"
    epochs: float = 25.0
    global_batch_size: int = 32
    learning_rate: float = 3e-5
    # This accuracy keeps rising, while the segments' class is learnt soon. It is also less noisy: a
    # dev session has dozens of masked tokens, but only one pair of segments.
    best_metric: str = "dev/masked_lm_accuracy"
    max_predictions: int = 77

    pairs: str = option(
        "utterance",
        "Segments to classify. utterance: context and turn (BERT-VFT); pieces: sides of a dialogue "
        "(BERT); relevance: context and turn of three kinds (BERT-FP, with 3 `context_turns`).",
        choices=("utterance", "pieces", "relevance"),
    )

    @property
    def segment_tokens(self) -> tuple[int, int]:
        first, second = super().segment_tokens
        # Both pieces get half of the tokens, since either may be the longer one.
        half = (first + second) // 2
        return (first + second - half, half) if self.pairs == "pieces" else (first, second)

    def check(self) -> None:
        super().check()
        if self.global_batch_size < 2:
            self.refuse("global_batch_size", _NEEDS_OTHERS)

    def make_source(self, setup: Setup) -> "DialogueSource":
        source = super().make_source(setup)
        return dataclasses.replace(source, other_turns=self.pairs == "relevance")

    def list_terms(self, setup: Setup) -> list[Term]:
        from dcse_tf.tasks.terms.selection import MaskedLmOfPairs, SegmentPairs

        return [SegmentPairs(setup, 1.0), MaskedLmOfPairs(setup, 1.0)]

    def write_encoder(self, objective: "Objective", folder: pathlib.Path) -> None:
        from dcse_tf.reading.cross_encoder import write_cross_encoder

        pairs, words = map(objective.find_head, ("pairs", "masked_lm"))
        write_cross_encoder(folder, objective.setup.backbone, pairs, objective.reader.layer, words)
        # The class that finds all its weights here. It has no pooler and ignores the one written.
        objective.write_config(folder, architectures=["BertForMaskedLM"])
        objective.write_tokenization(folder)


@register_task
class ResponseSelectionOptions(SequenceOptions):
    """Options with the defaults of Xu et al. (section 3.3), except for values missing in its text.

    Their batch of 32 pairs is 16 sessions here, each with its true response and a negative.
    """

    help = "which response follows a context, read together (a re-ranker), with auxiliary tasks"
    similarities = ("reranker",)

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
        "Negatives are other sessions' responses or, given, the corpus' for a session's last turn.",
        choices=("batch", "given"),
    )
    auxiliary: tuple[str, ...] = option(
        _AUXILIARY,
        f"Tasks besides matching, with commas between: {', '.join(_AUXILIARY)}; or none.",
    )
    auxiliary_weight: float = option(1.0, "Weight of each auxiliary task's loss.", minimum=0.0)
    auxiliary_fade: float = option(
        1.0, "Share of the steps after which it falls, to 0 at the end.", minimum=0.0, maximum=1.0
    )
    auxiliary_reads: str = option(
        "context", "Whether these tasks see the response.", choices=("context", "dialogue")
    )
    share_head: bool = option(
        False, "Score next_session by the head of the matching, which it then teaches."
    )
    consistency: str = option(
        "margin",
        "How a speaker's turns are told from another dialogue's: by a margin of scores, or as two "
        "classes, of a speaker's turns (speaker) or of any two of the dialogue (any).",
        choices=("margin", "speaker", "any"),
    )

    @property
    def tasks(self) -> tuple[str, ...]:
        """The auxiliary tasks that are trained, in the paper's order."""
        return tuple(name for name in _AUXILIARY if name in self.auxiliary)

    @property
    def fixes_steps(self) -> bool:
        return super().fixes_steps or self.auxiliary_fade < 1.0

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
            self._refuse_given(why, "encoder", "encoder_size")

    def _refuse_given(self, why: str, *names: str) -> None:
        for name in names:
            if self.is_given(name):
                self.refuse(name, why)

    def check(self) -> None:
        super().check()
        others = _OF_LSTM if self.has_bert else _OF_BERT
        self._refuse_given(f"has no meaning with `architecture`={self.architecture}", *others)
        if not self.has_bert and self.layout == "packed":
            self.refuse("layout", f"`architecture`={self.architecture} reads padded sequences")
        why = "a re-ranker gives no embeddings of sentences"
        self._refuse_given(why, "dev_retrieval", "dev_sts")
        known = (*_AUXILIARY, "none")
        if wrong := [name for name in self.auxiliary if name not in known]:
            self.refuse("auxiliary", f"{wrong[0]!r}: expected {', '.join(known)}")
        if "none" in self.auxiliary and len(self.auxiliary) > 1:
            self.refuse("auxiliary", "none excludes other tasks")
        if not self.tasks:
            self._refuse_given("has no meaning without tasks in `auxiliary`", *_OF_ANY_TASK)
        for task, name in _OF_TASKS.items():
            if task not in self.tasks:
                self._refuse_given(f"has no meaning without {task} in `auxiliary`", name)
        if self.global_batch_size < 2 and {*self.tasks} - {"restoration"}:
            self.refuse("global_batch_size", _NEEDS_OTHERS)
        if self.negatives_from == "batch":
            check_negatives(self)

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
        # An LSTM has no positions.
        return super().resolve(manifest, positions if self.has_bert else 2**31 - 1)

    @property
    def scores(self) -> tuple[str, ...]:
        """Accuracies and, where they are known, those of the best rules that do not read."""
        tasks = ("matching", *self.tasks) if self.dev_samples else ()
        known = [f"{name}_chance" for name in _WITH_CHANCE if name in tasks]
        return (*(f"{name}_accuracy" for name in tasks), *known)

    def make_source(self, setup: Setup) -> "DialogueSource":
        return dataclasses.replace(
            super().make_source(setup),
            given=self.negatives if self.negatives_from == "given" else None,
            without_response=self.auxiliary_reads == "context",
            any_pair=self.consistency == "any",
        )

    def list_terms(self, setup: Setup) -> list[Term]:
        """The matching, and the auxiliary tasks that are trained."""
        from dcse_tf.tasks.terms import selection

        match = selection.Match(setup, 1.0)
        kinds = [kind for kind in selection.AUXILIARY if kind.name in self.tasks]
        terms = [kind(setup, self.auxiliary_weight) for kind in kinds]
        for term in terms:
            term.fade = self.auxiliary_fade
            if self.share_head and isinstance(term, selection.NextSession):
                term.teaches = match
        return [match, *terms]

    def make_reader(self, setup: Setup) -> "Reader":
        from dcse_tf.reading.cross_encoder import read_with_matcher
        from dcse_tf.reading.matchers import build_matcher

        if self.has_bert:
            return super().make_reader(setup)
        sizes, tokens = (self.lstm_embedding_size, self.lstm_units), len(setup.vocabulary.tokens)
        matcher = build_matcher(self.architecture, tokens, self.seed, *sizes, self.dropout)
        return read_with_matcher(matcher)

    @property
    def settings(self) -> RerankerSettings:
        """Those of the re-ranker's folder."""
        return RerankerSettings(self.architecture, *self.segment_tokens, self.speaker_embeddings)

    def make_scorer(self, objective: "Objective") -> Scorer:
        from dcse_tf.reading.cross_encoder import ReaderScorer

        return ReaderScorer(objective.reader, objective.find_head("matching")), self.settings

    def write_encoder(self, objective: "Objective", folder: pathlib.Path) -> None:
        from dcse_tf.files import write_json
        from dcse_tf.reading.cross_encoder import write_cross_encoder
        from dcse_tf.reading.matchers import write_matcher
        from dcse_tf.reading.reranker_files import write_reranker_settings

        head, layer = objective.find_head("matching"), objective.reader.layer
        vocabulary = objective.setup.vocabulary
        if self.has_bert:
            write_cross_encoder(folder, objective.setup.backbone, head, layer)
            objective.write_config(
                folder,
                architectures=["BertForSequenceClassification"],
                id2label={"0": "LABEL_0"},
                label2id={"LABEL_0": 0},
                num_labels=1,
            )
        else:
            write_matcher(folder, layer, head.weights)
            # Code that looks for a checkpoint reads config.json: this one says that it is no BERT.
            config = {"model_type": self.architecture, "vocab_size": len(vocabulary.tokens)}
            write_json(folder / "config.json", config, sort_keys=True)
        vocabulary.write(folder)
        write_reranker_settings(folder, self.settings)
