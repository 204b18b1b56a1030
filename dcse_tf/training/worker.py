"""Finds which of several training processes this one is."""

import dataclasses
import os
from collections.abc import Mapping

from dcse_tf.errors import InputError, name_input
from dcse_tf.input_files import parse_json

VARIABLE = "TF_CONFIG"
_EXPECTED = (
    f'{VARIABLE}: expected {{"cluster": {{"worker": ["HOST:PORT", ...]}}, "task": {{"type": '
    '"worker", "index": 0}}, the same cluster for all and a different index for each'
)


@dataclasses.dataclass(frozen=True)
class Worker:
    """One of several processes that train together."""

    index: int = 0  # its number
    count: int = 1  # of processes
    address: str = ""  # HOST:PORT at which the others reach it; "" if it is the only one

    @property
    def is_chief(self) -> bool:
        """Whether this is the first worker, which evaluates and writes."""
        return self.index == 0


def read_worker(environment: Mapping[str, str] = os.environ) -> Worker:
    """Reads from TF_CONFIG which worker this process is; without it, the only one. Raises
    InputError if it has the wrong form, or names tasks other than chief and worker.
    """
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return Worker()
    with name_input(_EXPECTED, ValueError, LookupError, TypeError, AttributeError):
        config = parse_json(text)
        cluster, task = config["cluster"], config["task"]
        # TensorFlow numbers a chief, if there is one, before the workers.
        addresses = [*cluster.get("chief", []), *cluster.get("worker", [])]
        before = len(cluster.get("chief", [])) if task["type"] == "worker" else 0
        number = int(task["index"])
        own = cluster[task["type"]][number]
        if number < 0 or not all(isinstance(a, str) and ":" in a for a in addresses):
            raise ValueError(addresses)
    if others := sorted(cluster.keys() - {"chief", "worker"}):
        raise InputError(f"{VARIABLE}: {', '.join(others)}: expected only workers")
    return Worker(before + number, len(addresses), own)
