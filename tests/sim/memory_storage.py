"""A log in memory that offers the core what the one on disk does."""

from collections.abc import Sequence

from coordinator.raft.messages import Entry
from coordinator.raft.storage import take_up_to


class MemoryStorage:
    """A log in a list. Implements `coordinator.raft.storage.Storage`."""

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
