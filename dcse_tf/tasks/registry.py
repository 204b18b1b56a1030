"""The tasks by their names. A plug-in adds one by `register_task`."""

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcse_tf.tasks.spec import TaskSpec

# In the order of their registration; the first is what `task` stands at.
TASKS: "dict[str, TaskSpec[Any]]" = {}


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
        ValueError: there is a task of this name, or another task has an option of the same name
            that is of another type, so that one flag cannot stand for both.
    """
    if not spec.name or spec.name in TASKS:
        raise ValueError(f"task {spec.name!r}: expected a name that no other task has")
    for field in dataclasses.fields(spec.options):
        for other in fields_named(field.name).values():
            if other.type != field.type:
                raise ValueError(
                    f"task {spec.name!r}: option {field.name!r} is {field.type}, but in another "
                    f"task {other.type}; give it another name"
                )
    TASKS[spec.name] = spec


def fields_named(name: str) -> dict[str, dataclasses.Field]:
    """The options of a name, by the tasks that have one."""
    found = {}
    for task, spec in TASKS.items():
        for field in dataclasses.fields(spec.options):
            if field.name == name:
                found[task] = field
    return found


def all_fields() -> list[dataclasses.Field]:
    """One field for every option that any task has, whose help says where tasks differ.

    Its default is None where the tasks have different ones.
    """
    names = {
        field.name: None for spec in TASKS.values() for field in dataclasses.fields(spec.options)
    }
    return [_merge(name, fields_named(name)) for name in names]


def _merge(name: str, fields: dict[str, dataclasses.Field]) -> dataclasses.Field:
    first = next(iter(fields.values()))
    metadata, default = dict(first.metadata), first.default
    if name == "task":
        default = next(iter(TASKS))
    else:
        if len(fields) < len(TASKS):
            metadata["help"] += f" Only of {', '.join(fields)}."
        by_default: dict[Any, list[str]] = {}
        for task, field in fields.items():
            by_default.setdefault(field.default, []).append(task)
        if len(by_default) > 1:
            default = None
            told = (f"{value} ({', '.join(tasks)})" for value, tasks in by_default.items())
            metadata["help"] += f" Default: {'; '.join(told)}."
    merged: dataclasses.Field = dataclasses.field(default=default, metadata=metadata)
    merged.name, merged.type = name, first.type
    return merged
