"""Response selection by a cross-encoder, with four auxiliary tasks (BERT-SL, Xu et al. 2020).

Without auxiliary tasks it is the paper's BERT, from a post-trained checkpoint its BERT-VFT, and
with speaker embeddings SA-BERT (Gu et al. 2020).

Command lines read the options to answer --help at once, so TensorFlow, and all that needs it, is
imported inside the functions.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from dcse_tf.data.dialogue import Context
from dcse_tf.options import option, redefault
from dcse_tf.tasks.options import BatchOptions, ContextOptions, TrainOptions
from dcse_tf.tasks.registry import register_task
from dcse_tf.tasks.spec import Scores, Setup, TaskSpec, Tensors

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from dcse_tf.data.manifest import Manifest
    from dcse_tf.data.selection import SelectionForm
    from dcse_tf.evaluation.response_selection import Score
    from dcse_tf.model.cross_encoder import Reading

_NO_TASK = "none"
_AUXILIARY = ("next_session", "restoration", "incoherence", "consistency")
_MOST_CONTEXT_TOKENS = 448


@dataclasses.dataclass(frozen=True)
class ResponseSelectionOptions(TrainOptions):
    """The paper's figures (section 3.3), but for those that its text has lost.

    Its batch is 32 pairs: here 16 sessions, each with a true response and another one.
    """

    task: str = redefault(TrainOptions, "task", "response_selection")
    epochs: float = redefault(TrainOptions, "epochs", 10.0)
    global_batch_size: int = redefault(TrainOptions, "global_batch_size", 16)
    learning_rate: float = redefault(TrainOptions, "learning_rate", 3e-5)
    best_metric: str = redefault(TrainOptions, "best_metric", "dev/reranker_r1")
    context_turns: int = redefault(ContextOptions, "context_turns", 20)
    negatives: int = redefault(BatchOptions, "negatives", 1)

    negatives_from: str = option(
        "batch",
        "Where negatives are from. batch: responses of the other sessions of the batch; given: up "
        "to `negatives` of those that the corpus gives for a response, drawn anew at every visit. "
        "It must be prepared from a format with candidates, and the response of a session is then "
        "its last turn, not a drawn one.",
        choices=("batch", "given"),
    )
    max_context_tokens: int = option(
        0,
        "Most tokens of a context with [CLS] and [SEP]; it is cut in front. 0: 448, or what the "
        "response leaves of the encoder's positions.",
        minimum=8,
        or_zero=True,
    )
    max_response_tokens: int = option(
        64, "Most tokens of a response with [SEP]; it is cut at its end.", minimum=4
    )
    auxiliary: tuple[str, ...] = option(
        _AUXILIARY,
        "Tasks that are trained together with the matching, comma-separated: next_session (are two "
        "pieces of dialogue consecutive), restoration (of a turn whose tokens are all hidden), "
        "incoherence (which turn is another session's), consistency (of two turns of one speaker). "
        "none: the matching alone.",
    )
    auxiliary_weight: float = option(1.0, "Weight of each auxiliary task's loss.", minimum=0.0)
    consistency_margin: float = option(
        0.6,
        "By how much the consistency of two turns of one speaker, from 0 to 1, must exceed that of "
        "two sessions.",
        minimum=0.0,
        maximum=1.0,
    )
    speaker_embeddings: bool = option(
        False, "Mark every token by whether it is the responder's (SA-BERT)."
    )

    @property
    def context(self) -> Context:
        """Responses are chosen by what was said before them."""
        return Context(self.context_turns, "before")

    @property
    def tasks(self) -> tuple[str, ...]:
        """The auxiliary tasks in their order."""
        return tuple(name for name in _AUXILIARY if name in self.auxiliary)

    def check(self) -> None:
        super().check()
        known = (*_AUXILIARY, _NO_TASK)
        if wrong := [name for name in self.auxiliary if name not in known]:
            self.refuse("auxiliary", f"{wrong[0]!r}: expected {', '.join(known)}")
        if _NO_TASK in self.auxiliary and len(self.auxiliary) > 1:
            self.refuse("auxiliary", f"{_NO_TASK} stands alone")
        if self.layout == "bucketed":
            self.refuse("layout", "sequences of dialogues are packed or padded")
        if self.jit_compile:
            self.refuse("jit_compile", "its shapes change at every step; not compiled")
        most = self.global_batch_size - 1
        if self.negatives_from == "batch" and max(1, self.negatives) > most:
            self.refuse(
                "negatives",
                f"they come from the other sessions of the batch, so at most `global_batch_size` - "
                f"1 = {most}",
            )

    def dev_scores(self) -> list[str]:
        names = [f"dev/{name}" for name in _list_accuracies(self)] if self.dev_samples else []
        return [*super().dev_scores(), *names]

    def longest_sequence(self, longest_utterance: int) -> int:
        """The tokens of the longest context and response."""
        # A turn has [EOT] in the place of its [CLS] and [SEP].
        dialogue = 2 + (self.context_turns + 1) * (longest_utterance - 1)
        context = self.max_context_tokens or _MOST_CONTEXT_TOKENS
        return min(context, dialogue) + min(self.max_response_tokens, dialogue)

    def resolve(self, manifest: "Manifest", positions: int = 512) -> Self:
        if self.negatives_from == "given" and not manifest.splits["train"].given:
            self.refuse(
                "negatives_from",
                f"{self.data_dir} gives no candidates; expected a corpus that prepare_data made of "
                "a `format` with candidates",
            )
        left = positions - self.max_response_tokens
        if left < 8:
            self.refuse("max_response_tokens", f"the encoder has only {positions} positions")
        tokens = self.max_context_tokens or min(_MOST_CONTEXT_TOKENS, left)
        worked_out = self.replace(max_context_tokens=tokens)
        return super(ResponseSelectionOptions, worked_out).resolve(manifest, positions)


def _list_accuracies(options: ResponseSelectionOptions) -> tuple[str, ...]:
    chance = ("incoherence_chance",) if "incoherence" in options.tasks else ()
    return (*(f"{name}_accuracy" for name in ("matching", *options.tasks)), *chance)


def _make_form(setup: Setup[ResponseSelectionOptions]) -> "SelectionForm":
    from dcse_tf.data.selection import SelectionForm
    from dcse_tf.model.pairs import make_rule

    options = setup.options
    return SelectionForm(
        options.context_turns,
        options.negatives,
        options.tasks,
        options.speaker_embeddings,
        make_rule(setup.vocabulary, options.max_context_tokens, options.max_response_tokens),
        setup.vocabulary.index("[MASK]"),
        options.negatives_from == "given",
    )


def _read(setup: Setup[ResponseSelectionOptions]) -> "Reading":
    from dcse_tf.model.cross_encoder import build_speaker_embedding, read_with_bert
    from dcse_tf.tasks.shared import make_layout

    options, speakers = setup.options, None
    if options.speaker_embeddings:
        seed = options.seed + 10
        speakers = build_speaker_embedding(setup.backbone.hidden_dim, seed, setup.tensors)
    return read_with_bert(setup.backbone, make_layout(options), speakers)


def _build_model(setup: Setup[ResponseSelectionOptions]) -> "keras.Model":
    from dcse_tf.model import masked_lm
    from dcse_tf.model.bert import epsilon_of, initialize_weights
    from dcse_tf.model.cross_encoder import build_heads, build_selection_model
    from dcse_tf.model.losses import JointLoss

    options, reading = setup.options, _read(setup)
    tasks, turns = ("matching", *options.tasks), options.context_turns + 1
    dims = reading.dim, reading.pair_dim
    heads = build_heads(tasks, dims, turns, options.seed + 11, setup.tensors)
    restoration = None
    if "restoration" in tasks:
        embedding = setup.backbone.token_embedding
        restoration = masked_lm.build_head(embedding, epsilon_of(setup.backbone))
    loss = JointLoss(options.auxiliary_weight, options.consistency_margin, name="joint_loss")
    model = build_selection_model(reading, heads, restoration, loss)
    if restoration is not None:
        source = options.encoder or options.encoder_size
        if not masked_lm.load_head(restoration, setup.tensors, source):
            initialize_weights(masked_lm.own_variables(restoration), options.seed + 1)
    return model


def _make_dataset(
    setup: Setup[ResponseSelectionOptions], first_step: int, replicas: int
) -> "tf.data.Dataset":
    from dcse_tf.data.stream import make_selection_dataset
    from dcse_tf.tasks.shared import make_stream

    stream = make_stream(setup, first_step, replicas)
    return make_selection_dataset(setup.corpus, _make_form(setup), stream)


def compute_selection_loss(model: "keras.Model", batch: Tensors, training: bool = True) -> Tensors:
    """Sums over a batch: the joint loss, each task's own, and how often it is right."""
    import tensorflow as tf

    from dcse_tf.tasks.shared import count_batch

    sums = model({name: batch[name] for name in model.input}, training=training)
    # A sample is a session; every one has a true response.
    samples = tf.reduce_sum(batch["matching_labels"])
    return {"accuracy": sums["matching_accuracy"], **sums, **count_batch(batch, samples, 0.0)}


def _make_evaluation(
    setup: Setup[ResponseSelectionOptions], model: "keras.Model"
) -> Callable[[], Scores]:
    """How often each task is right on dev sessions, by the same draws every time, in percent."""
    import tensorflow as tf

    from dcse_tf.data.stream import Stream, make_selection_dataset
    from dcse_tf.tasks.shared import make_layout

    options = setup.options
    sessions = min(options.dev_samples, setup.manifest.splits["dev"].sessions)
    if sessions < 2:
        return dict
    batch_size = min(options.global_batch_size, sessions)
    stream = Stream(batch_size, options.seed, layout=make_layout(options))
    dataset = make_selection_dataset(setup.corpus, _make_form(setup), stream, "dev")
    dataset = dataset.take(sessions // batch_size)
    compute = tf.function(
        functools.partial(compute_selection_loss, model, training=False), reduce_retracing=True
    )
    names = _list_accuracies(options)

    def evaluate() -> Scores:
        totals = dict.fromkeys((*names, "weight"), 0.0)
        for batch in dataset:
            sums = compute(batch)
            totals = {name: total + float(sums[name]) for name, total in totals.items()}
        weight = totals.pop("weight")
        return {name: 100.0 * total / max(weight, 1.0) for name, total in totals.items()}

    return evaluate


_BATCH_TOKENS = 4096


def _make_score(setup: Setup[ResponseSelectionOptions], model: "keras.Model") -> "Score":
    import numpy as np
    import tensorflow as tf

    from dcse_tf.model.cross_encoder import build_scorer, read_with_bert
    from dcse_tf.model.layout import Layout
    from dcse_tf.model.pairs import end_turns, join_pairs, strip_ends
    from dcse_tf.model.tokenizer import Tokenizer

    speakers = model.get_layer("speaker_embedding") if setup.options.speaker_embeddings else None
    scorer = build_scorer(
        read_with_bert(setup.backbone, Layout("padded"), speakers), model.get_layer("matching")
    )
    tokenizer, rule = Tokenizer(setup.vocabulary), _make_form(setup).rule
    longest = setup.manifest.max_sequence_length

    @tf.function(reduce_retracing=True)
    def score_rows(contexts: tf.RaggedTensor, responses: tf.RaggedTensor) -> tf.Tensor:
        turns = strip_ends(tokenizer.tokenize(contexts.values, longest))
        first = end_turns(contexts.with_values(turns), rule.end_of_turn_id)
        second = strip_ends(tokenizer.tokenize(responses, longest))
        token_ids, segment_ids = join_pairs(first, second, rule)
        ids = token_ids.to_tensor()
        rows, tokens = tf.unstack(tf.shape(ids))
        inputs = {
            "token_ids": ids,
            "padding_mask": ids != 0,
            "segment_ids": segment_ids.to_tensor(),
            "matching_places": tf.range(rows) * tokens,
        }
        return scorer({name: inputs[name] for name in scorer.input})

    def score(contexts: list[list[str]], candidates: list[list[str]]) -> np.ndarray:
        found = []
        for context, group in zip(contexts, candidates, strict=True):
            rows = tf.ragged.constant([context] * len(group), tf.string, ragged_rank=1)
            found.append(score_rows(rows, tf.constant(group)).numpy())
        return np.stack(found)

    return score


def _write_encoder(
    setup: Setup[ResponseSelectionOptions], model: "keras.Model", folder: pathlib.Path
) -> None:
    from dcse_tf.model.cross_encoder import write_cross_encoder
    from dcse_tf.model.reranker_files import RerankerSettings
    from dcse_tf.tasks.shared import write_reranker_files

    options = setup.options
    speakers = options.speaker_embeddings
    embedding = model.get_layer("speaker_embedding") if speakers else None
    write_cross_encoder(folder, setup.backbone, model.get_layer("matching"), embedding)
    lengths = options.max_context_tokens, options.max_response_tokens
    write_reranker_files(setup, folder, RerankerSettings("bert", *lengths, speakers))


register_task(
    TaskSpec(
        ResponseSelectionOptions,
        "which response follows a context, read together (a re-ranker), with auxiliary tasks",
        build_model=_build_model,
        make_dataset=_make_dataset,
        compute_loss=compute_selection_loss,
        metrics=("accuracy",),
        more_metrics=_list_accuracies,
        similarities=("reranker",),
        make_evaluation=_make_evaluation,
        end_of_turn=True,
        write_encoder=_write_encoder,
        make_score=_make_score,
    )
)
