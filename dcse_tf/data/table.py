"""The table of a step: token sequences, each stored once, and rows that index them.

A task's terms draw rows for a step, over all devices; each row names the texts that it reads, and
has targets. Then the rows are divided among the devices. The table of a device holds the texts that
its own rows use, packed, and the rows become indices into it. Gathering a text that several rows
share gives the same gradients as encoding it for each.
"""

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from dcse_tf.bert.layout import Tensors, fingerprint_rows, join_tables, lay_out

# Purposes of a step's own draws, see `Step.seed`; those below are `dcse_tf.data.stream`'s.
ROWS, GARBLED = 3, 4


@dataclasses.dataclass(frozen=True)
class Rows:
    """What a term draws for a step, over all devices.

    Attributes:
        texts: the texts that each row reads, as numbers that `Step.add` returned: int32 `[rows]` or
            `[rows, places]`, by name.
        targets: what the loss needs besides, `[rows, ...]`, by name. Those called weights, float32,
            say how much a row counts: every loss is a weighted mean over the step's rows.
        tokens: values of single tokens of the texts called "text", `[rows, tokens]`, by name.
            "asked", bool, says which tokens are listed; weights are theirs.
        splits: int32 `[replicas + 1]`, where the rows of each replica begin; None for equal parts.
    """

    texts: Mapping[str, tf.Tensor]
    targets: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    tokens: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    splits: tf.Tensor | None = None

    def build(self, step: "Step") -> "Rows":
        """The rows, once all were drawn; what else a term draws makes them of it here."""
        return self

    def take(self, replica: int, replicas: int) -> "Rows":
        """The rows of a replica."""
        each = tf.shape(next(iter(self.texts.values())))[0] // replicas
        splits = tf.range(replicas + 1) * each if self.splits is None else self.splits
        own = slice(splits[replica], splits[replica + 1])
        parts = (self.texts, self.targets, self.tokens)
        return Rows(*({name: value[own] for name, value in part.items()} for part in parts))


class Step:
    """The texts of a step, over all devices.

    Args:
        token_ids: int32 `[turns, tokens]`, the turns that were drawn from the corpus, with [CLS]
            and [SEP], zero-padded.
        fingerprints: int64 `[turns]`, equal for equal texts.
        responses: int32 `[samples]`, the turn of each sample that is its response, or its text.
        splits: int32 `[replicas + 1]`, where the samples of each replica begin.
        seed, number: the run's seed, and the step, from 0, int64 scalar.
        marks: names of the attributes of tokens that the encoder reads, such as "segment_ids".
        distinct: whether a table holds equal texts once. If not, every use of a text is an entry
            of its own, as wide as the step's widest text.
    """

    def __init__(
        self,
        token_ids: tf.Tensor,
        fingerprints: tf.Tensor,
        responses: tf.Tensor,
        splits: tf.Tensor,
        seed: int,
        number: tf.Tensor,
        marks: tuple[str, ...] = (),
        distinct: bool = True,
    ):
        self.token_ids, self.fingerprints, self.responses = token_ids, fingerprints, responses
        self.splits, self.replicas = splits, splits.shape[0] - 1
        self.marks, self.distinct = marks, distinct
        self._seed, self.number = seed, number
        self.texts: list[dict[str, tf.Tensor]] = []
        self._count = tf.constant(0)

    def seed(self, purpose: int | str) -> tf.Tensor:
        """The seed of the step's draws for a purpose, int64 `[2]`; a term passes its name."""
        number = zlib.crc32(purpose.encode()) if isinstance(purpose, str) else purpose
        return fold_seed(self._seed, self.number, number)

    def add(
        self, token_ids: tf.Tensor, fingerprints: tf.Tensor | None = None, **marks: tf.Tensor
    ) -> tf.Tensor:
        """Adds texts for rows to read, and returns their numbers, int32 `[texts]`.

        `token_ids` are int32 `[texts, tokens]`, zero-padded, `marks` tables of that shape, by
        default 0. `fingerprints`, int64 `[texts]`, are equal for texts that share an entry of the
        table; by default those with equal token ids do.
        """
        own = {name: marks.get(name, tf.zeros_like(token_ids)) for name in self.marks}
        found = fingerprint_rows(token_ids) if fingerprints is None else fingerprints
        self.texts.append({"token_ids": token_ids, **own, "fingerprints": found})
        begin, self._count = self._count, self._count + tf.shape(token_ids)[0]
        return tf.range(begin, self._count)

    def add_apart(self, token_ids: tf.Tensor, **marks: tf.Tensor) -> tf.Tensor:
        """Adds texts that share no entry of the table, even if their tokens are equal."""
        # No other text has these fingerprints, but for an accident in 2^64.
        own = tf.cast(self._count + tf.range(tf.shape(token_ids)[0]), tf.int64) + 2**62
        return self.add(token_ids, own, **marks)


def fold_seed(*parts: tf.Tensor | int) -> tf.Tensor:
    """Folds any number of integers into a stateless seed `[2]`."""
    seed = tf.constant([0, 0], tf.int64)
    for part in parts:
        seed = tf.random.fold_in(seed, tf.cast(part, tf.int64))
    return seed


def make_batches(step: Step, drawn: Mapping[str, Any], row_length: int) -> list[Tensors]:
    """Makes the batches of a step, one for each replica, of the rows that were drawn, by name.

    All draws are made before, and weights are added up over all replicas: the loss does not depend
    on the number of devices.

    Returns:
        For every replica a dict of the table, see `lay_out`, and of its own rows, by "ROWS_NAME":
            of `Rows.texts`, indices into the table;
            of `Rows.targets`, the values;
            of `Rows.tokens`, the values of the asked tokens in one list, `[asked]`, with
                "ROWS_places", their indices in the flat list of the encoder's tokens, and
                "ROWS_rows", the replica's row that each belongs to;
            with weights, as "ROWS_weights_total", float32 `[1]`, their sum over all replicas;
            samples, step: float32 `[1]`, the number of the replica's samples, and the step's.
    """
    built = {name: rows.build(step) for name, rows in drawn.items()}
    names = ("token_ids", *step.marks)
    texts = {name: join_tables(*(added[name] for added in step.texts)) for name in names}
    texts["fingerprints"] = tf.concat([added["fingerprints"] for added in step.texts], axis=0)
    totals, batches = dict[str, tf.Tensor](), []
    for name, rows in built.items():
        weights = {key: x for key, x in rows.targets.items() if key.endswith("weights")}
        for key, value in rows.tokens.items():
            if key.endswith("weights"):
                weights[key] = tf.where(rows.tokens["asked"], value, 0.0)
        totals |= {f"{name}_{key}_total": tf.reduce_sum(x)[None] for key, x in weights.items()}
    for replica in range(step.replicas):
        own = {name: rows.take(replica, step.replicas) for name, rows in built.items()}
        batch = _index_texts(texts, own, step, row_length)
        for name, rows in own.items():
            batch |= {f"{name}_{key}": value for key, value in rows.targets.items()}
            if rows.tokens:
                batch |= _list_tokens(name, rows, batch)
        samples = step.splits[replica + 1] - step.splits[replica]
        of_step = {"samples": samples, "step": step.number}
        of_step = {name: tf.cast(value, tf.float32)[None] for name, value in of_step.items()}
        batches.append({**batch, **totals, **of_step})
    return batches


def _index_texts(
    texts: dict[str, tf.Tensor], own: Mapping[str, Rows], step: Step, row_length: int
) -> Tensors:
    """Collects the texts that a replica's rows use into a table, and makes the rows index it."""
    used = {f"{name}_{key}": x for name, rows in own.items() for key, x in rows.texts.items()}
    numbers = tf.concat([tf.reshape(each, [-1]) for each in used.values()], axis=0)
    if step.distinct:
        found, index = tf.unique(tf.gather(texts["fingerprints"], numbers))
        entries = tf.math.unsorted_segment_min(numbers, index, tf.size(found))
    else:
        entries, index = numbers, tf.range(tf.size(numbers))
    tables = {name: tf.gather(texts[name], entries) for name in ("token_ids", *step.marks)}
    if step.distinct:
        # The tokenizer ensures that [PAD] is 0.
        lengths = tf.reduce_sum(tf.cast(tables["token_ids"] != 0, tf.int32), axis=1)
        tables = {name: value[:, : tf.reduce_max(lengths)] for name, value in tables.items()}

    batch = lay_out(tables.pop("token_ids"), row_length, tables)
    sizes = [tf.size(each) for each in used.values()]
    parts = tf.split(index, sizes, num=len(sizes))
    return batch | {name: tf.reshape(x, tf.shape(used[name])) for name, x in zip(used, parts)}


def _list_tokens(name: str, rows: Rows, batch: Tensors) -> Tensors:
    """Lists the asked tokens of a replica's rows, see `make_batches`."""
    cells = tf.gather(batch["places"], batch[f"{name}_text"])
    # The table is as wide as its longest text, which may be another term's.
    width = tf.minimum(tf.shape(cells)[1], tf.shape(rows.tokens["asked"])[1])
    values = {key: value[:, :width] for key, value in rows.tokens.items()}
    asked = values.pop("asked")
    row = tf.zeros_like(cells[:, :width]) + tf.range(tf.shape(cells)[0])[:, None]
    values |= {"places": cells[:, :width], "rows": row}
    return {f"{name}_{key}": tf.boolean_mask(value, asked) for key, value in values.items()}
