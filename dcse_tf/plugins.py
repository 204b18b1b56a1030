"""Loads plug-ins: other packages that add tasks, corpus formats or baselines."""

import functools
import importlib.metadata

from dcse_tf.errors import InputError

GROUP = "dcse_tf.plugins"


@functools.cache
def load_plugins() -> None:
    """Loads the entry points of the group dcse_tf.plugins, once per process.

    An entry point is a module that registers something when it is imported, or a function without
    arguments that does so when it is called. In the plug-in's pyproject.toml:

        [project.entry-points."dcse_tf.plugins"]
        my_tasks = "my_package.tasks"

    Raises:
        InputError: a plug-in cannot be loaded.
    """
    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            loaded = point.load()
            if callable(loaded):
                loaded()
        except Exception as error:
            # Whatever a plug-in raises, the message must name the plug-in.
            raise InputError(
                f"plug-in {point.name} ({point.value}) cannot be loaded: {error!r}; repair or "
                "uninstall it"
            ) from error
