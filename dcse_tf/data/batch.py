"""Builds batches from turns: a table of utterances, and indices into it.

The table holds every distinct utterance of the batch once, so that each is encoded only once. The
indices say which entries are the context and the candidates of each sample. Gathering rows from the
encoded table gives the same gradients as encoding every use separately, as the form "plain" does.

Every form of batch is first a dict of "turns":
    token_ids: int32 `[turns, tokens]`, zero-padded;
    utterances: int64 `[turns]`, fingerprints of the texts;
    response: int32 `[rows]`, the index of the response among the turns;
    context: int32 `[rows, slots]`, the indices of the context's turns;
    turn_mask: bool `[rows, slots]`, True = real turn;
    session: int64 `[rows]`, fingerprints of the sessions;
    row_splits: int32 `[replicas + 1]`, where the rows of each replica begin.
Texts to rehearse add rehearsed, see `append_garbled`.
"""

import tensorflow as tf

from dcse_tf.bert.layout import Layout, Tensors, fingerprint_rows, lay_out
from dcse_tf.bert.pairs import find_rows
from dcse_tf.data.dialogue import Context
from dcse_tf.data.rehearsal import share_rehearsed


def choose_turns(
    num_turns: tf.Tensor, response: tf.Tensor, context: Context
) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses the turns of a sample: `Context.of` as tensors of fixed shape.

    Args:
        num_turns: int scalar, number of turns of the session.
        response: int scalar, index of the response.
        context: which turns around the response form its context.

    Returns:
        turns: int32 `[slots + 1]`, indices of the context turns in order, then of the response. An
            empty slot has the response's index.
        turn_mask: bool `[slots]`, True = real turn.
    """
    places = response + tf.constant(context.offsets, response.dtype)
    turn_mask = (places >= 0) & (places < num_turns)
    turns = tf.concat([tf.where(turn_mask, places, response), response[None]], axis=0)
    return turns, turn_mask


def make_sample(session: dict, seed: tf.Tensor, context: Context, max_tokens: int) -> Tensors:
    """Draws a response from a session and takes its context (released code: up to 3 turns per
    side).

    Args:
        session: the features of a record with at least two turns.
        seed: int64 `[2]`; it alone determines the draw.
        context: which turns around the response form its context.
        max_tokens: length of the longest utterance of the corpus, in tokens.

    Returns:
        session: int64 scalar, fingerprint.
        token_ids: int32 `[slots + 1, max_tokens]`, context slots then response, zero-padded.
        utterances: int64 `[slots + 1]`, fingerprints.
        turn_mask: bool `[slots]`, True = real turn.
    """
    num_turns = tf.shape(session["utterances"])[0]
    first = context.first_response
    response = tf.random.stateless_uniform([], seed, first, num_turns, tf.int32)
    turns, turn_mask = choose_turns(num_turns, response, context)
    token_ids = tf.gather(session["token_ids"], turns)
    return {
        "session": session["session"],
        "token_ids": token_ids.to_tensor(shape=[None, max_tokens]),
        "utterances": tf.gather(session["utterances"], turns),
        "turn_mask": turn_mask,
    }


def cut_session(session: dict, seed: tf.Tensor, max_turns: int) -> dict:
    """Draws a run of at most `max_turns` consecutive turns from a session.

    Args:
        session: the features of a record.
        seed: int64 `[2]`; it alone determines the draw.
        max_turns: maximum number of turns.

    Returns:
        session, token_ids and utterances of these turns, as in `parse_session`.
    """
    num_turns = tf.shape(session["utterances"])[0]
    length = tf.minimum(num_turns, max_turns)
    start = tf.random.stateless_uniform([], seed, 0, num_turns - length + 1, tf.int32)
    return {
        "session": session["session"],
        "token_ids": tf.gather(session["token_ids"], tf.range(start, start + length)),
        "utterances": session["utterances"][start : start + length],
    }


def prefer(allowed: tf.Tensor, better: tf.Tensor) -> tf.Tensor:
    """Leaves each row of bool `[rows, places]` only its better places, if it has any of them."""
    found = allowed & better
    return tf.where(tf.reduce_any(found, axis=1, keepdims=True), found, allowed)


def sample_negatives(
    session: tf.Tensor,
    response: tf.Tensor,
    negatives: int,
    seed: tf.Tensor,
    role: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws negatives for every sample from the responses of the other samples (paper, section 3).

    A response can be a negative of a row if it is from another session and its text is no response
    in the row's own session, nor already a negative of the row. "ok" is everywhere in customer
    service, and a text that repeats the true response would be a false negative. The draw is
    uniform, without replacement.

    Args:
        session: int64 `[batch]`, fingerprints of the sessions.
        response: int64 `[batch]`, fingerprints of the responses' texts.
        negatives: number of negatives to draw per row; 0 for all, in `batch` columns.
        seed: int `[2]`; it alone determines the draw.
        role: int64 `[batch]`, fingerprints of the responses' roles, to draw only responses of the
            row's own role where there is any; None to draw those of all roles.

    Returns:
        rows: int32 `[batch, 1 + negatives]`, the sample whose response is the candidate. Column 0
            is the row itself, as is every column for which no negative is left.
        mask: bool `[batch, 1 + negatives]`, True = a candidate.
    """
    batch = tf.shape(session)[0]
    sessions, (distinct, text_numbers) = tf.unique(session), tf.unique(response)
    texts = tf.size(distinct)
    first_rows = tf.math.unsorted_segment_min(tf.range(batch), text_numbers, texts)
    first_of_text = tf.gather(first_rows, text_numbers) == tf.range(batch)
    # A response text of the row's own session is no negative, even if another session has it too.
    said = tf.scatter_nd(
        tf.stack([sessions.idx, text_numbers], axis=1),
        tf.ones([batch], tf.int32),
        [tf.size(sessions.y), texts],
    )
    in_own_session = tf.gather(tf.gather(said > 0, sessions.idx), text_numbers, axis=1)
    allowed = ~in_own_session & first_of_text[None, :]
    if role is not None:
        allowed = prefer(allowed, role[:, None] == role[None, :])

    own = tf.range(batch)[:, None]
    if negatives:
        order = tf.random.stateless_uniform([batch, batch], seed)
        order, drawn = tf.math.top_k(tf.where(allowed, order, -1.0), k=tf.minimum(negatives, batch))
        drawn_mask = order >= 0.0
    else:
        drawn, drawn_mask = tf.tile(tf.range(batch)[None, :], [batch, 1]), allowed

    rows = tf.concat([own, tf.where(drawn_mask, drawn, own)], axis=1)
    return rows, tf.concat([tf.ones_like(own, tf.bool), drawn_mask], axis=1)


def turns_of_samples(samples: Tensors, replicas: int) -> Tensors:
    """The turns (see the module) of samples with one response each.

    Args:
        samples: batched outputs of `make_sample`: session `[batch]`, token_ids
            `[batch, slots + 1, tokens]`, utterances `[batch, slots + 1]` and turn_mask
            `[batch, slots]`.
        replicas: number of replicas; must divide the batch.
    """
    slots = samples["turn_mask"].shape[1]
    rows = tf.shape(samples["turn_mask"])[0]
    # The response is the last of the slots + 1 turns of a sample.
    response = tf.range(rows) * (slots + 1) + slots
    tokens = samples["token_ids"].shape[-1]
    return {
        "token_ids": tf.reshape(samples["token_ids"], [-1, tokens]),
        "utterances": tf.reshape(samples["utterances"], [-1]),
        "response": response,
        "context": response[:, None] - slots + tf.range(slots)[None, :],
        "turn_mask": samples["turn_mask"],
        "session": samples["session"],
        "row_splits": tf.range(replicas + 1) * (rows // replicas),
    }


def turns_of_sessions(sessions: dict, context: Context, replicas: int) -> Tensors:
    """The turns (see the module) of sessions in which every turn with a context is a response.

    This is the form "dense".

    Args:
        sessions: session int64 `[batch]`, token_ids int32 `[batch, (turns), (tokens)]`,
            utterances int64 `[batch, (turns)]`.
        context: which turns around a response form its context.
        replicas: number of replicas; must divide the batch.
    """
    utterances = sessions["utterances"]
    owner = find_rows(utterances)
    places = tf.range(tf.size(owner))
    around = places[:, None] + tf.constant(context.offsets)[None, :]
    inside = tf.clip_by_value(around, 0, tf.size(owner) - 1)
    turn_mask = (around == inside) & (tf.gather(owner, inside) == owner[:, None])
    response = tf.boolean_mask(places, tf.reduce_any(turn_mask, axis=1))
    turn_mask = tf.gather(turn_mask, response)
    row_owner = tf.gather(owner, response)
    firsts = tf.range(replicas + 1) * (tf.shape(sessions["session"])[0] // replicas)
    return {
        "token_ids": sessions["token_ids"].merge_dims(0, 1).to_tensor(),
        "utterances": utterances.flat_values,
        "response": response,
        "context": tf.where(turn_mask, tf.gather(inside, response), response[:, None]),
        "turn_mask": turn_mask,
        "session": tf.gather(sessions["session"], row_owner),
        "row_splits": tf.searchsorted(row_owner, firsts),
    }


def make_batches(
    turns: Tensors,
    negatives: int,
    seed: tf.Tensor,
    replicas: int,
    layout: Layout,
    distinct: bool = True,
) -> list[Tensors]:
    """Makes the batches of one step, one for each replica.

    Negatives are drawn before the batch is divided: the loss does not depend on the number of
    devices. The table of a replica holds only what its own rows need.

    Args:
        turns: the turns of the step, see the module.
        negatives: number of negatives per row; 0 for all.
        seed: int `[2]`; it alone determines the draw of negatives.
        replicas: number of batches of consecutive rows that the step is divided into.
        layout: layout of the tables.
        distinct: whether the table holds every utterance once; else ("plain", the paper's
            procedure) every use has its own entry, padded to the corpus' longest utterance.

    Returns:
        For every replica a dict of
            padding_mask: bool `[utterances, tokens]`, True = real token, and the other tensors of
                the table `[utterances, tokens]`, see `lay_out`.
            context_index: int32 `[rows, slots]` into the table.
            turn_mask: bool `[rows, slots]`, True = real turn.
            candidate_index: int32 `[rows, 1 + negatives]` into the table; column 0 is the response.
            candidate_mask: bool `[rows, 1 + negatives]`, True = a candidate.
            With texts to rehearse: rehearsal_index int32 `[texts, 1]`, and the weights of
                `share_rehearsed`.
    """
    texts = tf.gather(turns["utterances"], turns["response"])
    candidate_rows, candidate_mask = sample_negatives(turns["session"], texts, negatives, seed)
    rows = {
        "context": turns["context"],
        "turn_mask": turns["turn_mask"],
        "candidates": tf.gather(turns["response"], candidate_rows),
        "candidate_mask": candidate_mask,
    }

    splits = turns["row_splits"]
    count = tf.reduce_sum(tf.cast(tf.reduce_any(candidate_mask[:, 1:], axis=1), tf.float32))
    garbled = share_rehearsed(turns, count, replicas)
    batches = []
    for i in range(replicas):
        own = {name: value[splits[i] : splits[i + 1]] for name, value in rows.items()}
        batch = _index_table(turns, own | garbled[i], distinct)
        batches.append({**lay_out(batch.pop("token_ids"), layout), **batch})
    return batches


def _index_table(turns: Tensors, rows: Tensors, distinct: bool) -> Tensors:
    """Collects the utterances that the rows use into a table, and makes the rows index it."""
    names = ("context", "candidates", "rehearsed")
    there = [name for name in names if name in rows]
    places = [rows[name] for name in there]
    used = tf.concat([tf.reshape(each, [-1]) for each in places], axis=0)
    if distinct:
        texts, index = tf.unique(tf.gather(turns["utterances"], used))
        entries = tf.math.unsorted_segment_min(used, index, tf.size(texts))
    else:
        entries, index = used, tf.range(tf.size(used))
    token_ids = tf.gather(turns["token_ids"], entries)
    if distinct:
        token_ids = token_ids[:, : _longest(token_ids)]
    parts = tf.split(index, [tf.size(each) for each in places], num=len(places))
    found = {name: tf.reshape(part, tf.shape(rows[name])) for name, part in zip(there, parts)}
    batch = {
        "token_ids": token_ids,
        "context_index": found["context"],
        "turn_mask": rows["turn_mask"],
        "candidate_index": found["candidates"],
        "candidate_mask": rows["candidate_mask"],
    }
    if "rehearsed" in rows:
        batch["rehearsal_index"] = found["rehearsed"]
        batch["rehearsal_weights"] = rows["rehearsal_weights"]
    return batch


def _longest(token_ids: tf.Tensor) -> tf.Tensor:
    # The tokenizer ensures that [PAD] is 0.
    return tf.reduce_max(tf.reduce_sum(tf.cast(token_ids != 0, tf.int32), axis=1))


def make_simcse_batches(token_ids: tf.Tensor, replicas: int, layout: Layout) -> list[Tensors]:
    """Makes batches in which every utterance is in the table twice (Gao et al. 2021, unsupervised).

    The context of a row is an utterance; its candidates are the second entries of that utterance
    and of all others of the step. A row that repeats the text of an earlier row has no candidates,
    and is not a negative of other rows.

    Args:
        token_ids: int32 `[utterances, tokens]`, zero-padded, for all replicas together.
        replicas: number of batches; must divide the number of utterances.
        layout: layout of the tables.

    Returns:
        For every replica a dict as `make_batches` returns, with one context slot.
    """
    texts = fingerprint_rows(token_ids)
    rows = tf.shape(token_ids)[0]
    turns = {
        "token_ids": tf.concat([token_ids, token_ids], axis=0),
        # A different fingerprint makes the second use an entry of its own; dropout makes the two
        # embeddings differ.
        "utterances": tf.concat([texts, tf.bitwise.invert(texts)], axis=0),
        "response": rows + tf.range(rows),
        "context": tf.range(rows)[:, None],
        "turn_mask": tf.ones([rows, 1], tf.bool),
        "session": tf.range(rows, dtype=tf.int64),
        "row_splits": tf.range(replicas + 1) * (rows // replicas),
    }
    # All negatives are used, so nothing is drawn and the seed does not matter.
    batches = make_batches(turns, 0, tf.constant([0, 0]), replicas, layout)
    same_text = texts[:, None] == texts[None, :]
    is_first = tf.argmax(same_text, axis=1, output_type=tf.int32) == tf.range(rows)
    for batch, counts in zip(batches, tf.split(is_first, replicas), strict=True):
        batch["candidate_mask"] &= counts[:, None]
    return batches
