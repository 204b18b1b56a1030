"""What worker processes do in the tests. They import this module: nothing heavy here."""

import os
import pathlib
import signal
import threading
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


class _Fuse:
    """What has it is killed a moment after it was pickled."""

    def __reduce__(self):
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return _Fuse, ()


class KilledWhileSending:
    """Is killed a moment after a result of so many bytes is ready to be sent."""

    def __init__(self, size):
        self._size = size

    def __call__(self, _):
        return bytes(self._size), _Fuse()


class Late:
    """Sleeps for as long as it is told."""

    def __call__(self, seconds):
        time.sleep(seconds)  # ValueError: sleep length must be non-negative
        return seconds


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


class BrokenElsewhere(Adder):
    """Cannot be made in another process than the one named."""

    def __init__(self, process):
        if os.getpid() != process:
            raise InputError("vocab.txt: no such file")
        super().__init__(0)
