"""Packages from outside that add tasks, corpus formats or baselines."""

import functools
import importlib.metadata

from dcse_tf.errors import InputError

GROUP = "dcse_tf.plugins"


@functools.cache
def load_plugins() -> None:
    """Loads, once, what installed packages announce under the entry-point group dcse_tf.plugins.

    An entry point is a module that registers something when it is imported, or a function of no
    arguments that does so when it is called. In a package's pyproject.toml:

        [project.entry-points."dcse_tf.plugins"]
        my_tasks = "my_package.tasks"

    Raises:
        InputError: one of them cannot be loaded.
    """
    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            loaded = point.load()
            if callable(loaded):
                loaded()
        except Exception as error:
            # Whatever a stranger's code raises, the user must learn whose code it was.
            raise InputError(
                f"plug-in {point.name} ({point.value}) cannot be loaded: {error!r}; repair or "
                "uninstall it"
            ) from error
