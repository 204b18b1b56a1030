"""Which of the processes that train together this one is. No TensorFlow here."""

import dataclasses
import os
from collections.abc import Mapping

from dcse_tf.errors import InputError
from dcse_tf.input_files import parse_json

VARIABLE = "TF_CONFIG"
_EXPECTED = (
    f'{VARIABLE}: expected {{"cluster": {{"worker": ["HOST:PORT", ...]}}, "task": {{"type": '
    '"worker", "index": 0}}, the same cluster for all and another index for each'
)


@dataclasses.dataclass(frozen=True)
class Worker:
    """A process among those that train together.

    Attributes:
        index: its number, from 0.
        count: how many there are.
        address: where the others reach it.
    """

    index: int = 0
    count: int = 1
    address: str = ""

    @property
    def is_chief(self) -> bool:
        """Whether it is the one that evaluates and writes."""
        return self.index == 0


def read_worker(environment: Mapping[str, str] = os.environ) -> Worker:
    """Which worker this process is by TF_CONFIG; without one it is alone.

        read_worker({"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": '
                                  '"worker", "index": 1}}'})  # Worker(1, 2, "b:1")

    Raises:
        InputError: TF_CONFIG is of another form, or names tasks that do not train.
    """
    text = environment.get(VARIABLE, "")
    if not text.strip():
        return Worker()
    try:
        config = parse_json(text)
        cluster, task = config["cluster"], config["task"]
        others = cluster.keys() - {"chief", "worker"}
        # A chief, where there is one, comes before the workers, as TensorFlow numbers them.
        addresses = [*cluster.get("chief", []), *cluster.get("worker", [])]
        before = len(cluster.get("chief", [])) if task["type"] == "worker" else 0
        number = int(task["index"])
        own = cluster[task["type"]][number]
        if number < 0 or not all(isinstance(a, str) and ":" in a for a in addresses):
            raise ValueError(addresses)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(_EXPECTED) from error
    if others:
        raise InputError(f"{VARIABLE}: {', '.join(sorted(others))}: expected workers alone")
    return Worker(before + number, len(addresses), own)
