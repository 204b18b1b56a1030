"""Examples and batches of post-training: classifying how two segments are related, and masked
language modelling.

Examples are drawn like those of response selection, see `dcse_tf.data.dialogue_tasks`. The class is
0 if the second segment is from another session, and the highest class if it follows the first.
"""

import dataclasses

import tensorflow as tf

from dcse_tf.bert.layout import Layout, Tensors, lay_out
from dcse_tf.bert.pair_rule import PairRule
from dcse_tf.bert.pairs import find_rows, put_apart, strip_ends
from dcse_tf.data.batch import prefer
from dcse_tf.data.dialogue_tasks import Dialogues, Rows, draw_dialogue, make_next_session_rows
from dcse_tf.data.masking import MaskingRule, list_predictions, mask_tokens
from dcse_tf.data.selection import build_sequences, find_cells

# The kinds of pairs of segments, with the number of classes of each.
PAIRS = {"utterance": 2, "pieces": 2, "relevance": 3}
_RANDOM, _SAME_SESSION, _NEXT = range(3)  # classes of relevance


@dataclasses.dataclass(frozen=True)
class PostTrainingForm:
    """How sessions are turned into examples.

    Attributes:
        pairs: the kind of pairs, one of `PAIRS`.
        context_turns: maximum number of turns before the response.
        speakers: whether tokens are marked with their speaker.
        rule: special ids and maximum lengths of the sequences.
        masking: how tokens are masked.
        same_role: whether a segment that is not the next turn is of its role where possible.
    """

    pairs: str
    context_turns: int
    speakers: bool
    rule: PairRule
    masking: MaskingRule
    same_role: bool = True

    @property
    def classes(self) -> int:
        return PAIRS[self.pairs]


def draw_example(session: dict, seed: tf.Tensor, form: PostTrainingForm) -> dict:
    """Draws a response from a session, and the class of its example.

    Args:
        session: the features of a record with at least two turns.
        seed: int64 `[2]`; it alone determines the draws.
        form: how the session is turned into an example.

    Returns:
        The output of `draw_dialogue`, but with `right` always True. For relevance also
        relevance: int32, the class, drawn uniformly;
        other_tokens: int32 `[0 or 1, (tokens)]`, a turn drawn from the whole session among those
            whose text differs from the response's, of its role if there is any, as the form says;
        other_utterance: int64 `[0 or 1]`, its fingerprint.
    """
    skipped = form.rule.prefix_tokens
    drawn = draw_dialogue(session, seed, form.context_turns, prefix_tokens=skipped)
    drawn["right"] = tf.constant(True)
    if form.pairs != "relevance":
        return drawn
    # draw_dialogue splits the same seed; folding in a number keeps these draws independent of its.
    seeds = tf.unstack(tf.random.split(tf.random.fold_in(seed, 1), 2))
    differs = session["utterances"] != drawn["utterances"][-1]
    if form.same_role:
        differs = prefer(differs[None, :], session["roles"] == drawn["roles"][-1])[0]
    others = tf.where(differs)[:, 0]
    count = tf.maximum(tf.size(others), 1)
    place = tf.random.stateless_uniform([], seeds[0], 0, count, tf.int32)
    chosen = others[place : place + 1]
    return {
        **drawn,
        "relevance": tf.random.stateless_uniform([], seeds[1], 0, form.classes, tf.int32),
        "other_tokens": strip_ends(tf.gather(session["token_ids"], chosen), skipped),
        "other_utterance": tf.gather(session["utterances"], chosen),
    }


def make_pair_rows(
    samples: dict, form: PostTrainingForm, seed: tf.Tensor
) -> tuple[Dialogues, Rows]:
    """Makes the two segments of every example, one row per dialogue.

    Args:
        samples: batched outputs of `draw_example`.
        form: how they are turned into examples.
        seed: int `[2]`, the seed of the step.

    Returns:
        The dialogues; and the rows, whose targets are labels int32 `[batch]`, the class, and
        weights float32 `[batch]`, 0 if the text from another session is also in this dialogue or,
        of pieces, as `make_next_session_rows` says. If there is no other session or turn to draw
        from, the second segment is the true one, and so is the class.
    """
    dialogues, pairs = Dialogues.of(samples, form.same_role), form.pairs
    if pairs == "pieces":
        rows = make_next_session_rows(dialogues, seed)
        labels = tf.cast(rows.targets["labels"], tf.int32)
        return dialogues, dataclasses.replace(rows, targets={**rows.targets, "labels": labels})

    highest = PAIRS[pairs] - 1
    wanted = tf.where(samples["replaced"], _RANDOM, highest)
    true = other = dialogues.ends - 1
    drawn = dialogues.draw_strangers(true, seed)
    stranger = tf.maximum(drawn, 0)
    if pairs == "relevance":
        dialogues, other = _add_others(dialogues)
        wanted = tf.where((samples["relevance"] == _SAME_SESSION) & (other < 0), _NEXT,
                          samples["relevance"])  # fmt: skip
    labels = tf.where((wanted == _RANDOM) & (drawn < 0), highest, wanted)
    second = tf.where(labels == highest, true, tf.where(labels == _RANDOM, stranger, other))
    # "ok" from another session is no negative for a dialogue that contains "ok" itself.
    known = _says(dialogues, tf.gather(dialogues.utterances, stranger))
    targets = {
        "labels": labels,
        "weights": tf.cast((labels != _RANDOM) | ~known, tf.float32),
    }
    contexts = tf.ragged.range(dialogues.starts, true)
    return dialogues, Rows(contexts, put_apart(second), False, targets)


def _add_others(dialogues: Dialogues) -> tuple[Dialogues, tf.Tensor]:
    """Appends the other turns to the list; returns their indices, int32 `[batch]`, -1 for none."""
    tokens, texts = (dialogues.samples[f"other_{name}"] for name in ("tokens", "utterance"))
    begin = tf.shape(dialogues.utterances)[0]
    places = begin + tf.cast(texts.row_starts(), tf.int32)
    added = dataclasses.replace(
        dialogues,
        token_ids=tf.concat([dialogues.token_ids, tokens.values], axis=0),
        utterances=tf.concat([dialogues.utterances, texts.values], axis=0),
        # A candidate counts as the responder's, see `build_sequences`.
        speakers=tf.concat([dialogues.speakers, tf.zeros_like(texts.values, tf.int32)], axis=0),
    )
    return added, tf.where(texts.row_lengths() > 0, places, -1)


def _says(dialogues: Dialogues, texts: tf.Tensor) -> tf.Tensor:
    """Whether each dialogue contains its text, given as fingerprints int64 `[batch]`: bool
    `[batch]`.
    """
    turns = dialogues.samples["utterances"]
    owners = find_rows(turns)
    same = tf.cast(turns.values == tf.gather(texts, owners), tf.int32)
    return tf.math.unsorted_segment_sum(same, owners, dialogues.count) > 0


def make_post_training_batches(
    samples: dict, form: PostTrainingForm, seed: tf.Tensor, replicas: int, layout: Layout
) -> list[Tensors]:
    """Makes the batches of one step, one for each replica.

    Turns of other sessions and masks are drawn from the global batch before it is divided, and
    weights are computed over the global batch, so that the loss does not depend on the number of
    devices.

    Args:
        samples: batched outputs of `draw_example`.
        form: how they are turned into examples.
        seed: int `[2]`, the seed of the step.
        replicas: number of batches of consecutive dialogues; must divide the number of dialogues.
        layout: padded or packed.

    Returns:
        For every replica a dict of
            the table, see `lay_out`, with tokens masked, with segment_ids and, if the form has
            speakers, speaker_ids;
            pairs_places, pairs_labels int32 and pairs_weights float32 `[rows]`;
            masked_lm_places, masked_lm_ids int32 and masked_lm_weights float32 `[predictions]`.
        Places are indices into the flat list of the encoder's tokens; the place of a row is that of
        its [CLS]. Over all replicas, the weights of each task add up to the number of rows.
    """
    seeds = tf.unstack(tf.random.split(seed, 2))
    dialogues, rows = make_pair_rows(samples, form, seeds[0])
    built = build_sequences(dialogues, [(rows, form.rule)])
    token_ids, segment_ids, speaker_ids, _ = tf.unstack(built.columns, axis=2)
    hidden = mask_tokens(token_ids, form.masking, seeds[1])
    count = tf.cast(dialogues.count, tf.float32)

    def share(weights: tf.Tensor) -> tf.Tensor:
        return tf.math.divide_no_nan(weights * count, tf.reduce_sum(weights))

    table = {"token_ids": hidden.pop("token_ids"), "segment_ids": segment_ids}
    if form.speakers:
        table["speaker_ids"] = speaker_ids
    targets = {"labels": rows.targets["labels"], "weights": share(rows.targets["weights"])}
    # Weight 0 means no prediction; all other weights become equal shares of the sum.
    hidden["mask_weights"] = share(hidden["mask_weights"])
    columns = {**table, **{f"pairs_{name}": value for name, value in targets.items()}, **hidden}
    parts = {name: tf.split(value, replicas) for name, value in columns.items()}
    return [
        _make_batch({name: own[i] for name, own in parts.items()}, layout) for i in range(replicas)
    ]


def _make_batch(own: Tensors, layout: Layout) -> Tensors:
    """Makes the batch of one replica, with all rows in one table."""
    marks = {name: value for name, value in own.items() if name in ("segment_ids", "speaker_ids")}
    table = lay_out(own["token_ids"], layout, marks)
    cells = find_cells(table)
    table.pop("places", None)
    found = list_predictions(own)
    return {
        **table,
        "pairs_places": cells[:, 0],
        "pairs_labels": own["pairs_labels"],
        "pairs_weights": own["pairs_weights"],
        "masked_lm_places": tf.gather(tf.reshape(cells, [-1]), found["mask_positions"]),
        "masked_lm_ids": found["mask_ids"],
        "masked_lm_weights": found["mask_weights"],
    }
