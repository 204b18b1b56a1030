"""Post-training: continues a BERT's pre-training on dialogues, before response selection.

As in BERT's pre-training, masked language modelling is combined with the classification of two
segments, here of dialogue. The run writes a BERT with its pooler and its prediction head, from
which `response_selection` can start.

Commands import this module for its options and must answer --help at once, so TensorFlow and
everything that needs it is imported inside the functions.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from dcse_tf.options import option
from dcse_tf.tasks.options import MaskingOptions
from dcse_tf.tasks.registry import register_task
from dcse_tf.tasks.sequence_options import SequenceOptions
from dcse_tf.tasks.spec import Scores, Setup, TaskSpec, Tensors

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from dcse_tf.data.post_training import PostTrainingForm

_SHORT_CONTEXT = 3


@dataclasses.dataclass(frozen=True)
class PostTrainingOptions(SequenceOptions, MaskingOptions):
    """Options with the defaults of BERT-VFT (Whang et al. 2020) where its released code has them.

    The learning rate of 3e-5, sequences of 448 + 64 tokens and the mask rate are BERT-VFT's. Its
    512 sequences a step fit few devices, so the default is 32, as in its fine-tuning. It predicts
    at most 70 tokens a sequence; 77 is the mask rate times 512 tokens. It makes 30 passes over its
    text, with masks drawn 10 times; since that is hard to compare with epochs in which a session
    gives one example, the number of epochs is BERT-FP's 25 (Han et al. 2021). The weights of the
    losses and the warm-up are this project's.
    """

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
        "What the two segments are, and how they are classified. utterance: a context, and "
        "its next turn or one from another session (BERT-VFT); pieces: the two sides of a "
        "dialogue that is split at random, where half of the time the right one is from "
        "another session (next-sentence prediction), each up to half of `max_context_tokens` "
        "+ `max_response_tokens`; relevance: a short context, of `context_turns`=3 unless "
        "given, and its next turn, another turn of the session, or one from another session, "
        "in three classes of equal probability (BERT-FP).",
        choices=("utterance", "pieces", "relevance"),
    )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Builds the options; with `pairs`=relevance, contexts have 3 turns unless given."""
        short = {"context_turns": _SHORT_CONTEXT} if values.get("pairs") == "relevance" else {}
        return super().from_dict({**short, **values})

    @property
    def segment_tokens(self) -> tuple[int, int]:
        first, second = super().segment_tokens
        # Both pieces get half of the tokens, since either may be the longer one.
        half = (first + second) // 2
        return (first + second - half, half) if self.pairs == "pieces" else (first, second)

    def check(self) -> None:
        super().check()
        if self.global_batch_size < 2:
            self.refuse(
                "global_batch_size", "turns of other sessions come from the batch: expected >= 2"
            )


def _make_form(setup: Setup[PostTrainingOptions]) -> "PostTrainingForm":
    from dcse_tf.bert.pair_rule import make_rule
    from dcse_tf.data.post_training import PostTrainingForm
    from dcse_tf.tasks.shared import make_masking_rule

    options = setup.options
    return PostTrainingForm(
        options.pairs,
        options.context_turns,
        options.speaker_embeddings,
        make_rule(setup.vocabulary, *options.segment_tokens, setup.vocabulary.count_prefix()),
        make_masking_rule(setup),
        options.same_role,
    )


def _build_model(setup: Setup[PostTrainingOptions]) -> "keras.Model":
    from dcse_tf.bert.masked_lm import build_head
    from dcse_tf.data.post_training import PAIRS
    from dcse_tf.reading.cross_encoder import build_pair_head
    from dcse_tf.reading.post_training import build_post_training_model
    from dcse_tf.tasks.shared import read_sequences, start_masked_lm_head

    options, reading = setup.options, read_sequences(setup)
    classes, seed = PAIRS[options.pairs], options.seed + 11
    pairs = build_pair_head("pairs", (reading.pair_dim,) * 2, classes, seed, setup.tensors)
    head = build_head(setup.backbone.token_embedding, setup.backbone)
    model = build_post_training_model(reading, pairs, head)
    start_masked_lm_head(setup, head)
    return model


def _make_dataset(
    setup: Setup[PostTrainingOptions], first_step: int, replicas: int
) -> "tf.data.Dataset":
    from dcse_tf.data.sequence_stream import make_post_training_dataset
    from dcse_tf.tasks.shared import make_stream

    stream = make_stream(setup, first_step, replicas)
    return make_post_training_dataset(setup.corpus, _make_form(setup), stream)


def compute_post_training_loss(
    model: "keras.Model", batch: Tensors, training: bool = True
) -> Tensors:
    """Sums over a batch: the total loss and each task's loss and accuracy."""
    from dcse_tf.tasks.shared import count_batch

    sums = model({name: batch[name] for name in model.input}, training=training)
    return {**sums, **count_batch(batch, sums["weight"], without_negatives=0.0)}


_ANSWERS = {"masked_lm": "ids", "pairs": "labels"}  # where a batch has each task's answers
_ACCURACIES = tuple(f"{task}_accuracy" for task in _ANSWERS)
# By these, the losses and accuracies are averaged.
_WEIGHTS = tuple(f"{task}_weight" for task in _ANSWERS)
_CHANCES = tuple(f"{task}_chance" for task in _ANSWERS)


def _make_evaluation(
    setup: Setup[PostTrainingOptions], model: "keras.Model"
) -> Callable[[], Scores]:
    """Makes the evaluation on dev sessions, on the same draws every time.

    It gives each task's accuracy and that of always giving its most frequent answer, in percent.
    """
    import tensorflow as tf

    from dcse_tf.data.sequence_stream import make_post_training_dataset
    from dcse_tf.tasks.shared import average_sums, take_dev_sessions

    form = _make_form(setup)
    dataset = take_dev_sessions(
        setup, lambda stream: make_post_training_dataset(setup.corpus, form, stream, "dev")
    )
    if dataset is None:
        return dict
    compute = tf.function(
        functools.partial(compute_post_training_loss, model, training=False), reduce_retracing=True
    )
    find_chances = functools.cache(lambda: _find_chances(dataset))  # the same every time

    def evaluate() -> Scores:
        return {**average_sums(dataset, compute, _ACCURACIES, 100.0), **find_chances()}

    return evaluate


def _find_chances(dataset: "tf.data.Dataset") -> Scores:
    """The share of each task's most frequent answer in percent, weighted like its accuracy."""
    import numpy as np

    batches = list(dataset.as_numpy_iterator())
    chances = {}
    for task, answer in _ANSWERS.items():
        answers, weights = (
            np.concatenate([batch[f"{task}_{target}"] for batch in batches])
            for target in (answer, "weights")
        )
        shares = np.bincount(answers, weights)
        chances[f"{task}_chance"] = 100.0 * float(shares.max() / max(shares.sum(), 1e-9))
    return chances


def _write_encoder(
    setup: Setup[PostTrainingOptions], model: "keras.Model", folder: pathlib.Path
) -> None:
    from dcse_tf.reading.post_training import write_post_trained
    from dcse_tf.tasks.shared import write_bert_files

    speakers = setup.options.speaker_embeddings
    write_post_trained(
        folder,
        setup.backbone,
        model.get_layer("pairs"),
        model.get_layer("masked_lm_head"),
        model.get_layer("speaker_embedding") if speakers else None,
    )
    # The class that finds all its weights here. It has no pooler and ignores the one written.
    write_bert_files(setup, folder, "BertForMaskedLM")


register_task(
    TaskSpec(
        PostTrainingOptions,
        "continued pre-training on dialogues for response_selection: masked tokens and two "
        "segments",
        build_model=_build_model,
        make_dataset=_make_dataset,
        compute_loss=compute_post_training_loss,
        metrics=("pairs_loss", "masked_lm_loss", *_ACCURACIES, *_WEIGHTS),
        similarities=(),
        make_evaluation=_make_evaluation,
        scores=(*_ACCURACIES, *_CHANCES),
        end_of_turn=True,
        write_encoder=_write_encoder,
    )
)
