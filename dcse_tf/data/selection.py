"""From the examples of response selection and its auxiliary tasks to batches.

All are sequences of turns, [CLS] first [SEP] second [SEP], so a batch is one table of sequences,
the rows of one task after those of another, and the encoder is run once.
"""

import dataclasses

import tensorflow as tf

from dcse_tf.data.dialogue_tasks import (
    Dialogues,
    Rows,
    make_consistency_rows,
    make_incoherence_rows,
    make_matching_rows,
    make_next_session_rows,
    make_restoration_rows,
)
from dcse_tf.model.layout import Layout, lay_out
from dcse_tf.model.pairs import PairRule, end_turns, join_pairs, join_segments

Tensors = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class SelectionForm:
    """What becomes of a session.

    Attributes:
        context_turns: most turns before the response.
        negatives: other responses for each true one.
        auxiliary: those of `AUXILIARY_TASKS` that take part.
        speakers: whether tokens are marked by who speaks.
        rule: ids and lengths of the sequences.
        mask_id: id of [MASK].
        given: whether the negatives are those that the corpus gives, not other sessions' responses.
    """

    context_turns: int
    negatives: int
    auxiliary: tuple[str, ...]
    speakers: bool
    rule: PairRule
    mask_id: int
    given: bool = False

    @property
    def turns(self) -> int:
        """Most turns of a dialogue, its response among them."""
        return self.context_turns + 1


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Sequences and what each of their tokens is; all int32 `[rows, (tokens)]`.

    Attributes:
        token_ids, segment_ids: see `join_pairs`.
        speaker_ids: 0 for the responder's tokens, the response's and [CLS], 1 for others'.
        turn_ids: of tokens of the first segment, the place of their turn in it; else -1.
    """

    token_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor
    speaker_ids: tf.RaggedTensor
    turn_ids: tf.RaggedTensor

    def columns(self) -> tuple[tf.RaggedTensor, ...]:
        return (self.token_ids, self.segment_ids, self.speaker_ids, self.turn_ids)


def build_sequences(dialogues: Dialogues, rows: Rows, rule: PairRule) -> Sequences:
    """The sequences of a task's rows."""
    first = tf.gather(dialogues.token_ids, rows.first)
    second = None if rows.second is None else tf.gather(dialogues.token_ids, rows.second)

    def join(of_first: tf.RaggedTensor, of_second: tf.RaggedTensor | None) -> tf.RaggedTensor:
        return join_segments(of_first, of_second, rule, 0, 0)

    def close(turns: tf.RaggedTensor, end: tf.Tensor | int, ended: bool) -> tf.RaggedTensor:
        return end_turns(turns, end) if ended else turns.merge_dims(1, 2)

    token_ids, segment_ids = join_pairs(
        end_turns(first, rule.end_of_turn_id),
        None if second is None else close(second, rule.end_of_turn_id, rows.ends),
        rule,
    )
    voices = rows.first if rows.voices is None else rows.voices
    speakers = tf.gather(dialogues.speakers, voices.values)
    of_first = end_turns(_spread(first, speakers), speakers)
    numbers = tf.ragged.range(rows.first.row_lengths()).values
    # One more than the place, so that 0 is left for what belongs to no turn.
    turn_ids = end_turns(_spread(first, tf.cast(numbers, tf.int32) + 1), 0)
    if second is None or rows.second is None:
        return Sequences(token_ids, segment_ids, join(of_first, None), join(turn_ids, None) - 1)

    if rows.ends:
        heard = tf.gather(dialogues.speakers, rows.second.values)
    else:
        # A candidate is what the responder might say, whoever said it.
        heard = tf.zeros_like(rows.second.values)
    of_second = close(_spread(second, heard), heard, rows.ends)
    nothing = close(_spread(second, tf.zeros_like(heard)), 0, rows.ends)
    return Sequences(token_ids, segment_ids, join(of_first, of_second), join(turn_ids, nothing) - 1)


def _spread(turns: tf.RaggedTensor, values: tf.Tensor) -> tf.RaggedTensor:
    """One value a turn for each of its tokens.

    Args:
        turns: `[rows, (turns), (tokens)]`.
        values: int32 `[turns of all rows]`.
    """
    lengths = turns.values.row_lengths()
    return turns.with_flat_values(tf.repeat(values, lengths))


def make_selection_batches(
    samples: dict, form: SelectionForm, seed: tf.Tensor, replicas: int, layout: Layout
) -> list[Tensors]:
    """The batches of all replicas for one step.

    What comes from other sessions is drawn from the global batch before it is divided, and the
    weights are those of the global batch, so that the loss does not depend on the devices.

    Args:
        samples: batched outputs of `draw_dialogue`.
        form: what becomes of them.
        seed: int `[2]`, of the step.
        replicas: into how many batches of consecutive dialogues the step is divided, evenly.
        layout: padded or packed.

    Returns:
        For every replica a dict of
            the table, see `lay_out`, with segment_ids and, if the form has speakers, speaker_ids;
            matching_places int32 `[rows]`, matching_labels and matching_weights float32 `[rows]`;
            with next_session, the same under its name, a row a dialogue;
            with consistency, consistency_places int32 and consistency_weights `[2 x dialogues]`;
            with restoration, restoration_places, restoration_ids int32 and restoration_weights
            `[hidden tokens]`;
            with incoherence, incoherence_places and incoherence_turns int32 `[tokens]`, the
            dialogue x form.turns + the turn of each; incoherence_labels int32 `[dialogues]`, the
            odd turn, and incoherence_weights.
        Places are those of the encoder's tokens, all in one list; of a row, that of its [CLS]. The
        weights of each task add up, over all replicas, to those of the matching.
    """
    dialogues = Dialogues.of(samples)
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
    built = {
        name: build_sequences(dialogues, rows, rules.get(name, form.rule))
        for name, rows in tasks.items()
    }
    facts = {name: dict(rows.facts) for name, rows in tasks.items()}
    _exclude_cut_turns(built, facts)
    total = tf.reduce_sum(facts["matching"]["weights"])
    for name in tasks:
        weights = facts[name]["weights"]
        facts[name]["weights"] = tf.math.divide_no_nan(weights * total, tf.reduce_sum(weights))
    return [_make_batch(built, facts, form, i, replicas, layout) for i in range(replicas)]


def _exclude_cut_turns(built: dict[str, Sequences], facts: dict[str, Tensors]) -> None:
    """Takes the weight of rows whose turn in question was cut off with the front."""
    for name, fact in (("restoration", "hidden"), ("incoherence", "odd")):
        if name in built:
            asked = facts[name][fact]
            left = tf.reduce_any(built[name].turn_ids == asked[:, None], axis=1)
            facts[name]["weights"] *= tf.cast(left, tf.float32)


def _make_batch(
    built: dict[str, Sequences],
    facts: dict[str, Tensors],
    form: SelectionForm,
    replica: int,
    replicas: int,
    layout: Layout,
) -> Tensors:
    """The rows of one replica in one table."""

    def own(values: tf.Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
        rows = values.nrows() if isinstance(values, tf.RaggedTensor) else tf.shape(values)[0]
        each = tf.cast(rows, tf.int32) // replicas
        return values[replica * each : (replica + 1) * each]

    columns = [
        tf.concat([own(x) for x in same], axis=0).to_tensor(default)
        for same, default in zip(zip(*(s.columns() for s in built.values())), (0, 0, 0, -1))
    ]
    token_ids, segment_ids, speaker_ids, turn_ids = columns
    marks = {"segment_ids": segment_ids}
    if form.speakers:
        marks["speaker_ids"] = speaker_ids

    mine = {name: {k: own(v) for k, v in values.items()} for name, values in facts.items()}
    begins, begin = {}, tf.constant(0)
    for name, values in mine.items():
        begins[name] = begin
        begin += tf.shape(values["weights"])[0]

    hidden = None
    if "restoration" in mine:
        hidden = _find_hidden(turn_ids, mine["restoration"], begins["restoration"])
    shown = token_ids if hidden is None else tf.where(hidden, form.mask_id, token_ids)
    table = lay_out(shown, layout, marks)
    cells = find_cells(table)

    batch = dict(table)
    batch.pop("places", None)
    for name, values in mine.items():
        rows = slice(begins[name], begins[name] + tf.shape(values["weights"])[0])
        if name == "restoration":
            assert hidden is not None
            found = _list_hidden(hidden[rows], token_ids[rows], cells[rows], values["weights"])
        elif name == "incoherence":
            found = _list_turns(turn_ids[rows], cells[rows], form.turns)
            found |= {"labels": values["odd"], "weights": values["weights"]}
        else:
            found = {"places": cells[rows, 0], **values}
        batch |= {f"{name}_{key}": value for key, value in found.items()}
    return batch


def find_cells(table: Tensors) -> tf.Tensor:
    """Where the encoder's tokens, in one list, have those of a table, int32 `[rows, tokens]`."""
    if "places" in table:
        return table["places"]
    rows, tokens = tf.unstack(tf.shape(table["token_ids"]))
    return tf.reshape(tf.range(rows * tokens), [rows, tokens])


def _find_hidden(turn_ids: tf.Tensor, facts: Tensors, begin: tf.Tensor) -> tf.Tensor:
    """The tokens to restore, bool `[rows, tokens]` of the whole table."""
    rows = tf.shape(turn_ids)[0]
    # No turn is number -2: in the rows of other tasks nothing is hidden.
    asked = tf.where(facts["weights"] > 0.0, facts["hidden"], -2)
    after = rows - begin - tf.shape(asked)[0]
    asked = tf.pad(asked, [[begin, after]], constant_values=-2)
    return turn_ids == asked[:, None]


def _list_hidden(
    hidden: tf.Tensor, token_ids: tf.Tensor, cells: tf.Tensor, weights: tf.Tensor
) -> Tensors:
    """The hidden tokens of the rows of restoration, whose weights add up to their row's."""
    counts = tf.reduce_sum(tf.cast(hidden, tf.float32), axis=1)
    each = tf.math.divide_no_nan(weights, counts)
    return {
        "places": tf.boolean_mask(cells, hidden),
        "ids": tf.boolean_mask(token_ids, hidden),
        "weights": tf.repeat(each, tf.cast(counts, tf.int32)),
    }


def _list_turns(turn_ids: tf.Tensor, cells: tf.Tensor, turns: int) -> Tensors:
    """The tokens of the turns of the rows of incoherence detection."""
    of_turn = turn_ids >= 0
    dialogue = tf.range(tf.shape(turn_ids)[0])[:, None]
    return {
        "places": tf.boolean_mask(cells, of_turn),
        "turns": tf.boolean_mask(dialogue * turns + turn_ids, of_turn),
    }
