"""The training tasks, each in a module of its own that is imported below.

    options = TASKS["simcse"].options(data_dir="data", encoder="bert-base-uncased", run_dir="run")

Other packages add tasks with `register_task`, and terms with `register_term`.
"""

from dcse_tf.tasks.spec import TASKS, register_task, register_term

# isort: split
# Each module registers its task or tasks; the first is the default.
from dcse_tf.tasks import (  # noqa: F401
    dialogue_cse,
    post_training,
    reranking,
    siamese,
    utterances,
)

__all__ = ["TASKS", "register_task", "register_term"]
