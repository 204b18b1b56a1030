"""Batches of response selection and its auxiliary tasks.

All examples are sequences of turns, [CLS] first [SEP] second [SEP]. A batch is therefore one table
of sequences, the rows of one task after those of another, and the encoder runs once.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from dcse_tf.bert.layout import Layout, Tensors, lay_out
from dcse_tf.bert.pair_rule import PairRule
from dcse_tf.bert.pairs import (
    end_turns,
    find_rows,
    join_turns,
    place_segments,
    put_in_rows,
)
from dcse_tf.data.dialogue_tasks import (
    Dialogues,
    Rows,
    make_consistency_rows,
    make_incoherence_rows,
    make_matching_rows,
    make_next_session_rows,
    make_restoration_rows,
)


@dataclasses.dataclass(frozen=True)
class SelectionForm:
    """How sessions are turned into examples.

    Attributes:
        context_turns: maximum number of turns before the response.
        negatives: number of negatives per true response.
        auxiliary: the tasks to train besides matching, from `AUXILIARY_TASKS`.
        speakers: whether tokens are marked with their speaker.
        rule: special ids and maximum lengths of the sequences.
        mask_id: id of [MASK].
        given: whether the negatives come from the corpus instead of from other sessions' responses.
        same_role: whether what comes from other sessions is of the same role where possible.
    """

    context_turns: int
    negatives: int
    auxiliary: tuple[str, ...]
    speakers: bool
    rule: PairRule
    mask_id: int
    given: bool = False
    same_role: bool = True

    @property
    def turns(self) -> int:
        """Maximum number of turns of a dialogue, including its response."""
        return self.context_turns + 1


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Sequences with the attributes of each token; all int32.

    Attributes:
        columns: `[rows, tokens, 4]`, for each token
            its id;
            its segment, see `Places.segment_ids`;
            its speaker: 0 for the responder's turns, the response and [CLS], 1 for other speakers,
                and 0 everywhere in the rows of a task that tells no speakers;
            the index of its turn in the first segment; -1 for tokens outside those turns.
        lengths: `[rows]`, number of tokens of each sequence.
    """

    columns: tf.Tensor
    lengths: tf.Tensor

    def take(self, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The columns of the given rows, each `[rows, tokens]`, cut to the longest of them."""
        longest = tf.reduce_max(tf.gather(self.lengths, rows))
        return tuple(tf.unstack(tf.gather(self.columns, rows)[:, :longest], axis=2))


def build_sequences(dialogues: Dialogues, tasks: Sequence[tuple[Rows, PairRule]]) -> Sequences:
    """Builds the sequences of several tasks' rows, one task after another.

    All rules must have the same [EOT].
    """
    task = tf.concat(
        [tf.fill(tf.shape(rows.targets["weights"]), i) for i, (rows, _) in enumerate(tasks)], axis=0
    )

    def by_row(values: list) -> tf.Tensor:
        """Maps each row to its task's value."""
        return tf.gather(tf.constant(values), task)

    rule = tasks[0][1]
    first = tf.concat([rows.first for rows, _ in tasks], axis=0)
    second = tf.concat([_second_of(rows) for rows, _ in tasks], axis=0)
    speaker_turns = tf.concat(
        [
            (rows.first if rows.speaker_turns is None else rows.speaker_turns).values
            for rows, _ in tasks
        ],
        axis=0,
    )
    # The turns with [EOT], followed by those without.
    texts = tf.concat([end_turns(dialogues.token_ids, rule.end_of_turn_id), dialogues.token_ids], 0)
    ends = tf.gather(by_row([rows.ends for rows, _ in tasks]), find_rows(second))
    without = second.values + dialogues.token_ids.nrows(tf.int32)
    turns = tf.gather(texts, first)
    others = tf.gather(texts, second.with_values(tf.where(ends, second.values, without)))

    owner, other_owner = find_rows(turns.values), find_rows(others.values)
    place = tf.gather(tf.ragged.range(tf.cast(first.row_lengths(), tf.int32)).values, owner)
    # An [EOT] belongs to no turn.
    last = tf.cast(tf.gather(turns.values.row_limits(), owner), tf.int32) - 1
    place = tf.where(tf.range(tf.size(owner)) < last, place, -1)
    speakers = tf.gather(tf.gather(dialogues.speakers, speaker_turns), owner)
    # A candidate counts as the responder's, whoever said it.
    second_speakers = tf.gather(dialogues.speakers, tf.where(ends, second.values, 0))
    second_speakers = tf.gather(tf.where(ends, second_speakers, 0), other_owner)
    found = place_segments(
        join_turns(turns),
        join_turns(others),
        by_row([rule.first_tokens for _, rule in tasks]),
        by_row([rule.second_tokens for _, rule in tasks]),
        by_row([rows.second is not None for rows, _ in tasks]),
    )
    told = tf.cast(by_row([rows.tells_speakers for rows, _ in tasks]), tf.int32)
    columns = (
        found.fill(turns.flat_values, others.flat_values, rule.marks),
        found.segment_ids(),
        found.fill(speakers, second_speakers) * told[:, None],
        found.fill(place, tf.fill(tf.shape(second_speakers), -1), (-1, -1, -1, -1)),
    )
    return Sequences(tf.stack(columns, axis=2), found.lengths)


def _second_of(rows: Rows) -> tf.RaggedTensor:
    """The second segments of the rows; empty if the task has none."""
    if rows.second is None:
        return put_in_rows(tf.zeros([0], tf.int32), tf.zeros_like(rows.first.row_splits))
    return rows.second


def make_selection_batches(
    samples: dict, form: SelectionForm, seed: tf.Tensor, replicas: int, layout: Layout
) -> list[Tensors]:
    """Makes the batches of one step, one for each replica.

    Turns of other sessions are drawn from the global batch before it is divided, and weights are
    computed over the global batch, so that the loss does not depend on the number of devices.

    Args:
        samples: batched outputs of `draw_dialogue`.
        form: how they are turned into examples.
        seed: int `[2]`, the seed of the step.
        replicas: number of batches of consecutive dialogues; must divide the number of dialogues.
        layout: padded or packed.

    Returns:
        For every replica a dict of
            the table, see `lay_out`, with segment_ids and, if the form has speakers, speaker_ids;
            matching_places int32 `[rows]`, matching_labels and matching_weights float32 `[rows]`;
            with next_session, the same under its name, one row per dialogue;
            with consistency, consistency_places int32 and consistency_weights `[2 x dialogues]`;
            with restoration, restoration_places, restoration_ids int32 and restoration_weights
            `[hidden tokens]`;
            with incoherence, incoherence_places and incoherence_turns int32 `[tokens]`, the latter
            dialogue x form.turns + turn; incoherence_labels int32 `[dialogues]`, the replaced turn,
            and incoherence_weights.
        Places are indices into the flat list of the encoder's tokens; the place of a row is that of
        its [CLS]. Over all replicas, the weights of each task add up to those of the matching.
    """
    dialogues = Dialogues.of(samples, form.same_role)
    seeds = tf.unstack(tf.random.split(seed, 4))
    tasks = {"matching": make_matching_rows(dialogues, form.negatives, seeds[0])}
    if "next_session" in form.auxiliary:
        tasks["next_session"] = make_next_session_rows(dialogues, seeds[1])
    if "restoration" in form.auxiliary:
        tasks["restoration"] = make_restoration_rows(dialogues)
    if "incoherence" in form.auxiliary:
        tasks["incoherence"] = make_incoherence_rows(dialogues, seeds[2])
    if "consistency" in form.auxiliary:
        tasks["consistency"] = make_consistency_rows(dialogues, seeds[3])
    rules = {"next_session": form.rule.divided_evenly()}
    built = build_sequences(
        dialogues, [(rows, rules.get(name, form.rule)) for name, rows in tasks.items()]
    )
    begin, targets = tf.constant(0), {}
    for name, rows in tasks.items():
        count = tf.shape(rows.targets["weights"])[0]
        targets[name] = {**rows.targets, "rows": begin + tf.range(count)}
        begin += count
    _settle_weights(built, targets)
    return [_make_batch(built, own, form, layout) for own in _divide(targets, replicas)]


def _settle_weights(built: Sequences, targets: dict[str, Tensors]) -> None:
    """Zeroes the weights of rows whose hidden or replaced turn was truncated away, and scales the
    weights of all tasks to the same sum.
    """
    for name, target in (("restoration", "hidden"), ("incoherence", "odd")):
        if name in targets:
            *_, turn_ids = built.take(targets[name]["rows"])
            left = tf.reduce_any(turn_ids == targets[name][target][:, None], axis=1)
            targets[name]["weights"] *= tf.cast(left, tf.float32)
    total = tf.reduce_sum(targets["matching"]["weights"])
    for of_task in targets.values():
        weights = of_task["weights"]
        of_task["weights"] = tf.math.divide_no_nan(weights * total, tf.reduce_sum(weights))


def _divide(targets: dict[str, Tensors], replicas: int) -> list[dict[str, Tensors]]:
    """Divides the targets of each task's rows among the replicas."""
    parts = {
        name: {key: tf.split(value, replicas) for key, value in of_task.items()}
        for name, of_task in targets.items()
    }
    return [
        {name: {key: x[i] for key, x in of_task.items()} for name, of_task in parts.items()}
        for i in range(replicas)
    ]


def _make_batch(
    built: Sequences, targets: dict[str, Tensors], form: SelectionForm, layout: Layout
) -> Tensors:
    """Makes the batch of one replica from the targets of its tasks' rows."""
    token_ids, segment_ids, speaker_ids, turn_ids = built.take(
        tf.concat([of_task["rows"] for of_task in targets.values()], axis=0)
    )
    marks = {"segment_ids": segment_ids}
    if form.speakers:
        marks["speaker_ids"] = speaker_ids
    asked = [_find_asked(name, of_task) for name, of_task in targets.items()]
    hidden = turn_ids == tf.concat(asked, axis=0)[:, None]
    table = lay_out(tf.where(hidden, form.mask_id, token_ids), layout, marks)
    cells = find_cells(table)
    counts = [tf.size(rows) for rows in asked]

    def divide(values: tf.Tensor) -> Tensors:
        """Divides values by row among the tasks."""
        return dict(zip(targets, tf.split(values, counts, num=len(counts)), strict=True))

    batch = dict(table)
    batch.pop("places", None)
    own = {
        name: divide(values)
        for name, values in (
            ("cells", cells),
            ("hidden", hidden),
            ("ids", token_ids),
            ("turns", turn_ids),
        )
    }
    for name, of_task in targets.items():
        weights = of_task["weights"]
        if name == "restoration":
            found = _list_hidden(own["hidden"][name], own["ids"][name], own["cells"][name], weights)
        elif name == "incoherence":
            found = _list_turns(own["turns"][name], own["cells"][name], form.turns)
            found |= {"labels": of_task["odd"], "weights": weights}
        else:
            found = {"places": own["cells"][name][:, 0], **of_task}
            del found["rows"]
        batch |= {f"{name}_{key}": value for key, value in found.items()}
    return batch


def _find_asked(name: str, of_task: Tensors) -> tf.Tensor:
    """The turn to restore in each row of a task, int32 `[rows]`; -2, no turn's index, for none."""
    if name != "restoration":
        return tf.fill(tf.shape(of_task["rows"]), -2)
    return tf.where(of_task["weights"] > 0.0, of_task["hidden"], -2)


def find_cells(table: Tensors) -> tf.Tensor:
    """Indices of a table's tokens in the flat list of the encoder's, int32 `[rows, tokens]`."""
    if "places" in table:
        return table["places"]
    rows, tokens = tf.unstack(tf.shape(table["token_ids"]))
    return tf.reshape(tf.range(rows * tokens), [rows, tokens])


def _list_hidden(
    hidden: tf.Tensor, token_ids: tf.Tensor, cells: tf.Tensor, weights: tf.Tensor
) -> Tensors:
    """Lists the hidden tokens of restoration rows; they share their row's weight equally."""
    counts = tf.reduce_sum(tf.cast(hidden, tf.float32), axis=1)
    each = tf.math.divide_no_nan(weights, counts)
    return {
        "places": tf.boolean_mask(cells, hidden),
        "ids": tf.boolean_mask(token_ids, hidden),
        "weights": tf.repeat(each, tf.cast(counts, tf.int32)),
    }


def _list_turns(turn_ids: tf.Tensor, cells: tf.Tensor, turns: int) -> Tensors:
    """Lists the tokens that belong to a turn in the rows of incoherence detection."""
    of_turn = turn_ids >= 0
    dialogue = tf.range(tf.shape(turn_ids)[0])[:, None]
    return {
        "places": tf.boolean_mask(cells, of_turn),
        "turns": tf.boolean_mask(dialogue * turns + turn_ids, of_turn),
    }
