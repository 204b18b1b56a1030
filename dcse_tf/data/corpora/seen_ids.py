"""Which ids have been seen, in little memory."""

import hashlib

import numpy as np

_RECENT = 1 << 16


class SeenIds:
    """A set of texts by 64-bit fingerprints: eight bytes each, and a buffer.

    A Python set would take a hundred bytes an id, which is most of the memory of a job that
    streams millions of sessions.
    """

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._sorted = np.zeros(0, np.uint64)

    def add(self, text: str) -> None:
        self._recent.add(_fingerprint(text))
        if len(self._recent) >= _RECENT:
            recent = np.fromiter(self._recent, np.uint64, len(self._recent))
            self._sorted = np.union1d(self._sorted, recent)
            self._recent = set()

    def __contains__(self, text: str) -> bool:
        key = _fingerprint(text)
        if key in self._recent:
            return True
        place = int(np.searchsorted(self._sorted, np.uint64(key)))
        return place < len(self._sorted) and int(self._sorted[place]) == key


def _fingerprint(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
