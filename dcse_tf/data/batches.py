"""From samples to a batch: an utterance table, and an index into it.

The table holds every distinct utterance of the batch once, so each is encoded once; the index
says which of them are contexts and candidates of a sample. Gathering from the encoded table gives
the gradients of encoding every use on its own.
"""

import tensorflow as tf

Tensors = dict[str, tf.Tensor]


def sample_negatives(
    session: tf.Tensor, response: tf.Tensor, negatives: int, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws negatives for every sample from the responses of the other samples (paper, section 3).

    A response can be a negative if it is of another session and its text is neither the true
    response's nor that of another negative of the row: in customer service "ok" is everywhere, and
    a repeated text is a false negative. The draw is uniform, without replacement.

    Args:
        session: int64 `[batch]`, fingerprints of the sessions.
        response: int64 `[batch]`, fingerprints of the responses' texts.
        negatives: how many to draw for a row.
        seed: int `[2]`; it alone decides the draw.

    Returns:
        rows: int32 `[batch, 1 + negatives]`, the sample whose response is the candidate; column 0
            is the row's own, and so are the places for which no negative was left.
        mask: bool `[batch, 1 + negatives]`, True = a candidate.
    """
    batch = tf.shape(session)[0]
    same_text = response[:, None] == response[None, :]
    first_of_text = tf.argmax(same_text, axis=1, output_type=tf.int32) == tf.range(batch)
    own_session = session[:, None] == session[None, :]
    # A text of the own session stays away also where another session has it too.
    in_own_session = tf.linalg.matmul(
        tf.cast(own_session, tf.float32), tf.cast(same_text, tf.float32)
    )
    allowed = (in_own_session == 0.0) & first_of_text[None, :]
    order = tf.random.stateless_uniform([batch, batch], seed)
    order, drawn = tf.math.top_k(tf.where(allowed, order, -1.0), k=negatives)
    own = tf.range(batch)[:, None]
    drawn_mask = order >= 0.0
    rows = tf.concat([own, tf.where(drawn_mask, drawn, own)], axis=1)
    return rows, tf.concat([tf.ones_like(own, tf.bool), drawn_mask], axis=1)


def make_batches(samples: Tensors, negatives: int, seed: tf.Tensor, replicas: int) -> list[Tensors]:
    """The batches of all replicas for one step.

    Negatives are drawn over the global batch before it is divided, so that the loss does not
    depend on the number of devices; each replica's table has what its own rows need.

    Args:
        samples: batched outputs of `make_sample`: session `[batch]`, token_ids
            `[batch, slots + 1, tokens]`, utterances `[batch, slots + 1]`, turn_mask
            `[batch, slots]`.
        negatives: how many for every sample.
        seed: int `[2]`.
        replicas: into how many batches of consecutive rows; it divides the batch.

    Returns:
        For every replica a dict of
            token_ids: int32 `[utterances, tokens]`, the table, zero-padded to its longest.
            padding_mask: bool `[utterances, tokens]`, True = real token.
            context_index: int32 `[rows, slots]` into the table.
            turn_mask: bool `[rows, slots]`, True = real turn.
            candidate_index: int32 `[rows, 1 + negatives]` into the table, column 0 the truth.
            candidate_mask: bool `[rows, 1 + negatives]`, True = a candidate.
    """
    candidate_rows, candidate_mask = sample_negatives(
        samples["session"], samples["utterances"][:, -1], negatives, seed
    )
    parts = {
        "candidate_rows": tf.split(candidate_rows, replicas),
        "candidate_mask": tf.split(candidate_mask, replicas),
        "turn_mask": tf.split(samples["turn_mask"], replicas),
        "rows": tf.split(tf.range(tf.shape(candidate_rows)[0]), replicas),
    }
    return [
        _index_table(samples, {name: part[replica] for name, part in parts.items()})
        for replica in range(replicas)
    ]


def _index_table(samples: Tensors, part: Tensors) -> Tensors:
    """Finds the distinct utterances of some rows and points the rows at them."""
    slots = samples["turn_mask"].shape[1]
    width = slots + 1  # places a sample has in the flattened utterances; the response is the last
    context = part["rows"][:, None] * width + tf.range(slots)[None, :]
    candidates = part["candidate_rows"] * width + slots
    shapes = tf.shape(context), tf.shape(candidates)
    used = tf.concat([tf.reshape(context, [-1]), tf.reshape(candidates, [-1])], axis=0)

    fingerprints = tf.gather(tf.reshape(samples["utterances"], [-1]), used)
    distinct, index = tf.unique(fingerprints)
    first_use = tf.math.unsorted_segment_min(used, index, tf.size(distinct))
    tokens = samples["token_ids"].shape[-1]
    token_ids = tf.gather(tf.reshape(samples["token_ids"], [-1, tokens]), first_use)
    padding_mask = token_ids != 0  # [PAD] is 0, which the tokenizer sees to
    longest = tf.reduce_max(tf.reduce_sum(tf.cast(padding_mask, tf.int32), axis=1))
    context_size = tf.size(context)
    return {
        "token_ids": token_ids[:, :longest],
        "padding_mask": padding_mask[:, :longest],
        "context_index": tf.reshape(index[:context_size], shapes[0]),
        "turn_mask": part["turn_mask"],
        "candidate_index": tf.reshape(index[context_size:], shapes[1]),
        "candidate_mask": part["candidate_mask"],
    }
