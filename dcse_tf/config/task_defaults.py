"""What each training task puts where a flag was not given, and the sizes of new encoders."""

from collections.abc import Sequence
from typing import Any

# Tasks whose sample is a session: a response, its context and negatives from other sessions.
DIALOGUE_TASKS = ("dialogue_cse", "siamese_single", "siamese_multi")

# The paper's figures (section 5.3) where it gives one; epochs of sessions are ours (a visit to a
# session trains on one of its turns).
_DIALOGUES: dict[str, Any] = {
    "epochs": 10.0,
    "global_batch_size": 20,
    "learning_rate": 5e-5,
    "freeze_layers": -1,
    "freeze_embeddings": True,
    "temperature": 0.1,
    "context_turns": 3,
    "context_side": "both",
}

# Settings whose default depends on the task. A network's scores know no temperature (1). The
# figures of simcse are those of Gao et al. 2021 for an unsupervised BERT-base: one pass, 64
# sentences a step, 3e-5, temperature 0.05, nothing frozen.
TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    "dialogue_cse": _DIALOGUES,
    "mlm": {
        **_DIALOGUES,
        "epochs": 0.5,
        "global_batch_size": 50,
        "learning_rate": 2e-5,
        "freeze_layers": 0,
        "freeze_embeddings": False,
    },
    "siamese_single": {
        **_DIALOGUES,
        "temperature": 1.0,
        "context_turns": 1,
        "context_side": "before",
    },
    "siamese_multi": {**_DIALOGUES, "temperature": 1.0},
    "simcse": {
        **_DIALOGUES,
        "epochs": 1.0,
        "global_batch_size": 64,
        "learning_rate": 3e-5,
        "freeze_layers": 0,
        "freeze_embeddings": False,
        "temperature": 0.05,
    },
}

# The dev score by which the best encoder is kept.
BEST_METRICS = {
    "dialogue_cse": "dev/response_r1",
    "mlm": "dev/accuracy",
    **dict.fromkeys(("siamese_single", "siamese_multi", "simcse"), "dev/cosine_r1"),
}

# Of all other dev scores the higher is the better.
LOWER_IS_BETTER = {"dev/loss"}


def describe_defaults(name: str, tasks: Sequence[str] = tuple(TASK_DEFAULTS)) -> str:
    """For the help: the default of a setting in each of some tasks, those of one value together."""
    values: dict[Any, list[str]] = {}
    for task in tasks:
        values.setdefault(TASK_DEFAULTS[task][name], []).append(task)
    return "Default: " + "; ".join(f"{v} ({', '.join(names)})" for v, names in values.items()) + "."


# Sizes of Turc et al. 2019 ("Well-Read Students Learn Better"), table 1; "base" is BERT's own.
ENCODER_SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
}
