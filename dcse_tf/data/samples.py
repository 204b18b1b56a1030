"""From a session to a training sample: one of its turns as the response, the turns around it."""

import tensorflow as tf

Tensors = dict[str, tf.Tensor]


def context_offsets(context_turns: int, context_side: str) -> list[int]:
    """Where context turns stand from the response: before it, and after it if "both"."""
    after = range(1, context_turns + 1) if context_side == "both" else ()
    return [*range(-context_turns, 0), *after]


def choose_turns(
    num_turns: tf.Tensor, response: tf.Tensor, context_turns: int, context_side: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """The turns of a sample.

    Args:
        num_turns: int scalar, turns of the session.
        response: int scalar, the turn that is the response.
        context_turns: most context turns on each side.
        context_side: "both" or "before".

    Returns:
        turns: int32 `[slots + 1]`, indices of the context turns in order, then the response; an
            absent turn has the response's index.
        turn_mask: bool `[slots]`, True = real turn.
    """
    offsets = context_offsets(context_turns, context_side)
    context = response + tf.constant(offsets, response.dtype)
    turn_mask = (context >= 0) & (context < num_turns)
    turns = tf.concat([tf.where(turn_mask, context, response), response[None]], axis=0)
    return turns, turn_mask


def make_sample(
    session: dict, seed: tf.Tensor, context_turns: int, context_side: str, max_tokens: int
) -> Tensors:
    """Draws a response from a session and takes its context (released code: up to 3 a side).

    With context before only, the first turn is never the response: it has no context.

    Args:
        session: the features of a record, of at least two turns.
        seed: int64 `[2]`; it alone decides the draw.
        context_turns: most context turns on each side.
        context_side: "both" or "before".
        max_tokens: tokens of the longest utterance of the corpus.

    Returns:
        session: int64 scalar, fingerprint.
        token_ids: int32 `[slots + 1, max_tokens]`, context slots then response, zero-padded.
        utterances: int64 `[slots + 1]`, fingerprints.
        turn_mask: bool `[slots]`, True = real turn.
    """
    num_turns = tf.shape(session["utterances"])[0]
    first = 0 if context_side == "both" else 1
    response = tf.random.stateless_uniform([], seed, first, num_turns, tf.int32)
    turns, turn_mask = choose_turns(num_turns, response, context_turns, context_side)
    token_ids = tf.gather(session["token_ids"], turns)
    return {
        "session": session["session"],
        "token_ids": token_ids.to_tensor(shape=[None, max_tokens]),
        "utterances": tf.gather(session["utterances"], turns),
        "turn_mask": turn_mask,
    }


def cut_session(session: dict, seed: tf.Tensor, max_turns: int) -> dict:
    """A run of at most `max_turns` consecutive turns, drawn from a session.

    Args:
        session: the features of a record.
        seed: int64 `[2]`; it alone decides the draw.
        max_turns: most turns.

    Returns:
        The same features: session, token_ids int32 `[turns, (tokens)]`, utterances `[turns]`.
    """
    num_turns = tf.shape(session["utterances"])[0]
    length = tf.minimum(num_turns, max_turns)
    start = tf.random.stateless_uniform([], seed, 0, num_turns - length + 1, tf.int32)
    return {
        "session": session["session"],
        "token_ids": session["token_ids"][start : start + length],
        "utterances": session["utterances"][start : start + length],
    }
