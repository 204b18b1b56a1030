"""The training tasks: a file each, and its name in the import below.

    options = TASKS["simcse"].options(data_dir="data", encoder="bert-base-uncased", run_dir="run")

A task of another package is added by `register_task`.
"""

from dcse_tf.tasks.registry import TASKS, register_task

# isort: split
# Each registers itself; the first is the default.
from dcse_tf.tasks import (  # noqa: F401
    dialogue_cse,
    labelled,
    masked_lm,
    post_training,
    response_selection,
    siamese,
    simcse,
)

__all__ = ["TASKS", "register_task"]
