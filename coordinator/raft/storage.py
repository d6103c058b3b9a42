"""What the core reads from the log on disk, and a log in memory that offers the same.

Two real implementations: `MemoryStorage` for tests and the simulator,
`coordinator.storage.raft_log.SegmentLog` for the product.
"""

from collections.abc import Sequence
from typing import Protocol

from coordinator.raft.messages import Entry, entry_size_bytes


class Storage(Protocol):
    """The stable log.

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


class MemoryStorage:
    """A log in a list. Not for production: nothing survives the process."""

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self._entries: list[Entry] = list(entries)
        self._base_index = 0
        self._base_term = 0

    def first_index(self) -> int:
        """See `Storage.first_index`."""
        return self._base_index + 1

    def last_index(self) -> int:
        """See `Storage.last_index`."""
        return self._base_index + len(self._entries)

    def term(self, index: int) -> int:
        """See `Storage.term`."""
        if index == self._base_index:
            return self._base_term
        assert self._base_index < index <= self.last_index(), f"index {index} is not in the log"
        return self._entries[index - self._base_index - 1].term

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        """See `Storage.entries`."""
        base = self._base_index
        assert base < low < high <= self.last_index() + 1, f"[{low}, {high}) is not in the log"
        return take_up_to(self._entries[low - base - 1 : high - base - 1], max_bytes, at_least=1)

    def append(self, truncate_from: int | None, entries: Sequence[Entry]) -> None:
        """Drops `truncate_from` and all above, then adds entries that must follow what is left."""
        if truncate_from is not None:
            del self._entries[truncate_from - self._base_index - 1 :]
        for entry in entries:
            assert entry.index == self.last_index() + 1, f"entry {entry.index} leaves a gap"
            self._entries.append(entry)

    def forget(self, index: int) -> None:
        """Drops the entries up to `index`."""
        term = self.term(index)
        del self._entries[: index - self._base_index]
        self._base_index, self._base_term = index, term

    def reset(self, index: int, term: int) -> None:
        """A snapshot at this index and term takes the place of all entries."""
        self._entries.clear()
        self._base_index, self._base_term = index, term


def take_up_to(entries: list[Entry], max_bytes: int, *, at_least: int) -> list[Entry]:
    """The longest prefix whose sizes do not exceed `max_bytes`, but no shorter than `at_least` entries."""
    used_bytes = 0
    for count, entry in enumerate(entries):
        used_bytes += entry_size_bytes(entry)
        if used_bytes > max_bytes and count >= at_least:
            return entries[:count]
    return entries
