"""The tasks by their names. A plug-in adds one by `register_task`."""

from typing import TYPE_CHECKING, Any

from dcse_tf.options import Family

if TYPE_CHECKING:
    from dcse_tf.tasks.spec import TaskSpec

FAMILY: "Family[TaskSpec[Any]]" = Family("task")
# In the order of their registration.
TASKS = FAMILY.entries


def register_task(spec: "TaskSpec[Any]") -> None:
    """Makes a task known by its name, on the command line too.

    A task of a package of your own, which names its module under the entry-point group
    "dcse_tf.plugins" (see `dcse_tf.plugins.load_plugins`):

        @dataclasses.dataclass(frozen=True)
        class MyOptions(TrainOptions):
            task: str = redefault(TrainOptions, "task", "mine")
            margin: float = option(0.2, "Margin of the loss.", minimum=0.0)

        register_task(TaskSpec(MyOptions, "triplets with a margin", build_model=..., ...))

    Args:
        spec: the task.

    Raises:
        ValueError: there is a task of this name, or another task declares an option of the same
            name otherwise, so that one flag cannot stand for both.
    """
    FAMILY.register(spec)
