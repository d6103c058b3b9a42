"""Duplicate suppression of one process: numbers for its changes. No I/O here.

Tested by tests/unit/metadata/rpc/test_client.py.
"""

import itertools


class ChangeSession:
    """Numbers for changes, and which of them are still under way.

    Its own number is a secret, see OpenSession.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._sequences = itertools.count(1)
        self._under_way: set[int] = set()

    def begin(self) -> int:
        """The sequence of a change that begins now."""
        sequence = next(self._sequences)
        self._under_way.add(sequence)
        return sequence

    def end(self, sequence: int) -> None:
        """Its outcome is known, or asked for no more."""
        self._under_way.discard(sequence)

    def acknowledged_below(self) -> int:
        """All changes with smaller sequences have ended."""
        return min(self._under_way)
