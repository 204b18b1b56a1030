"""The tasks by name. A plug-in adds a task with `register_task`, a term with `register_term`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcse_tf.tasks.spec import TaskSpec, Term

# In order of registration.
TASKS: "dict[str, TaskSpec[Any]]" = {}


def register_task(spec: "TaskSpec[Any]") -> None:
    """Registers a task under its name, also for the command line.

    docs/extending.md has a complete example.

    Args:
        spec: the task.

    Raises:
        ValueError: a task of this name exists.
    """
    if not spec.name or spec.name in TASKS:
        raise ValueError(f"task {spec.name!r}: expected a name that no other has")
    TASKS[spec.name] = spec


def register_term(term: "type[Term]", tasks: Sequence[str]) -> None:
    """Adds a term to the objective of tasks, with its options, which must leave it out by default.

    docs/extending.md has a complete example.

    Args:
        term: the term.
        tasks: names of the tasks.

    Raises:
        ValueError: a task is unknown or has such a term, or the term has no name.
    """
    for name in tasks:
        if name not in TASKS:
            raise ValueError(f"{name!r}: expected one of the tasks {', '.join(TASKS)}")
        own = {other.name for other in TASKS[name].further_terms}
        if not term.name or term.name in own:
            raise ValueError(f"term {term.name!r} of {name}: expected a name that no other has")
    for name in tasks:
        TASKS[name].further_terms.append(term)
