"""The core's read access to the log on disk. Apart from that log, so that the core imports no I/O.

`coordinator.storage.raft_log.SegmentLog` implements it.
"""

from typing import Protocol

from coordinator.raft.messages import Entry, entry_size_bytes


class Storage(Protocol):
    """The stable log.

    A Protocol, as `coordinator.storage.raft_log`, imports this package. The simulator has another.

    The core asks only for what an `advance` has confirmed, so a write may be going on meanwhile.
    """

    def first_index(self) -> int:
        """The lowest index that `entries` can give; 1 as long as nothing was compacted.

        It moves only between two calls of the core, never during one.
        """

    def last_index(self) -> int:
        """The highest index held; `first_index() - 1` if there is none. Read once, at start."""

    def term(self, index: int) -> int:
        """The term of an entry held, or of the one before the first (0 for index 0)."""

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        """Entries from `low` up to but without `high`, at least one, else within `max_bytes`.

        May stop earlier where that is cheaper, such as at the end of a file.
        """


def take_up_to(entries: list[Entry], max_bytes: int, *, at_least: int) -> list[Entry]:
    """The longest prefix whose sizes do not exceed `max_bytes`, but no shorter than `at_least` entries."""
    used_bytes = 0
    for count, entry in enumerate(entries):
        used_bytes += entry_size_bytes(entry)
        if used_bytes > max_bytes and count >= at_least:
            return entries[:count]
    return entries
