"""The training tasks, which register when the modules below are imported.

    options = TASKS["simcse"].options(data_dir="data", encoder="bert-base-uncased", run_dir="run")

Other packages add tasks with `register_task`, and terms with `register_term`.
"""

from dcse_tf.tasks.spec import TASKS, register_task, register_term

# isort: split
# The first task is the default.
from dcse_tf.tasks import dialogue_cse, reranking, trained_baselines  # noqa: F401

__all__ = ["TASKS", "register_task", "register_term"]
