"""What worker processes do in the tests. They import this module: nothing heavy here."""

import os
import pathlib
import signal
import time

from dcse_tf.errors import InputError


class Adder:
    """Adds a number, and says in which process."""

    def __init__(self, number):
        self._number = number

    def __call__(self, item):
        time.sleep(0.01 * (item % 3))  # the later is done before the earlier
        return item + self._number, os.getpid()


class Refuser:
    """Refuses what is not a small number."""

    def __init__(self, *_):
        pass

    def __call__(self, item):
        if not isinstance(item, int) or item > 5:
            raise InputError("corpus:7: expected a small number")
        return item


class Killed:
    """Is killed at its work."""

    def __init__(self, *_):
        pass

    def __call__(self, _):
        os.kill(os.getpid(), signal.SIGKILL)


class Sleeper:
    """Leaves a file of its process's name and sleeps."""

    def __init__(self, folder, seconds):
        self._folder, self._seconds = pathlib.Path(folder), float(seconds)

    def __call__(self, _):
        (self._folder / str(os.getpid())).touch()
        time.sleep(self._seconds)


class Broken:
    """Cannot be made."""

    def __init__(self, *_):
        raise InputError("vocab.txt: no such file")
