"""The tasks by name. A plug-in adds one with `register_task`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcse_tf.tasks.spec import TaskSpec

# In order of registration.
TASKS: "dict[str, TaskSpec[Any]]" = {}


def register_task(spec: "TaskSpec[Any]") -> None:
    """Registers a task under its name, also for the command line.

    Example, in a package of your own that lists its module under the entry-point group
    "dcse_tf.plugins" (see `dcse_tf.plugins.load_plugins`):

        @dataclasses.dataclass(frozen=True)
        class MyOptions(TrainOptions):
            task: str = "mine"
            margin: float = option(0.2, "Margin of the loss.", minimum=0.0)

        register_task(TaskSpec(MyOptions, "triplets with a margin", build_model=..., ...))

    Args:
        spec: the task.

    Raises:
        ValueError: a task of this name exists.
    """
    if not spec.name or spec.name in TASKS:
        raise ValueError(f"task {spec.name!r}: expected a name that no other has")
    TASKS[spec.name] = spec
