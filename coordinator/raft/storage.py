"""The core's read access to the log on disk. Apart from that log, so that the core imports no I/O.

`coordinator.storage.raft_log.SegmentLog` implements it.

Tested by tests/unit/coordinator/raft/test_log_view.py.
"""

from typing import Protocol

from coordinator.raft.messages import Entry, entry_size_bytes


class Storage(Protocol):
    """The stable log.

    A Protocol, as `coordinator.storage.raft_log`, imports this package. The simulator has another.

    The core only requests entries that an `advance` has confirmed, so a write may be in progress.
    """

    def first_index(self) -> int:
        """Return the lowest index of `entries`; 1 as long as nothing was compacted.

        It changes only between two calls of the core, never during one.
        """

    def last_index(self) -> int:
        """Return the highest index; `first_index() - 1` if there is none. Read once, at start."""

    def term(self, index: int) -> int:
        """Return the term of an entry, or of the one before the first (0 for index 0)."""

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        """Return entries from `low` to before `high`, at least one, otherwise within `max_bytes`.

        May stop earlier if that is cheaper, such as at the end of a file.
        """


def take_up_to(entries: list[Entry], max_bytes: int, *, at_least: int) -> list[Entry]:
    """Return the longest prefix whose sizes do not exceed `max_bytes`, but at least `at_least` entries."""
    used_bytes = 0
    for count, entry in enumerate(entries):
        used_bytes += entry_size_bytes(entry)
        if used_bytes > max_bytes and count >= at_least:
            return entries[:count]
    return entries
